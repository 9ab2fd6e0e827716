#include <algorithm>
#include <iterator>
#include <numeric>
#include <sstream>
#include <string>

#include "report/summary_history.hpp"
#include "train/run_fixture.hpp"

/// Training images whose size changes during a run: every stage has a program of its own over the same state.
namespace cifar_mpi::train {
namespace {

class ImageSizes : public RunTest {
 protected:
  /// Eight steps per epoch: 12x12 pixels in steps 1 to 3, 20x20 in 4 and 5, whole images in 6 and 7.
  config::TrainConfig growing(const char* name) const {
    config::TrainConfig c = config();
    c.model = "resnet20";
    c.input_size = 32;
    c.augment = data::Augment::crop;
    c.normalize = data::Normalize::dataset;
    c.optimizer.kind = optim::OptimizerKind::momentum;
    c.lr = 0.01;
    c.steps = 7;
    c.image_sizes = {{12, 0.375}, {20, 0.25}, {32}};
    c.run_dir = path(name);
    return c;
  }
};

/// Each stage is what a run of that size alone makes of the state of the stage before.
TEST_F(ImageSizes, ChangeNothingElseOfTheSteps) {
  const config::TrainConfig c = growing("growing");
  const auto whole = start(c);
  EXPECT_EQ(whole->programs.later.size(), 2u);
  run(*whole);
  const auto wanted = rows(*whole);
  config::TrainConfig alone = growing("alone");
  alone.allow_change = {"image-size"};
  std::unique_ptr<SessionState> last;
  for (const auto& [steps, size] : {std::pair{3, 12}, {5, 20}, {7, 32}}) {
    alone.steps = steps;
    alone.image_sizes = {{size}};
    last.reset();
    last = start(alone);
    EXPECT_TRUE(last->programs.later.empty());
    EXPECT_EQ(last->programs.kind.image_size, size == 32 ? 0 : size);
    run(*last);
  }
  EXPECT_EQ(rows(*last), wanted);
  alone = growing("all_whole");
  alone.image_sizes.clear();
  EXPECT_NE(rows_after(alone), wanted);
}

/// A size that comes again has the program of the first time.
TEST_F(ImageSizes, ChangeBackToTheSameProgram) {
  config::TrainConfig c = growing("back");
  c.image_sizes = {{12, 0.25}, {20, 0.25}, {12, 0.125}, {20}};
  const auto whole = start(c);
  ASSERT_EQ(whole->programs.later.size(), 3u);
  const engine::Runner* const first = whole->programs.step.get();
  const engine::Runner* const second = whole->programs.later[0].step.get();
  EXPECT_EQ(whole->programs.later[1].step, nullptr);
  EXPECT_EQ(whole->programs.later[2].step, nullptr);
  run(*whole);
  ASSERT_EQ(whole->programs.step.get(), second);
  EXPECT_EQ(second->finished(), 2u + 2u);
  config::TrainConfig alone = c;
  alone.run_dir = path("one_by_one");
  alone.allow_change = {"image-size"};
  std::unique_ptr<SessionState> last;
  for (const auto& [steps, size] : {std::pair{2, 12}, {4, 20}, {5, 12}, {7, 20}}) {
    alone.steps = steps;
    alone.image_sizes = {{size}};
    last.reset();
    last = start(alone);
    run(*last);
  }
  EXPECT_EQ(rows(*last), rows(*whole));
  EXPECT_NE(first, second);
}

TEST_F(ImageSizes, HaveKernelsOnlyIfTheRunReachesThem) {
  config::TrainConfig c = growing("short");
  c.steps = 4;
  c.image_sizes = {{12, 0.25}, {20, 0.75}, {16, 0.5}, {32}};
  const auto state = start(c);
  ASSERT_EQ(state->device.smaller.size(), 2u);
  EXPECT_FALSE(state->device.smaller.contains(16));
  const std::string text = state->device.plan_text();
  std::istringstream lines(text);
  std::size_t small = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_FALSE(line.ends_with(':')) << line;
    small += line.starts_with("12x12 ") ? 1 : 0;
  }
  const std::string& one = state->device.smaller.at(12)->plan_text();
  EXPECT_EQ(small, static_cast<std::size_t>(std::ranges::count(one, '\n')));
  EXPECT_GT(small, 0u);
}

TEST_F(ImageSizes, ResumeToTheSameBitsAtAndBetweenTheirBoundaries) {
  const auto wanted = rows_after(growing("uninterrupted"));
  for (const int stop : {2, 3, 5}) {
    SCOPED_TRACE(stop);
    config::TrainConfig c = growing(("stopped_" + std::to_string(stop)).c_str());
    c.steps = stop;
    run(c);
    c.steps = 7;
    EXPECT_EQ(rows_after(c), wanted);
  }
}

TEST_F(ImageSizes, LeadToTheSameBitsWhateverLooksAtTheSteps) {
  const auto wanted = rows_after(growing("plain"));
  for (const auto runner : {engine::RunnerKind::serial, engine::RunnerKind::lanes}) {
    config::TrainConfig c = growing(("looked_at_" + std::string(to_string(runner))).c_str());
    c.runner = runner;
    c.summary_every = 2;
    c.eval_every = 0.125;
    c.checkpoint_every = 2;
    c.check_every = 3;
    c.graph_steps = 3;
    c.trace = {3, 6};
    const auto state = start(c);
    run(*state);
    EXPECT_EQ(rows(*state), wanted) << to_string(runner);
    if (world().rank() > 0) continue;
    int traces = 0;
    for (const auto& entry : std::filesystem::directory_iterator(c.run_dir + "/trace"))
      traces += entry.path().extension() == ".perfetto-trace" ? 1 : 0;
    EXPECT_EQ(traces, 3) << "one for the steps of each size";
    const report::SummaryHistory history = report::SummaryHistory::read(c.run_dir + "/summaries.h5");
    EXPECT_EQ(history.images().extent, (Extent{12, 12, 3}));  // of the first step
    EXPECT_EQ(history.images().count(), static_cast<std::size_t>(step::kept_images(state->plan)));
    std::uint64_t biases = 0;
    for (const auto& [group, points] : history.series()) {
      if (group.find("classifier/biases") == std::string::npos) continue;
      for (const auto& point : points) {
        biases += 1;
        EXPECT_EQ(std::accumulate(std::begin(point.counts.buckets), std::end(point.counts.buckets),
                                  std::uint64_t{0}),
                  10u)
            << group << ", step " << point.step;
      }
    }
    EXPECT_EQ(biases, 2u * 4u) << "variables and gradients of steps 1, 2, 4 and 6";
  }
}

/// A graph of several steps would run into the next size.
TEST_F(ImageSizes, BreakLaunchesOfSeveralSteps) {
  const auto state = start(growing("unbroken"));
  const step::Plan& plan = state->plan;
  EXPECT_TRUE(step::is_unbroken(plan, {0, 3}));
  EXPECT_FALSE(step::is_unbroken(plan, {0, 4}));
  EXPECT_FALSE(step::is_unbroken(plan, {2, 4}));
  EXPECT_TRUE(step::is_unbroken(plan, {3, 5}));
  EXPECT_FALSE(step::is_unbroken(plan, {4, 6}));
  EXPECT_EQ(step::program_end(plan, 0), 3u);
  EXPECT_EQ(step::program_end(plan, 3), 5u);
  EXPECT_EQ(step::program_end(plan, 5), 7u);
  const double images = 12.0;
  double sum = 0.0;
  for (const auto& [side, steps] : {std::pair{12, 3}, {20, 2}, {32, 2}})
    sum += images * steps * model::training_flops(model::make_model("resnet20", {side, side, 3}, 10)).nominal;
  EXPECT_DOUBLE_EQ(step::training_flops(plan).nominal, sum);
}

/// Padding must be where the update expects it, and the averages where the evaluation reads them.
TEST_F(ImageSizes, ShareOneLayoutWithAnyMethodOfConvolution) {
  for (const char* const model : {"resnet20", "fast94"}) {
    for (const auto conv :
         {engine::ConvMethod::automatic, engine::ConvMethod::direct, engine::ConvMethod::fft}) {
      config::TrainConfig c = growing((std::string(model) + std::string(to_string(conv))).c_str());
      c.model = model;
      c.conv = conv;
      c.steps = 2;
      c.image_sizes = {{11, 0.125}, {27}};
      const auto state = start(c);
      for (const auto& [size, tower] : state->device.smaller)
        EXPECT_EQ(tower->layout().floats, state->device.layout.floats) << model << ' ' << size;
      if (conv == engine::ConvMethod::automatic) run(*state);
    }
  }
}

TEST_F(ImageSizes, AreRefusedForANetworkWhoseParametersDependOnThem) {
  config::TrainConfig c = growing("refused");
  c.model = "tutorial";
  expect_agreed(ErrorKind::usage,
                "--image-size: model tutorial cannot be trained with images of 12 pixels: the parameters of "
                "local3/weights depend on the size; give --image-size full, or other sizes",
                [&] { start(c); });
  c.model = "fast94";
  c.image_sizes = {{16, 0.5}, {8, 0.5}, {4, 0.5}, {32}};
  expect_agreed(ErrorKind::usage,
                "--image-size: model fast94 cannot be trained with images of 8 pixels: ", [&] { start(c); });
}

TEST_F(ImageSizes, BelongToTheRun) {
  config::TrainConfig c = growing("identity");
  run(c);
  c.steps = 9;
  c.image_sizes.clear();
  expect_agreed(ErrorKind::checkpoint, "its --image-size is 12x0.375,20x0.25,32, this one's is full",
                [&] { start(c); });
  c.image_sizes = {{24}};
  c.allow_change = {"image-size"};
  run(c);
}

}  // namespace
}  // namespace cifar_mpi::train
