#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/report/metrics.hpp"
#include "cifar_mpi/report/timeline_file.hpp"
#include "cifar_mpi/run/evaluation_file.hpp"
#include "cifar_mpi/run/run_lock.hpp"
#include "hostile/trial.hpp"
#include "page/page.hpp"
#include "page/run.hpp"
#include "report/event_file.hpp"
#include "report/metrics_reader.hpp"
#include "report/summary_history.hpp"
#include "report/trace_file.hpp"
#include "run/checkpoint_writer.hpp"
#include "run/resume.hpp"
#include "run/self_check_record.hpp"
#include "support/temp_dir.hpp"

/// A user with write access to a run directory replaces its files and folders by links into another run, at
/// any moment.
namespace cifar_mpi::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

const std::string kBin = CIFAR_MPI_BIN;
const std::string kRoot = CIFAR_MPI_SOURCE_ROOT;
const std::string kMark = "of-the-other-run";  ///< in all files of the other run

run::Checkpoint checkpoint_at(std::uint64_t step, const std::string& configuration) {
  run::Checkpoint checkpoint;
  checkpoint.state[optim::StateRole::weights] = checkpoint.state[optim::StateRole::average] = {
      {"conv1/weights", {2, 3}, "[in, out]", {1, 2, 3, 4, 5, 6}}};
  checkpoint.progress.step = step;
  checkpoint.progress.identity = {{"model", configuration}};
  checkpoint.provenance.configuration = configuration;
  checkpoint.provenance.test_accuracy = 0.5;
  return checkpoint;
}

run::EvaluationFile evaluation_of(const std::string& label) {
  run::EvaluationFile file;
  file.label_names = {label, "dog"};
  file.confusion = {1, 2, 3, 4};
  file.image = {4, 4, 3};
  return file;
}

report::Timeline timeline_of(const std::string& host) {
  report::Timeline timeline;
  timeline.program = "train";
  timeline.tasks.emplace_back().name = "conv1";
  timeline.hosts = {host};
  timeline.clock_uncertainty_ns = {0};
  timeline.steps.push_back({10, {{0, 100, {{0, 10, 90}}, 0}}});
  return timeline;
}

report::RunEvent event_of(const std::string& text) {
  report::RunEvent event;
  event.text = text;
  return event;
}

/// All files of a run, with `mark` in each.
void write_run(const Directory& run, std::uint64_t step, const std::string& mark) {
  report::MetricsFile(run / "metrics.jsonl", step, Log(1)).write(event_of(mark));
  run::write_evaluation(run / "evaluation.h5", evaluation_of(mark));
  report::write_timeline(run / "timeline.h5", timeline_of(mark));
  report::SummaryHistory history;
  history.lacks(mark);
  history.write(run / "summaries.h5");
  write_atomically(run / "config.toml", mark);
  run::write_self_check(run, {run::SelfCheckResult::passed, "key", "now", mark});
}

/// Names, targets and content of everything below a folder.
std::string state_of(const std::string& folder) {
  std::vector<std::string> lines;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    lines.push_back(concat(entry.path().string(), ' ',
                           entry.is_symlink()        ? fs::read_symlink(entry.path()).string()
                           : entry.is_regular_file() ? read_file(entry.path().string())
                                                     : std::string()));
  }
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

const std::vector<std::string> kNames{
    "checkpoints",   "checkpoints", "checkpoints",        "lock",
    "exit",          "self_check",  "metrics.jsonl",      "config.toml",
    "evaluation.h5", "timeline.h5", "summaries.h5",       "tensorboard",
    "trace",         "report.html", "checkpoints/latest", "checkpoints/best"};

/// Moves entries of a run directory away and puts others in their place, on its own thread; mostly it
/// restores them soon, so that the run continues.
class Placements {
 public:
  Placements(std::string run, std::string victim, std::uint64_t seed)
      : run_(std::move(run)), victim_(std::move(victim)), dice_(seed) {
    thread_ = std::jthread([this](const std::stop_token& over) {
      while (!over.stop_requested()) place();
    });
  }
  int count() const { return count_; }

 private:
  void place() {
    std::string name = dice_.any_of(kNames);
    if (dice_.one_in(5)) name = concat("checkpoints/", run::checkpoint_name(dice_.roll(60)));
    const std::string path = run_ + "/" + name, aside = run_ + "/aside", folder = run_ + "/checkpoints";
    if (name.starts_with("checkpoints/") && fs::is_symlink(folder)) {  // or this would follow it
      unlink(folder.c_str());
      return;
    }
    std::error_code ignored;
    fs::remove_all(aside, ignored);
    const bool moved = std::rename(path.c_str(), aside.c_str()) == 0;
    const bool placed = dice_.one_in(6) ? mkfifo(path.c_str(), 0666) == 0
                                        : symlink(target_of(name).c_str(), path.c_str()) == 0;
    count_ += placed;
    std::this_thread::sleep_for(std::chrono::microseconds(100 + dice_.roll(2000)));
    if (placed && !dice_.one_in(8)) unlink(path.c_str());
    if (moved && !dice_.one_in(8)) std::rename(aside.c_str(), path.c_str());
    std::this_thread::sleep_for(std::chrono::microseconds(dice_.roll(1000)));
  }
  std::string target_of(const std::string& name) {
    if (dice_.one_in(8)) return victim_;
    if (name.starts_with("checkpoints/") && dice_.one_in(2))
      return concat(victim_, "/checkpoints/", run::checkpoint_name(1 + dice_.roll(3)));
    return victim_ + "/" + name;
  }

  std::string run_, victim_;
  Dice dice_;
  std::atomic<int> count_{0};
  std::jthread thread_;  ///< last: it ends first
};

class Links : public testing::Test {
 protected:
  Links() {
    fs::create_directory(dir_ / "run");
    fs::create_directory(dir_ / "other");
    const Directory other(dir_ / "other");
    write_run(other, 3, kMark);
    run::CheckpointWriter writer(other, {5, 0, true});
    for (std::uint64_t step = 1; step <= 3; ++step) {
      writer.start(checkpoint_at(step, kMark));
      EXPECT_EQ(writer.finish().problem, "");
    }
    for (const char* name :
         {"exit", "lock", "report.html", "tensorboard/events", "trace/step_1.perfetto-trace"}) {
      fs::create_directories((fs::path(dir_ / "other") / name).parent_path());
      write_file(dir_ / (std::string("other/") + name), "5 " + kMark);
    }
    before_ = state_of(dir_ / "other");
  }
  void expect_untouched(const std::string& seen) const {
    EXPECT_TRUE(state_of(dir_ / "other") == before_) << "files of another run were touched";
    const std::size_t at = seen.find(kMark);
    EXPECT_EQ(at, std::string::npos) << seen.substr(at < 200 ? 0 : at - 200, 400);
  }
  const TempDir dir_;
  std::string before_;
};

/// Runs `action` and records its exception. Returns whether there was none.
template <class Action>
bool goes_well(std::string& seen, Action action) {
  try {
    action();
    return true;
  } catch (const Error& error) {
    seen += error.what() + std::string("\n");
    return false;
  }
}

/// The accesses of a run to its directory in a step, one at a time.
void write_step(const Directory& run, std::uint64_t step, std::string& seen) {
  const Log log(1);
  goes_well(seen, [&] { report::MetricsFile(run / "metrics.jsonl", step, log).write(event_of("mine")); });
  goes_well(seen, [&] { run::write_evaluation(run / "evaluation.h5", evaluation_of("mine")); });
  goes_well(seen, [&] {
    report::TimelineFile file(run / "timeline.h5", timeline_of("mine"), step, log);
    file.add({{step, {{0, 100, {{0, 10, 90}}, 0}}}}, {0});
    file.finish();
  });
  goes_well(seen, [&] { report::SummaryHistory::read(run / "summaries.h5").write(run / "summaries.h5"); });
  goes_well(seen, [&] { report::EventFile(run / "tensorboard", step, {}, log).write({}); });
  goes_well(seen, [&] {
    report::TraceFile trace(run / "trace", step, log);
    trace.append("mine");
    trace.finish();
  });
  goes_well(seen, [&] { run::write_self_check(run, {run::SelfCheckResult::passed, "key", "now", "mine"}); });
  goes_well(seen, [&] { run::remove_temporary_files(run); });
}

/// The reads at a start and for a report.
void read_run(const std::string& path, const Directory& run, std::string& seen) {
  goes_well(seen, [&] {
    const run::RunLock lock(
        run, run::this_process(), [&](const std::string& why) { seen += why; }, [](const std::string&) {},
        [](double) {});
  });
  goes_well(seen, [&] {
    if (const auto found = run::newest_valid_checkpoint(run, Log(1)))
      seen += found->content.provenance.configuration;
  });
  goes_well(seen, [&] {
    if (const auto record = run::read_self_check(run)) seen += record->text;
  });
  goes_well(seen, [&] { seen += run::recorded_exit(run); });
  goes_well(seen, [&] {
    std::vector<page::Run> runs;
    runs.push_back(page::load_run(path));
    seen += page::page_html(runs, "page.html");
  });
}

TEST_F(Links, LeadARunThatTrainsToNoOtherOne) {
  constexpr int kPlacements = 400;
  const Directory run(dir_ / "run");
  run::CheckpointWriter writer(run, {1, 0, true});
  std::string seen;
  int good = 0, bad = 0;
  testing::internal::CaptureStderr();
  {
    const Placements placements(dir_ / "run", dir_ / "other", 1);
    const auto begin = std::chrono::steady_clock::now();
    for (std::uint64_t step = 4;
         placements.count() < kPlacements && std::chrono::steady_clock::now() - begin < 60s; ++step) {
      writer.start(checkpoint_at(step % 60, "mine"));
      const run::WriteReport report = writer.finish();
      ++(report.problem.empty() && report.remark.empty() ? good : bad);
      seen += report.problem + report.remark;
      write_step(run, step, seen);
      run::record_exit(run, 0, "mine");
      read_run(dir_ / "run", run, seen);
      if (seen.size() > 1 << 22) seen.erase(0, seen.find(kMark) == std::string::npos ? 1 << 22 : 0);
    }
    EXPECT_GE(placements.count(), kPlacements);
  }
  expect_untouched(seen + testing::internal::GetCapturedStderr());
  EXPECT_GT(good, 0);
  EXPECT_GT(bad, 0);
}

TEST_F(Links, LeadTheProgramsToNoOtherRun) {
  const std::string go = concat(". ", kRoot, "/env/mpirun.sh; . ", kRoot,
                                "/env/one_machine.sh; export OMP_NUM_THREADS=1; unset CIFAR_MPI_DATA; "
                                "cd ",
                                dir_.path(), "; ", kBin);
  ASSERT_EQ(to_string(try_program(go + "/cifar_mpi_pack --synthetic 64 --force --out data.h5").end),
            std::string("read"));
  std::string seen;
  int placed = 0;
  for (int round = 1; round <= 2; ++round) {
    const Placements placements(dir_ / "run", dir_ / "other", static_cast<std::uint64_t>(round));
    for (const std::string& program :
         {concat(
              "/cifar_mpi_train --batch-size 8 --threads 1 --run-dir run --data data.h5 --checkpoint-every 1 "
              "--keep 1 --keep-best --eval-every 0.125 --summary-every 1 --trace 2-3 --steps ",
              20 * round),
          std::string("/cifar_mpi_eval run --threads 1 --data data.h5"),
          std::string("/cifar_mpi_report run --html page.html; cat page.html")}) {
      const Trial trial = try_program(go + program);
      EXPECT_TRUE(trial.end == End::read || trial.end == End::refused)
          << to_string(trial.end) << ": " << program << "\n"
          << trial.seen;
      seen += trial.seen;
    }
    placed += placements.count();
  }
  EXPECT_GE(placed, 100);
  expect_untouched(seen);
}

}  // namespace
}  // namespace cifar_mpi::test
