#include "page/run.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <set>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/input_file.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/report/timeline_file.hpp"
#include "cifar_mpi/run/run_directory.hpp"
#include "page/text.hpp"

namespace cifar_mpi::page {
namespace {

namespace fs = std::filesystem;

/// Throws Error{checkpoint} if it does not exist or has no file of a run.
Directory open_run_directory(const std::string& dir) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::checkpoint, why, "; give the --run-dir of a training run");
  };
  Directory opened;
  if (!exists(dir)) refuse(concat(dir, " does not exist"));
  try {
    opened = Directory(dir);
  } catch (const Error& error) {
    refuse(error.what());
  }
  for (const char* name : {"metrics.jsonl", "timeline.h5", "config.toml", "exit", "lock", "checkpoints"}) {
    if (exists(opened / name)) return opened;
  }
  refuse(concat(dir, " is not a run directory: it has neither metrics.jsonl nor checkpoints"));
  return opened;
}

/// Runs `read`; an exception becomes a problem of the run.
void try_to(Run& run, const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& error) {
    run.problems.emplace_back(error.what());
  }
}

/// Whether it is the folder of `cifar_mpi_bench ways --record`: a training run has a config.toml.
bool is_recording(const Directory& run) {
  return exists(run / "timeline.h5") && !exists(run / "config.toml") && !exists(run / "metrics.jsonl");
}

void find_state(Run& run) {
  const std::string exit = run::recorded_exit(run.directory);
  const std::optional<SmallFile> lock = read_small_file(run.directory / "lock");
  const std::size_t digits = std::min(exit.find_first_not_of("0123456789"), exit.size());
  if (!exit.empty() && (digits == 0 || digits > 3 || digits == exit.size() || exit[digits] != ' ')) {
    run.problems.push_back(
        concat((run.directory / "exit").path(), " is left out: it does not begin with an exit code"));
  } else if (!exit.empty()) {
    const std::size_t blank = digits;
    run.state_text = concat("the last start ended with code ", exit.substr(0, blank), ": ",
                            exit.substr(std::min(blank + 1, exit.size())));
    return;
  }
  if (is_recording(run.directory)) {
    run.state_text = "a recording of cifar_mpi_bench ways, not a training run";
    return;
  }
  if (!lock) {
    run.state_text = "the last start left no exit record: it was killed, or failed early";
    return;
  }
  const run::LockHolder holder = run::parse_lock(lock->content);
  if (!lock->readable || holder.host.empty()) {
    run.problems.push_back(concat((run.directory / "lock").path(), " is left out: it names no holder"));
    run.state_text = "unknown";
    return;
  }
  // This machine's clock may differ from the clock of the time stamps, so this is a guess.
  const double now = wall_seconds();
  const double silent = std::max(0.0, now - lock->modified_s);
  const run::LockHolder me = run::this_process();
  std::string stale = run::why_stale(holder, me);
  if (stale.empty() && silent > run::patience_s(holder, me))
    stale = fmt::format("by this machine's clock it was last renewed {:.0f} s ago", silent);
  if (stale.empty()) {
    run.state_text =
        concat("a run is active here, process ", holder.pid, " on ", holder.host, " since ", holder.since);
    if (const auto metrics = read_small_file(run.directory / "metrics.jsonl"))
      run.state_text +=
          fmt::format("; its last log line is {:.0f} s old", std::max(0.0, now - metrics->modified_s));
  } else {
    run.state_text = concat("the last start left its lock: ", stale);
  }
}

/// Limits for the page's size: a page repeats texts, and escaping makes up to six bytes of one. No text that
/// the programs write is as long.
constexpr std::size_t kLongestText = 4000, kMostItems = 300, kLongestPlan = 1 << 20;

void shorten(std::initializer_list<std::string*> texts) {
  for (std::string* const text : texts) *text = shortened(*text, kLongestText);
}

void shorten(run::Checkpoint& checkpoint) {
  for (RunFingerprint* const items : {&checkpoint.progress.identity, &checkpoint.progress.resolved}) {
    items->resize(std::min(items->size(), kMostItems));
    for (auto& [name, value] : *items) shorten({&name, &value});
  }
  run::Provenance& from = checkpoint.provenance;
  shorten({&from.learning_rate_rule, &from.precision, &from.backend, &from.git_revision, &from.time,
           &from.initialized_from, &from.changes});
  from.kernels = shortened(from.kernels, kLongestPlan);
}

void shorten(report::Timeline& timeline) {
  shorten({&timeline.program, &timeline.collective, &timeline.wire});
  for (std::string& host : timeline.hosts) shorten({&host});
}

void read_newest_checkpoint(Run& run) {
  const std::vector<std::uint64_t> steps = run::list_checkpoints(run.directory);
  for (auto step = steps.rbegin(); step != steps.rend() && !run.checkpoint; ++step) {
    const InputFile file = run::open_checkpoint(run.directory, *step);
    if (file.missing()) continue;  // the run has removed it in the meantime
    try_to(run, [&] {
      run.checkpoint = run::read_checkpoint(file);
      shorten(*run.checkpoint);
      run.checkpoint_path = file.path();
    });
  }
}

/// Reads a file of the run directory if it exists.
template <class Value, class Read>
void try_to_read(Run& run, const char* name, std::optional<Value>& value, Read read) {
  const DirectoryEntry file = run.directory / name;
  if (exists(file)) try_to(run, [&] { value = read(file); });
}

/// Each start counts its seconds from 0.
void add_up_seconds(Run& run) {
  double before = 0.0, last = 0.0;
  for (const report::StepReport& report : run.metrics.steps) {
    if (report.seconds < last) before += last;
    if (std::isfinite(report.seconds)) last = report.seconds;
    run.seconds.push_back(before + last);
  }
}

void find_scale(Run& run) {
  for (const report::StepReport& report : run.metrics.steps) {
    if (report.epoch > 0.0) run.steps_per_epoch = static_cast<double>(report.step) / report.epoch;
  }
  for (const report::RunEvent& event : run.metrics.events) {
    if (event.global_batch > 0) run.global_batch = event.global_batch;
  }
  if (run.global_batch == 0 && run.checkpoint) run.global_batch = run.checkpoint->provenance.global_batch;
}

}  // namespace

Run load_run(const std::string& dir) {
  Run run;
  run.directory = open_run_directory(dir);
  run.dir = run.directory.path();
  find_state(run);
  const bool recording = is_recording(run.directory);
  if (!recording) try_to(run, [&] { run.metrics = report::read_metrics(run.directory / "metrics.jsonl"); });
  run.problems.insert(run.problems.end(), run.metrics.problems.begin(), run.metrics.problems.end());
  if (const std::optional<SmallFile> file = read_small_file(run.directory / "config.toml", 1 << 20)) {
    run.configuration = file->content;
    if (!file->readable)
      run.problems.push_back(concat((run.directory / "config.toml").path(),
                                    " is left out: it is not a regular file of at most 1 MiB"));
  }
  try_to(run, [&] { read_newest_checkpoint(run); });
  try_to_read(run, "evaluation.h5", run.evaluation, run::read_evaluation);
  try_to_read(run, "summaries.h5", run.summaries, read_summaries);
  try_to_read(run, "timeline.h5", run.timeline, report::read_timeline);
  if (run.timeline && run.timeline->steps.empty()) run.timeline.reset();
  if (run.timeline) shorten(*run.timeline);
  if (run.summaries) shorten({&run.summaries->lacking});
  if (run.metrics.steps.empty() && !recording)
    run.problems.push_back(concat("there are no curves: no line of ",
                                  (run.directory / "metrics.jsonl").path(), " reports a step"));
  add_up_seconds(run);
  find_scale(run);
  return run;
}

report::Timeline load_timeline(const std::string& dir, std::string_view without_it) {
  const Directory opened = open_run_directory(dir);
  const DirectoryEntry file = opened / "timeline.h5";
  if (!exists(file))
    throw Error(ErrorKind::checkpoint, "there is no ", file.path(), ", so ", without_it,
                "; a run of a few hundred steps writes one");
  return report::read_timeline(file);
}

void name_runs(std::vector<Run>& runs) {
  const auto end_of = [](const Run& run, int parts) {
    fs::path path = fs::absolute(run.dir).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();  // of "."
    fs::path name;
    auto part = path.end();
    for (int i = 0; i < parts && part != path.begin(); ++i) name = name.empty() ? *--part : *--part / name;
    return name.string();
  };
  constexpr int kMost = 8;
  for (int parts = 1; parts <= kMost; ++parts) {
    std::set<std::string> names;
    for (Run& run : runs) names.insert(run.name = end_of(run, parts));
    if (names.size() == runs.size()) return;
  }
  for (std::size_t i = 0; i < runs.size(); ++i) runs[i].name += concat(" (", i + 1, ")");
}

std::uint64_t last_start(const Run& run) {
  std::uint64_t began = 0;
  for (const report::RunEvent& event : run.metrics.events) began = event.ranks > 0 ? event.step : began;
  return began;
}

double recent_speed(const Run& run) {
  std::vector<double> values;
  const std::uint64_t began = last_start(run);  // earlier starts may have used other machines or options
  const auto& steps = run.metrics.steps;
  for (auto r = steps.rbegin(); r != steps.rend() && r->step > began && values.size() < 10; ++r) {
    if (std::isfinite(r->images_per_second)) values.push_back(r->images_per_second);
  }
  if (values.empty()) return std::nan("");
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double seconds_at(const Run& run, double step) {
  const auto& reports = run.metrics.steps;
  const auto after = std::ranges::lower_bound(
      reports, step, {}, [](const report::StepReport& r) { return static_cast<double>(r.step); });
  const auto i = static_cast<std::size_t>(after - reports.begin());
  if (reports.empty()) return 0.0;
  if (i == reports.size()) return run.seconds.back();
  const double x1 = static_cast<double>(reports[i].step), y1 = run.seconds[i];
  const double x0 = i == 0 ? 0.0 : static_cast<double>(reports[i - 1].step),
               y0 = i == 0 ? 0.0 : run.seconds[i - 1];
  return x1 > x0 ? y0 + (y1 - y0) * (step - x0) / (x1 - x0) : y1;
}

}  // namespace cifar_mpi::page
