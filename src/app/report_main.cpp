#include <string>

#include "app/help.hpp"
#include "app/program.hpp"
#include "app/values.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/page/report.hpp"

/// cifar_mpi_report: summarizes runs, and writes a page about them.
int main(int argc, char** argv) {
  using namespace cifar_mpi;
  constexpr const char* kProgram = "cifar_mpi_report";
  CLI::App cli("Summarize runs, and write an HTML page about them that needs no network.", kProgram);
  page::ReportRequest request;
  cli.add_option("run-dir", request.run_dirs, "Run directories; the page compares them with the first")
      ->required();
  cli.add_option("--html", request.html, "Page to write [report.html in the first run directory]");
  cli.add_option("--baseline", request.baseline, "Run with fewer ranks to compare the time per image with");
  std::string link, links, goal, chakra;
  std::vector<int> ranks;
  auto* const forecast =
      cli.add_option("--forecast", ranks, "Numbers of ranks to forecast the first run on: 16,256")
          ->delimiter(',')
          ->check(app::number(1, forecast::kMostRanks));
  auto* const link_option =
      cli.add_option("--link", link, "Latency and bandwidth between nodes: 20us,10gbit")->needs(forecast);
  auto* const links_option =
      cli.add_option("--links", links, "Links of a study (its folder), or of cifar_mpi_bench links --json")
          ->needs(forecast);
  link_option->excludes(links_option);
  cli.add_option("--goal", goal,
                 "Write a step of the forecast on one number of ranks to this file, as a schedule in GOAL")
      ->needs(forecast);
  cli.add_option("--chakra", chakra, "Write that step as Chakra traces PREFIX.R.et, one for each rank R")
      ->needs(forecast);
  app::add_help(cli,
                "Examples:\n  cifar_mpi_report runs/tutorial\n"
                "  cifar_mpi_report runs/tutorial --forecast 16,256 --link 20us,10gbit\n");
  if (const auto code = app::parse(cli, argc, argv, [&] {
        if (ranks.empty()) return;
        if (link.empty() && links.empty())
          throw Error(ErrorKind::usage,
                      "--forecast needs the speed of the links: add --link 20us,10gbit or --links FILE");
        request.forecast = {
            .ranks = ranks,
            .links = links.empty() ? forecast::parse_links(link) : forecast::read_links(links),
            .goal = goal,
            .chakra = chakra};
      })) {
    return *code;
  }
  return app::finish(kProgram, app::run_alone(kProgram, [&] {
                       page::report_runs(request, Log());
                       return 0;
                     }));
}
