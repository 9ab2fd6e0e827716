#include <fcntl.h>
#include <sys/stat.h>

#include <cmath>
#include <ctime>
#include <limits>
#include <string>
#include <vector>

#include "cifar_mpi/report/efficiencies.hpp"
#include "cifar_mpi/report/metrics.hpp"
#include "cifar_mpi/report/timeline_file.hpp"
#include "cifar_mpi/report/verdict.hpp"
#include "cifar_mpi/run/evaluation_file.hpp"
#include "cifar_mpi/run/run_lock.hpp"
#include "hostile/drawing.hpp"
#include "hostile/fixture.hpp"
#include "report/metrics_reader.hpp"
#include "report/summary_history.hpp"

/// The files of a run directory except checkpoints.
namespace cifar_mpi::test {
namespace {

const std::vector<std::pair<std::string, std::string>> kFigures{
    {"epoch", "0.5"}, {"cross_entropy", "2"}, {"lr", "0.1"}, {"seconds", "3"}, {"images_per_second", "900"}};
/// Numbers at the edges of double precision.
const std::vector<std::string> kOdd{"0",     "-1",   "4.9e-324", "9.9e-324", "-1e-310",
                                    "1e-99", "9e99", "-9e99",    "1e308"};

void put_metrics(const std::string& folder, std::uint64_t seed, const std::string& secret) {
  Dice dice(seed);
  const std::string path = folder + "/metrics.jsonl";
  if (seed > 0 && put_no_file(path, dice, secret)) return;
  std::string text;
  if (dice.one_in(2))
    text = concat("{\"format\":\"cifar_mpi metrics\",\"version\":", dice.one_in(9) ? 2 : 1, "}\n");
  for (std::uint64_t n = 1 + dice.roll(50); n > 0; --n) {
    const bool event = dice.one_in(4);
    std::string good = concat("{\"step\":", dice.roll(20));
    if (event) good += ",\"event\":\"resume\",\"ranks\":2,\"global_batch\":8";
    for (const auto& [name, usual] : kFigures) {
      const bool odd = seed > 0 && dice.one_in(4);
      if (!event) good += concat(",\"", name, "\":", odd ? dice.any_of(kOdd) : usual);
    }
    good += '}';
    text += dice.one_in(3) && seed > 0 ? odd_text(dice) : good;
    if (seed == 0 || !dice.one_in(9)) text += '\n';
  }
  write_file(path, text);
}

/// Flips some bits, and for some seeds cuts off the end.
void damage_file(const std::string& path, Dice& dice) {
  std::string bytes = read_file(path);
  for (std::uint64_t n = 1 + dice.roll(8); n > 0; --n)
    bytes[dice.roll(bytes.size())] ^= static_cast<char>(1 << dice.roll(8));
  write_file(path, bytes.substr(0, dice.one_in(3) ? dice.roll(bytes.size()) : bytes.size()));
}

TEST_F(Hostile, Evaluation) {
  fuzz(
      "evaluation", 1,
      [](const std::string& folder, std::uint64_t seed) {
        Dice dice(seed);
        run::EvaluationFile file;
        file.label_names = {"cat", "dog", "größer"};
        if (seed > 0 && dice.one_in(2)) file.label_names.resize(1 + dice.roll(4), odd_text(dice));
        for (std::size_t n = file.label_names.size() * file.label_names.size(); n > 0; --n)
          file.confusion.push_back(dice.roll(UINT64_MAX) >> dice.roll(64));
        file.image = {static_cast<int>(1 + dice.roll(seed > 0 ? 80 : 32)), 4,
                      static_cast<int>(1 + dice.roll(seed > 0 ? 5 : 4))};
        for (std::uint64_t n = dice.roll(seed > 0 ? 80 : 64); n > 0; --n) {
          file.labels.push_back(static_cast<std::uint8_t>(dice.roll(3)));
          file.predictions.push_back(
              static_cast<std::uint8_t>(dice.roll(seed > 0 && dice.one_in(50) ? 256 : 3)));
          file.indices.push_back(dice.roll(UINT64_MAX));
        }
        for (std::uint64_t n = dice.roll(20); n > 0; --n) {
          run::Mistakes& all = file.mistakes;
          all.indices.push_back(seed > 0 && dice.one_in(50) ? dice.roll(UINT64_MAX) : 20 - n);
          all.labels.push_back(static_cast<std::uint8_t>(dice.roll(3)));
          all.predictions.push_back(static_cast<std::uint8_t>(dice.roll(3)));
          all.probabilities.push_back(0.5f);
          all.files.push_back(seed > 0 ? odd_text(dice) : "cat/1.png");
        }
        if (seed > 0 && dice.one_in(9)) file.mistakes.files.resize(dice.roll(30));
        file.images.resize(file.labels.size() * static_cast<std::size_t>(file.image.count()));
        const std::string path = folder + "/file.h5";
        run::write_evaluation(path, file);
        if (seed == 0 || dice.one_in(2)) return;
        damage_file(path, dice);
      },
      [](const std::string& folder) {
        return try_to([&] {
          const run::EvaluationFile file = run::read_evaluation(folder + "/file.h5");
          return joined(file.label_names) + joined(file.mistakes.files);
        });
      });
}

/// A number of any size, of either sign.
std::int64_t any_number(Dice& dice) {
  return static_cast<std::int64_t>(dice.roll(UINT64_MAX) >> dice.roll(64)) * (dice.one_in(2) ? 1 : -1);
}

/// Three steps of three ranks; seed 0: a valid one.
report::Timeline forged_timeline(std::uint64_t seed, Dice& dice) {
  const bool odd = seed > 0;
  report::Timeline t;
  t.program = odd && dice.one_in(9) ? odd_text(dice) : "train";
  t.collective = odd && dice.one_in(9) ? odd_text(dice) : "doubling to 64 KiB, then ring";
  t.wire = odd && dice.one_in(9) ? odd_text(dice) : "fp32";
  t.images_per_rank = odd && dice.one_in(9) ? dice.roll(UINT64_MAX) : 128;
  const std::vector<std::string> names{"control",    "augment", "conv1", "loss", "all-reduce of bucket 0",
                                       "update 0..9"};
  for (const std::string& name : names) {
    report::TimelineTask& task = t.tasks.emplace_back();
    task.name = odd && dice.one_in(80) ? odd_text(dice) : name;
    if (task.name.starts_with("all") != (odd && dice.one_in(30))) task.kind = engine::TaskKind::collective;
    task.lane = static_cast<engine::LaneId>(odd && dice.one_in(80) ? any_number(dice) : t.tasks.size() == 5);
    task.bytes = odd && dice.one_in(80) ? dice.roll(UINT64_MAX) : 4096;
    if (t.tasks.size() > 4) task.after = {static_cast<std::int32_t>(t.tasks.size() - 2)};
    while (odd && dice.one_in(15)) task.after.push_back(static_cast<std::int32_t>(dice.roll(6)));
  }
  const int ranks = odd ? static_cast<int>(1 + dice.roll(3)) : 3;
  for (int rank = 0; rank < ranks; ++rank) {
    t.hosts.push_back(odd && dice.one_in(9) ? odd_text(dice) : "node1");
    t.clock_uncertainty_ns.push_back(odd && dice.one_in(80) ? any_number(dice) : 10);
  }
  const auto time = [&](std::int64_t usual) { return odd && dice.one_in(200) ? any_number(dice) : usual; };
  for (std::int64_t step = 0; step < (odd ? static_cast<std::int64_t>(dice.roll(4)) : 3); ++step) {
    report::Timeline::Step& s = t.steps.emplace_back();
    s.step = odd && dice.one_in(80) ? dice.roll(UINT64_MAX) : static_cast<std::uint64_t>(10 * step);
    for (int rank = 0; rank < ranks; ++rank) {
      const std::int64_t begin = 1000 * step;
      report::RankStep& own = s.ranks.emplace_back(report::RankStep{time(begin), time(begin + 900), {}, 0});
      for (std::int32_t task = 0; task < 6 && !(odd && dice.one_in(60)); ++task)
        own.slices.push_back(
            {odd && dice.one_in(80) ? static_cast<std::int32_t>(dice.roll(dice.one_in(20) ? 99 : 6)) : task,
             time(begin + 100 * task), time(begin + 100 * task + 90)});
    }
  }
  return t;
}

TEST_F(Hostile, Timeline) {
  fuzz(
      "timeline", 1,
      [&](const std::string& folder, std::uint64_t seed) {
        Dice dice(seed);
        const std::string path = folder + "/timeline.h5";
        write_file(folder + "/metrics.jsonl", "");
        if (seed > 0 && put_no_file(path, dice, secret_)) return;
        report::write_timeline(path, forged_timeline(seed, dice));
        if (seed > 0 && dice.one_in(3)) damage_file(path, dice);
      },
      [](const std::string& folder) {
        return try_to([&] {
          page::Run run;
          run.timeline = report::read_timeline(folder + "/timeline.h5");
          return joined(page::verdict_of(run, nullptr)) + page::budget_html(run);
        });
      });
}

/// A number that programs often mishandle.
double odd_number(Dice& dice) {
  const std::vector<double> numbers{0.0,    -1.0,    1e300,        -1e300,
                                    5e-324, -1e-310, std::nan(""), std::numeric_limits<double>::infinity()};
  return dice.any_of(numbers);
}

/// A group of summaries.h5, whose data sets fit together for most seeds.
void put_group(hdf5::Writer& file, const std::string& group, std::uint64_t seed, Dice& dice) {
  const bool odd = seed > 0;
  const std::uint64_t n = odd ? dice.roll(20) : 20;
  const auto rows = [&] { return odd && dice.one_in(60) ? dice.roll(20) : n; };
  const auto columns = [&](std::uint64_t usual) { return odd && dice.one_in(60) ? dice.roll(60) : usual; };
  std::vector<std::uint64_t> steps;
  for (std::uint64_t i = 0; i < rows(); ++i)
    steps.push_back(odd && dice.one_in(900) ? dice.roll(UINT64_MAX) : 100 * i);
  const hdf5::Dims edge_dims{rows(), columns(31)}, count_dims{rows(), columns(30)}, share_dims{rows()};
  std::vector<double> edges, shares;
  for (std::uint64_t i = 0; i < hdf5::count(edge_dims); ++i)
    edges.push_back(odd && dice.one_in(900) ? odd_number(dice) : static_cast<double>(i % edge_dims[1]));
  std::vector<std::uint64_t> counts;
  for (std::uint64_t i = 0; i < hdf5::count(count_dims); ++i)
    counts.push_back(odd && dice.one_in(900) ? dice.roll(UINT64_MAX) : i);
  for (std::uint64_t i = 0; i < share_dims[0]; ++i)
    shares.push_back(odd && dice.one_in(9) ? odd_number(dice) : 0.5);
  file.write(group + "/steps", {steps.size()}, steps);
  file.write(group + "/edges", edge_dims, edges);
  if (!odd || !dice.one_in(60)) file.write(group + "/counts", count_dims, counts);
  if (group.starts_with("/activations") || (odd && dice.one_in(9)))
    file.write(group + "/sparsity", share_dims, shares);
}

TEST_F(Hostile, Summaries) {
  fuzz(
      "summaries", 1,
      [&](const std::string& folder, std::uint64_t seed) {
        Dice dice(seed);
        const bool odd = seed > 0;
        const std::string path = folder + "/summaries.h5";
        if (odd && put_no_file(path, dice, secret_)) return;
        hdf5::Writer file;
        file.attribute("/", "format", odd && dice.one_in(60) ? odd_text(dice) : "cifar_mpi summaries");
        file.attribute("/", "version", odd && dice.one_in(60) ? any_number(dice) : std::int64_t{1});
        const auto name = [&] { return odd && dice.one_in(5) ? odd_text(dice) : "conv1/weights"; };
        try {
          for (const char* kind : {"/variables/", "/gradients/", "/activations/"})
            put_group(file, kind + name(), seed, dice);
        } catch (const Error&) {  // a name that HDF5 does not take
        }
        if (odd && dice.one_in(5)) file.attribute("/activations", "lacking", odd_text(dice));
        const auto extent = [&](std::uint64_t usual) {
          return odd && dice.one_in(5) ? dice.roll(70) : usual;
        };
        const hdf5::Dims dims{extent(8), extent(24), extent(24), odd && dice.one_in(5) ? dice.roll(6) : 3};
        file.write("/images", dims, std::vector<std::uint8_t>(hdf5::count(dims)));
        file.save(path);
        if (odd && dice.one_in(3)) damage_file(path, dice);
      },
      [](const std::string& folder) {
        return try_to([&] {
          const std::string path = folder + "/summaries.h5";
          report::SummaryHistory::read(path, 1000).write(folder + "/goes_on.h5");
          page::Run run;
          run.summaries = page::read_summaries(path);
          std::string seen = run.summaries->lacking;
          for (const auto* const kind : {&run.summaries->variables, &run.summaries->activations}) {
            for (const page::Chart& chart : page::distribution_charts(run, *kind, "kind"))
              seen += page::figure_html(chart);
          }
          return seen;
        });
      });
}

TEST_F(Hostile, Metrics) {
  fuzz(
      "metrics", 1,
      [&](const std::string& folder, std::uint64_t seed) { put_metrics(folder, seed, secret_); },
      [](const std::string& folder) {
        return try_to([&] {
          const std::string path = folder + "/metrics.jsonl";
          { report::MetricsFile(path, 10, Log(1), true).write(report::StepReport()); }
          return read_file(path);
        });
      });
}

TEST_F(Hostile, MetricsForTheReport) {
  fuzz(
      "metrics for the report", 1,
      [&](const std::string& folder, std::uint64_t seed) { put_metrics(folder, seed, secret_); },
      [](const std::string& folder) {
        return try_to([&] {
          const report::Metrics metrics = report::read_metrics(folder + "/metrics.jsonl");
          std::string seen = joined(metrics.problems);
          for (const report::RunEvent& event : metrics.events) seen += event.text + event.hosts;
          return seen + page_of(folder);
        });
      });
}

void leave_lock(const std::string& folder, const std::string& name, Dice& dice, const std::string& secret,
                const std::vector<std::string>& tokens) {
  const std::string path = folder + "/" + name;
  if (!put_no_file(path, dice, secret)) {
    run::LockHolder holder = run::this_process();
    holder.host = dice.one_in(2) ? "elsewhere" : odd_text(dice);
    holder.pid = dice.roll(UINT64_MAX) >> dice.roll(64);
    holder.job = odd_text(dice);
    holder.since = odd_text(dice);
    holder.heartbeat_s = dice.one_in(2) ? 10.0 : 1e300;
    holder.token = dice.one_in(4) ? odd_text(dice) : dice.any_of(tokens);
    write_file(path, run::to_text(holder) + (dice.one_in(3) ? odd_text(dice) : ""));
  }
  const timespec then{std::time(nullptr) - (dice.one_in(2) ? 1000 : 0), 0};
  const timespec times[2] = {then, then};
  utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW);
}

TEST_F(Hostile, Lock) {
  const std::vector<std::string> tokens{"0a", "0b", "0c"};
  fuzz(
      "lock", 1,
      [&](const std::string& folder, std::uint64_t seed) {
        if (seed == 0) return;
        Dice dice(seed);
        leave_lock(folder, "lock", dice, secret_, tokens);
        for (const char* after : {"0a", "0b", "0c", "unreadable", "unreadable-1"}) {
          if (dice.one_in(2)) leave_lock(folder, std::string("lock.after.") + after, dice, secret_, tokens);
        }
      },
      [](const std::string& folder) {
        return try_to([&] {
          std::string seen;
          const auto hear = [&](const std::string& why) { seen += why; };
          const Directory run(folder);
          const run::RunLock lock(run, run::this_process(), hear, hear, [](double) {});
          return seen + (lock.held() ? "" : " not held");
        });
      });
}

}  // namespace
}  // namespace cifar_mpi::test
