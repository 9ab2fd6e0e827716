#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "app/weights.hpp"
#include "cuda/runs/gpu_runs.hpp"

/// Runs that change between the CPU and the GPU.
namespace cifar_mpi::test {
namespace {

class BothDevices : public GpuRuns {
 protected:
  void SetUp() override {
    if (!has_cpu()) GTEST_SKIP() << "LOUD: no CPU backend to compare with";
  }
  /// Trains to the last of `steps`, on the samples of `set`, from `start`, which is of step 1.
  static run::Checkpoint end_of(const std::string& run, const run::Checkpoint& start,
                                const std::vector<std::string>& legs, int steps) {
    std::filesystem::create_directories(file(run) + "/checkpoints");
    run::write_checkpoint(checkpoint(run, 1), start);
    int step = 1;
    for (const std::string& leg : legs) {
      const int ranks = leg.find("two ranks") == std::string::npos ? 1 : 2;
      const int end = step + (steps - 1) / static_cast<int>(legs.size());
      const std::string device = leg.substr(0, leg.find(' '));
      const Outcome outcome =
          mpirun(ranks, train(run, kExact + "--device " + device + " --steps " + std::to_string(end)));
      EXPECT_EQ(outcome.code, 0) << outcome.output;
      EXPECT_EQ(count_lines_with(outcome.output, "resuming at step " + std::to_string(step) + " of"), 1)
          << outcome.output;
      step = end;
    }
    return run::read_checkpoint(checkpoint(run, steps));
  }
  static inline const std::string kExact = "--precision fp32 --shuffle global --lr 0.01 ";
};

TEST_F(BothDevices, ResumeEachOthersCheckpoints) {
  const Outcome begun = mpirun(1, train("start", kExact + "--device cpu --steps 1"));
  ASSERT_EQ(begun.code, 0) << begun.output;
  const run::Checkpoint start = run::read_checkpoint(checkpoint("start", 1));
  constexpr int kSteps = 13;
  const run::Checkpoint straight = end_of("straight", start, {"cpu"}, kSteps);
  const run::Checkpoint changing =
      end_of("changing", start, {"cuda", "cpu two ranks", "cuda two ranks", "cpu"}, kSteps);

  EXPECT_EQ(changing.progress.step, straight.progress.step);
  EXPECT_EQ(changing.progress.samples_seen, straight.progress.samples_seen);
  EXPECT_EQ(changing.progress.identity, straight.progress.identity);
  // The same samples: another one changes the loss of a batch of 8 in its first or second digit, and
  // rounding, grown over 12 small steps, by far less than a thousandth.
  const std::vector<double> wanted = losses("straight"), found = losses("changing");
  ASSERT_EQ(wanted.size(), 12u);
  ASSERT_EQ(found.size(), 12u);
  for (std::size_t i = 0; i < 12; ++i) EXPECT_NEAR(found[i], wanted[i], 1e-3 * wanted[i]) << "step " << i + 2;
  // The same arithmetic: 4 times the effect of a last digit of every weight. It varies between trials, so it
  // is the mean square of two.
  double squares = 0.0;
  for (const std::uint64_t seed : {1, 2}) {
    run::Checkpoint moved = start;
    perturb(moved, seed);
    squares +=
        std::pow(distance(straight, end_of("moved" + std::to_string(seed), moved, {"cpu"}, kSteps)), 2) / 2.0;
  }
  const double last_digit = std::sqrt(squares);
  EXPECT_GT(last_digit, 0.0);
  EXPECT_GT(distance(straight, changing), 0.0);
  EXPECT_LE(distance(straight, changing), 4.0 * last_digit);
  RecordProperty("changing_over_last_digit", std::to_string(distance(straight, changing) / last_digit));
}

/// Statistics of both ranks, the running ones of the steps before, and an evaluation with them.
TEST_F(BothDevices, TrainAResidualNetworkAlike) {
  for (const std::string device : {"cpu", "cuda"}) {
    const Outcome outcome =
        mpirun(2, train(device, kExact + "--model resnet20 --steps 3 --device " + device));
    ASSERT_EQ(outcome.code, 0) << outcome.output;
  }
  const std::vector<double> wanted = losses("cpu"), found = losses("cuda");
  ASSERT_EQ(wanted.size(), 3u);
  ASSERT_EQ(found.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(found[i], wanted[i], 1e-3 * wanted[i]) << "step " << i + 1;
  const run::Checkpoint cpu = run::read_checkpoint(checkpoint("cpu", 3)),
                        cuda = run::read_checkpoint(checkpoint("cuda", 3));
  EXPECT_LE(distance(cpu, cuda), 1e-3);
}

TEST_F(BothDevices, WriteTheSameObjects) {
  for (const std::string device : {"cpu", "cuda"}) {
    const Outcome outcome =
        mpirun(2, train("objects_" + device, "--precision fp32 --steps 1 --device " + device));
    ASSERT_EQ(outcome.code, 0) << outcome.output;
  }
  const auto objects = [](const std::string& device) {
    const Outcome dump = run_command("h5dump -n 1 " + checkpoint("objects_" + device, 1) + " | tail -n +2");
    EXPECT_EQ(dump.code, 0) << dump.output;
    EXPECT_GE(count_lines_with(dump.output, "/model/"), 10) << dump.output;
    return dump.output;
  };
  EXPECT_EQ(objects("cpu"), objects("cuda"));
}

TEST_F(BothDevices, FindTheSameAccuracy) {
  ASSERT_EQ(run_command(kPack + " --synthetic 256 --out " + file("more.h5")).code, 0);
  const std::string more = " --data " + file("more.h5") + " ";
  // The set is 16 batches that repeat in every epoch. The GPU does the last steps. The centre of 8 pixels
  // shows too little of an image.
  const std::string learn = train("learned", more + "--precision fp32 --global-batch 16 --augment none ") +
                            "--input-size 24 --log-every 100 --weight-decay 0 --lr 0.05 ";
  const Outcome learned = mpirun(1, learn + "--device cpu --steps 20");
  ASSERT_EQ(learned.code, 0) << learned.output;
  const Outcome trained = mpirun(2, learn + "--steps 22");
  ASSERT_EQ(trained.code, 0) << trained.output;
  std::smatch logged;
  ASSERT_TRUE(std::regex_search(trained.output, logged, std::regex(R"(test accuracy ([\d.]+) %)")))
      << trained.output;

  const auto evaluate = [&](int ranks, const std::string& device, const std::string& weights, int step) {
    const Outcome outcome = mpirun(ranks, kEval + " " + checkpoint("learned", step) + more +
                                              "--threads 1 --batch-size 16 --precision fp32 --device " +
                                              device + " --weights " + weights);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return outcome.output.substr(std::min(outcome.output.find("pattern0"), outcome.output.size()));
  };
  for (const int step : {20, 22}) {
    EXPECT_EQ(evaluate(1, "cpu", "ema", step), evaluate(1, "cuda", "ema", step));
  }
  EXPECT_EQ(evaluate(1, "cpu", "raw", 22), evaluate(2, "cuda", "raw", 22));

  // It has learned something, and the run reported the same at its end.
  const std::string end = evaluate(1, "cuda", "ema", 22);
  std::smatch found;
  ASSERT_TRUE(std::regex_search(end, found, std::regex(R"(precision @ 1 = ([\d.]+))"))) << end;
  EXPECT_GT(std::stod(found[1]), 0.3);
  EXPECT_LT(std::stod(found[1]), 1.0);
  EXPECT_NEAR(std::stod(found[1]), std::stod(logged[1]) / 100.0, 1e-4);
}

}  // namespace
}  // namespace cifar_mpi::test
