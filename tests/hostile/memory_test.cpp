#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/report/timeline_file.hpp"
#include "cifar_mpi/run/checkpoint.hpp"
#include "hdf5/call.hpp"
#include "hostile/drawing.hpp"
#include "hostile/fixture.hpp"

/// Files of less than 10 MB that announce more than memory holds: each is read, and its page drawn, in 1 GB
/// and 5 s.
namespace cifar_mpi::test {
namespace {

constexpr const char* kCheckpoint = "/checkpoints/step_000000001.h5";
constexpr const char* kAsksTooMuch = "asks for more memory than 8 times its size";

class SmallFile : public Hostile {
 protected:
  /// Puts the files of `make` into a run directory and draws its page.
  Trial draw(const std::function<void(const std::string& folder)>& make) {
    const std::string place = folder();
    write_file(place + "/metrics.jsonl", "");
    if (!apart([&] { make(place); })) throw std::runtime_error("no file");
    for (const auto& entry : fs::recursive_directory_iterator(place)) {
      EXPECT_TRUE(!entry.is_regular_file() || entry.file_size() < 10'000'000) << entry.path();
    }
    const Trial trial = try_in_a_gigabyte([&] { return page_of(place); });
    EXPECT_EQ(to_string(trial.end), std::string("read")) << trial.seen.substr(0, 1000);
    return trial;
  }
};

void expect_refused(const Trial& trial, const std::string& object) {
  EXPECT_NE(trial.seen.find(kAsksTooMuch), std::string::npos);
  EXPECT_NE(trial.seen.find(object), std::string::npos);
}

/// Adds `names` names for `object` in `group`; makes both if they are missing.
void add_names(const std::string& path, const std::string& object, const std::string& group, int names) {
  const hdf5::Hid file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
  const hdf5::Hid links(H5Pcreate(H5P_LINK_CREATE));
  H5Pset_create_intermediate_group(links.get(), 1);
  for (int i = 0; i < names; ++i) {
    const std::string name = concat(group, "/n", i);
    if (H5Lcreate_hard(file.get(), object.c_str(), file.get(), name.c_str(), links.get(), H5P_DEFAULT) < 0)
      throw std::runtime_error("no link " + name);
  }
}

run::Checkpoint small_checkpoint() {
  run::Checkpoint c;
  for (const optim::StateRow& row : optim::state_rows(c.optimizer.kind))
    c.state[row.role].push_back({"conv1/weights", {0}, std::string(60'000, 'd'), {}});
  c.progress.identity = {{"model", "tutorial"}};
  return c;
}

void put_checkpoint(const std::string& folder, const run::Checkpoint& checkpoint) {
  fs::create_directories(folder + "/checkpoints");
  run::write_checkpoint(folder + kCheckpoint, checkpoint);
}

TEST_F(SmallFile, IsRefusedWhereATensorHasManyNames) {
  const Trial trial = draw([](const std::string& folder) {
    put_checkpoint(folder, small_checkpoint());
    add_names(folder + kCheckpoint, "/model/conv1/weights", "/model/conv2", 5000);
  });
  expect_refused(trial, "/model/conv2");
}

/// A run's summaries of one variable, `steps` of them.
void put_summaries(const std::string& path, std::uint64_t steps, double edge) {
  hdf5::Writer file("cifar_mpi summaries", 1);
  std::vector<std::uint64_t> numbers, counts(steps * 30, 1);
  std::vector<double> edges;
  for (std::uint64_t i = 0; i < steps; ++i) numbers.push_back(i);
  for (std::uint64_t i = 0; i < steps * 31; ++i) edges.push_back(static_cast<double>(i % 31) * edge);
  file.write("/variables/a/steps", {steps}, numbers);
  file.write("/variables/a/edges", {steps, 31}, edges);
  file.write("/variables/a/counts", {steps, 30}, counts);
  file.save(path);
}

TEST_F(SmallFile, IsRefusedWhereAHistogramHasManyNames) {
  const Trial trial = draw([](const std::string& folder) {
    put_summaries(folder + "/summaries.h5", 1000, 1.0);
    add_names(folder + "/summaries.h5", "/variables/a", "/gradients", 5000);
  });
  expect_refused(trial, "/gradients");
}

TEST_F(SmallFile, IsRefusedWhereGroupsContainThemselves) {
  const Trial trial = draw([](const std::string& folder) {
    put_summaries(folder + "/summaries.h5", 1, 1.0);
    add_names(folder + "/summaries.h5", "/", "/", 100);
    add_names(folder + "/summaries.h5", "/", "/gradients", 100);
  });
  expect_refused(trial, "/gradients");
}

TEST_F(SmallFile, IsDrawnWithNumbersAtTheEdgesOfDoublePrecision) {
  for (const double edge : {5e-324, 1e-310, -1e-310, 1e-42, 3e37, -1e300, std::nan("")}) {
    draw([&](const std::string& folder) { put_summaries(folder + "/summaries.h5", 3, edge); });
  }
  const std::vector<std::pair<std::string, std::string>> numbers{{"4.9e-324", "9.9e-324"},
                                                                 {"-4.9e-324", "4.9e-324"},
                                                                 {"0", "1e-310"},
                                                                 {"3e-308", "-1e-310"},
                                                                 {"-9.9e99", "9.9e99"},
                                                                 {"0", "1e308"},
                                                                 {"null", "1"},
                                                                 {"null", "null"}};
  for (const auto& [first, second] : numbers) {
    draw([&](const std::string& folder) {
      std::string text;
      for (const int step : {0, 1}) {
        text += concat("{\"step\":", step);
        for (const char* name :
             {"epoch", "cross_entropy", "decay_term", "train_accuracy", "lr", "seconds", "images_per_second"})
          text += concat(",\"", name, "\":", step == 0 ? first : second);
        text += concat("}\n{\"event\":\"resume\",\"step\":", step, ",\"ranks\":2,\"global_batch\":9e15}\n");
      }
      write_file(folder + "/metrics.jsonl", text);
    });
  }
}

TEST_F(SmallFile, IsDrawnWithVeryManyShortLines) {
  draw([](const std::string& folder) {
    std::string text;
    for (int step = 0; text.size() < 9'900'000; ++step)
      text += concat("{\"step\":", step, ",\"cross_entropy\":1}\n");
    write_file(folder + "/metrics.jsonl", text);
  });
}

/// A timeline of `tasks` tasks, all but the first collectives, with a slice of the first in each step.
report::Timeline wide_timeline(std::size_t ranks, std::size_t tasks, std::size_t steps) {
  report::Timeline t;
  t.program = "train";
  t.collective = "ring";
  t.wire = "fp32";
  t.tasks.resize(tasks, {"c", engine::kComm, engine::TaskKind::collective, 8, {}});
  t.tasks[0] = {"augment", engine::kCompute, engine::TaskKind::work, 0, {}};
  t.hosts.assign(ranks, "h");
  t.clock_uncertainty_ns.assign(ranks, 0);
  for (std::size_t i = 0; i < steps; ++i) {
    const auto begin = static_cast<std::int64_t>(100 * i);
    t.steps.push_back(
        {i, std::vector<report::RankStep>(ranks, {begin, begin + 90, {{0, begin, begin + 50}}, 0})});
  }
  return t;
}

TEST_F(SmallFile, IsRefusedWithMoreRanksTasksAndStepsThanATimelineMayHaveTogether) {
  const auto refused = [&](std::size_t ranks, std::size_t tasks, std::size_t steps) {
    const auto write = [&](const std::string& folder) {
      report::write_timeline(folder + "/timeline.h5", wide_timeline(ranks, tasks, steps));
    };
    expect_refused(draw(write), concat("/tasks of ", ranks, " ranks in ", steps, " steps"));
  };
  refused(1 << 16, 1 << 16, 1);
  refused(1, 30'000, 20'000);
}

TEST_F(SmallFile, IsDrawnWithManyCollectivesOneAfterTheOther) {
  const Trial trial = draw([](const std::string& folder) {
    report::Timeline timeline = wide_timeline(4, 1 << 16, 1);
    for (report::TimelineTask& task : timeline.tasks) task.after = {0};
    report::write_timeline(folder + "/timeline.h5", timeline);
  });
  EXPECT_NE(trial.seen.find("Where the time of a step goes"), std::string::npos);
}

TEST_F(SmallFile, IsDrawnWithCollectivesThatWaitForEachOther) {
  const Trial trial = draw([](const std::string& folder) {
    report::Timeline timeline = wide_timeline(2, 1 << 15, 1);
    for (std::size_t i = 0; i < timeline.tasks.size(); ++i) {
      if (i % 2 == 0) timeline.tasks[i].kind = engine::TaskKind::work;
      timeline.tasks[i].after = {static_cast<std::int32_t>((i + 1) % timeline.tasks.size())};
      for (report::RankStep& rank : timeline.steps[0].ranks) {
        if (i > 0 && i % 2 == 0) rank.slices.push_back({static_cast<std::int32_t>(i), 50, 50});
      }
    }
    report::write_timeline(folder + "/timeline.h5", timeline);
  });
  EXPECT_NE(trial.seen.find("Where the time of a step goes"), std::string::npos);
}

TEST_F(SmallFile, IsDrawnWithATaskInManyPiecesThatWaitsForManyCollectives) {
  draw([](const std::string& folder) {
    report::Timeline timeline = wide_timeline(1, 2, 1);
    timeline.tasks[0].after.assign(400'000, 1);
    timeline.steps[0].ranks[0].slices.assign(100'000, {0, 0, 0});
    report::write_timeline(folder + "/timeline.h5", timeline);
  });
}

}  // namespace
}  // namespace cifar_mpi::test
