#pragma once

#include <string>
#include <vector>

#include "page/page.hpp"
#include "page/run.hpp"
#include "page/sections.hpp"

namespace cifar_mpi::test {

/// The output of `cifar_mpi_report` for a run directory.
inline std::string page_of(const std::string& run_dir) {
  std::vector<page::Run> runs;
  runs.push_back(page::load_run(run_dir));
  for (page::Run& run : runs) run.verdict = page::verdict_of(run, nullptr);
  page::name_runs(runs);
  return page::page_html(runs, run_dir + "/report.html");
}

}  // namespace cifar_mpi::test
