#include <string>

#include "app/program.hpp"
#include "app/values.hpp"
#include "cifar_mpi/page/report.hpp"

/// cifar_mpi_report: tells how runs stand, and writes a page about them.
int main(int argc, char** argv) {
  using namespace cifar_mpi;
  constexpr const char* kProgram = "cifar_mpi_report";
  CLI::App cli("Tells how a run stands, and writes a page about it that a browser opens without a network.",
               kProgram);
  page::ReportRequest request;
  cli.add_option("run-dir", request.run_dirs,
                 "Run directories; the first is told of, the others are drawn over it")
      ->required()
      ->check(app::not_empty());
  cli.add_option("--html", request.html, "The page; else report.html in the first run directory")
      ->check(app::not_empty());
  cli.add_option("--baseline", request.baseline,
                 "A run with fewer ranks, to compare the computing of an image with")
      ->check(app::not_empty());
  app::add_version(cli);
  if (const auto code = app::parse(cli, argc, argv)) return *code;
  return app::finish(kProgram, app::run_alone(kProgram, [&] {
                       page::report_runs(request, Log());
                       return 0;
                     }));
}
