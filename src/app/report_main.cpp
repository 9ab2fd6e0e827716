#include <string>

#include "app/help.hpp"
#include "app/program.hpp"
#include "app/values.hpp"
#include "cifar_mpi/page/report.hpp"

/// cifar_mpi_report: summarizes runs, and writes a page about them.
int main(int argc, char** argv) {
  using namespace cifar_mpi;
  constexpr const char* kProgram = "cifar_mpi_report";
  CLI::App cli("Summarize runs, and write an HTML page about them that needs no network.", kProgram);
  page::ReportRequest request;
  cli.add_option("run-dir", request.run_dirs, "Run directories; the page compares them with the first")
      ->required()
      ->check(app::not_empty());
  cli.add_option("--html", request.html, "Page to write [report.html in the first run directory]")
      ->check(app::not_empty());
  cli.add_option("--baseline", request.baseline, "Run with fewer ranks to compare the time per image with")
      ->check(app::not_empty());
  app::add_help(cli, "Example:\n  cifar_mpi_report runs/tutorial\n");
  if (const auto code = app::parse(cli, argc, argv)) return *code;
  return app::finish(kProgram, app::run_alone(kProgram, [&] {
                       page::report_runs(request, Log());
                       return 0;
                     }));
}
