#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "cifar_mpi/cpu/backend.hpp"
#include "run/made_checkpoint.hpp"
#include "support/mpi_world.hpp"
#include "support/temp_dir.hpp"
#include "train/session_state.hpp"

namespace cifar_mpi::train {

/// A small learnable dataset and a run directory that all ranks see; tests set up runs on it.
class RunTest : public testing::Test {
 protected:
  /// The values of the state, by row.
  static std::vector<std::vector<float>> rows(const SessionState& state) {
    std::vector<std::vector<float>> all;
    for (const optim::StateRow& row : state.blocks.state.rows()) {
      const std::span<float> values = state.blocks.state[row.role].span<float>();
      all.emplace_back(values.begin(), values.end());
    }
    return all;
  }
  std::vector<std::vector<float>> rows_after(const config::TrainConfig& config) {
    const auto state = start(config);
    run(*state);
    return rows(*state);
  }
  static constexpr std::uint64_t kTrainSamples = 96;
  static constexpr std::uint64_t kTestSamples = 22;

  RunTest() {
    if (world().rank() == 0) {
      folder_ = std::make_unique<TempDir>();
      path_ = folder_->path();
      data::Samples train, test;
      data::make_synthetic({32, 32, 3}, 10, kTrainSamples, 7, train, test);
      test.images.resize(kTestSamples * 32 * 32 * 3, 99);
      test.labels.resize(kTestSamples, 3);
      data::DatasetInfo info;
      info.image = {32, 32, 3};
      info.label_names = data::cifar10_label_names();
      info.source = "made for a test";
      data::write_dataset(path_ + "/data.h5", info, train, test);
    }
    world().broadcast(path_);
  }
  ~RunTest() override { world().barrier(); }

  static const comm::World& world() { return test::test_world(); }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

  /// Twelve samples a step for any number of ranks (1, 2, 3, 4), one thread, everything quick: 12x12 pixels have
  /// the layers and methods of convolution of 24x24, with 0.4 of the parameters and a quarter of the work.
  config::TrainConfig config() const {
    config::TrainConfig c;
    c.data = path("data.h5");
    c.run_dir = path("run");
    c.threads = 1;
    c.batch_size = 12 / world().size();
    c.input_size = 12;
    c.steps = 4;
    c.precision = engine::Precision::fp32;
    c.shuffle = data::Shuffle::global;
    c.text = "# made by a test\n";
    return c;
  }

  static comm::Platform platform(const engine::BackendOptions& options) {
    return comm::on_host(cpu::make_backend(options));
  }
  /// Its run directory, made and opened on rank 0.
  const Directory& opened(const config::TrainConfig& config) {
    Directory& run = opened_[config.run_dir];
    world().together([&] {
      if (world().rank() == 0 && !run) run = run::make_folders(config.run_dir);
    });
    return run;
  }
  std::unique_ptr<SessionState> start(const config::TrainConfig& config) {
    return set_up(config, opened(config), world(), Log(world().rank() + 1), platform, stop_);
  }
  /// Runs to the end on all ranks, so that all files are written.
  static void run(SessionState& state) {
    run_loop(state);
    world().barrier();
  }
  void run(const config::TrainConfig& config) { run(*start(config)); }
  /// One start per number of steps.
  void run_in_parts(config::TrainConfig config, const std::vector<std::int64_t>& steps) {
    for (const std::int64_t more : steps) {
      config.steps = more;
      run(config);
    }
  }
  static run::Checkpoint saved(const config::TrainConfig& config, std::uint64_t step) {
    return run::read_checkpoint(run::checkpoint_path(config.run_dir, step));
  }
  /// The lines of metrics.jsonl that hold `part`.
  static std::vector<std::string> metrics_with(const config::TrainConfig& config, const std::string& part) {
    std::ifstream file(config.run_dir + "/metrics.jsonl");
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) {
      if (line.find(part) != std::string::npos) lines.push_back(line);
    }
    return lines;
  }
  static bool same_on_all_ranks(const Buffer& block) {
    const std::string mine(reinterpret_cast<const char*>(block.data()), block.size());
    std::string first = mine;
    world().broadcast(first);
    return mine == first;
  }

  /// Expects that every rank throws an error of this kind whose text holds `part`. Collective.
  template <class Action>
  void expect_agreed(ErrorKind kind, const std::string& part, Action action) {
    try {
      action();
      ADD_FAILURE() << "expected an error about " << part;
    } catch (const comm::AgreedError& error) {
      EXPECT_EQ(exit_code(error.kind()), exit_code(kind)) << error.what();
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    world().barrier();
  }

  /// Rank 0 changes files between two barriers.
  void on_rank_zero(const std::function<void()>& action) {
    world().barrier();
    if (world().rank() == 0) action();
    world().barrier();
  }
  /// Writes a copy of the dataset, changed.
  std::string other_data(
      const std::function<void(data::DatasetInfo&, data::Samples&, data::Samples&)>& change) {
    on_rank_zero([&] {
      const data::DatasetFile file(path("data.h5"));
      data::DatasetInfo info = file.info();
      data::Samples train = file.read(data::Split::train, {0, info.train_count});
      data::Samples test = file.read(data::Split::test, {0, info.test_count});
      change(info, train, test);
      data::write_dataset(path("other.h5"), info, train, test);
    });
    return path("other.h5");
  }

  std::atomic<int> stop_{0};
  comm::Heartbeat heart_;

 private:
  std::unique_ptr<TempDir> folder_;
  std::string path_;
  std::map<std::string, Directory> opened_;
};

}  // namespace cifar_mpi::train
