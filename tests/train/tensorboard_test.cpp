#include <cmath>
#include <filesystem>
#include <string>

#include "cifar_mpi/run/run_directory.hpp"
#include "support/event_reader.hpp"
#include "train/run_facts.hpp"
#include "train/run_fixture.hpp"

/// The files of a run for TensorBoard.
namespace cifar_mpi::train {
namespace {

using test::event_files;
using test::Lines;
using test::Reader;
using test::steps_of;

class TensorBoard : public RunTest {
 protected:
  /// Six steps, logged one by one.
  config::TrainConfig six_steps() const {
    config::TrainConfig c = config();
    c.steps = 6;
    c.log_every = 1;
    c.check_every = 1;
    c.checkpoint_every = 2;
    c.eval_every = 3.0 / 8.0;
    return c;
  }
};

TEST_F(TensorBoard, ChangesNoBitOfTheRunAndIsWrittenByOneRank) {
  config::TrainConfig c = six_steps();
  run(c);
  EXPECT_EQ(event_files(c.run_dir + "/tensorboard").size(), 1u);
  config::TrainConfig without = c;
  without.run_dir = path("without");
  without.tensorboard = false;
  run(without);
  EXPECT_FALSE(std::filesystem::exists(without.run_dir + "/tensorboard"));
  expect_same_state(saved(c, 6), saved(without, 6));
}

TEST_F(TensorBoard, HoldsUpNoRunWhereItCannotBeWritten) {
  config::TrainConfig c = six_steps();
  on_rank_zero([&] {
    std::filesystem::create_directories(c.run_dir);
    write_file(c.run_dir + "/tensorboard", "mine");
  });
  run(c);
  EXPECT_TRUE(std::filesystem::exists(run::checkpoint_path(c.run_dir, 6)));
  EXPECT_EQ(read_file(c.run_dir + "/tensorboard"), "mine");
}

TEST_F(TensorBoard, ShowsTheTermsOfTheLossThatTheRecordsHave) {
  config::TrainConfig c = six_steps();
  c.clip_norm = 100.0;
  const auto state = start(c);
  double decay_of_local3 = 0.0;
  for (const run::NamedTensor& tensor : evaluation::initial_tensors(state->plan.network.params, c.seed)) {
    if (tensor.name != "local3/weights") continue;
    for (const float w : tensor.values)
      decay_of_local3 += 0.5 * static_cast<double>(0.004f) * std::pow(w, 2.0);
  }
  run(*state);
  const Lines lines = test::lines_of(c.run_dir + "/tensorboard", Reader::python);
  const auto value = [&](const char* tag, std::size_t step) {
    return static_cast<double>(lines.at(tag).at(step).second);
  };
  for (const char* tag : {"cross_entropy (raw)", "total_loss", "local4/weight_loss (raw)", "learning_rate"})
    EXPECT_EQ(steps_of(lines.at(tag)), "1 2 3 4 5 6") << tag;
  EXPECT_EQ(steps_of(lines.at("Precision @ 1")), "3 6");
  EXPECT_FALSE(lines.contains("conv1/weight_loss (raw)")) << "it has no decay";
  constexpr double kRounding = 4 * 0x1.0p-24;  // values are floats
  EXPECT_NEAR(value("local3/weight_loss (raw)", 0), decay_of_local3, kRounding * decay_of_local3);
  for (std::size_t i = 0; i < 6; ++i) {
    const engine::StepRecord& record = state->blocks.records[i];
    EXPECT_FLOAT_EQ(lines.at("cross_entropy (raw)").at(i).second, static_cast<float>(record.cross_entropy));
    EXPECT_FLOAT_EQ(lines.at("gradient_norm").at(i).second, static_cast<float>(record.gradient_norm));
    const double layers = value("local3/weight_loss (raw)", i) + value("local4/weight_loss (raw)", i);
    EXPECT_NEAR(layers, record.decay_term, kRounding * record.decay_term) << "step " << i + 1;
    EXPECT_NEAR(value("total_loss (raw)", i), record.cross_entropy + layers, kRounding * 10.0);
  }
}

TEST_F(TensorBoard, ShowsARunThatIsKilledAndResumedAsOneLine) {
  config::TrainConfig c = six_steps();
  run(c);
  const std::string folder = c.run_dir + "/tensorboard";
  const Lines whole = test::lines_of(folder, Reader::python);
  on_rank_zero([&] {  // as if killed in step 5, in the middle of an event
    for (const std::uint64_t step : {4u, 6u}) std::filesystem::remove(run::checkpoint_path(c.run_dir, step));
    const std::string file = event_files(folder).at(0);
    std::filesystem::resize_file(file, std::filesystem::file_size(file) - 9);
  });
  run(c);
  EXPECT_EQ(event_files(folder).size(), 2u);
  for (const Reader reader : {Reader::python, Reader::rust}) {
    const Lines resumed = test::lines_of(folder, reader);
    EXPECT_EQ(resumed.size(), whole.size());
    for (const auto& [tag, points] : whole) {
      if (tag.starts_with("compute_ms/")) continue;  // unknown for the first step of a start
      EXPECT_EQ(steps_of(resumed.at(tag)), steps_of(points)) << tag;
      const bool repeats =
          tag.ends_with(" (raw)") || tag == "Precision @ 1";  // averages restart, speeds differ
      if (!repeats) continue;
      EXPECT_EQ(resumed.at(tag), points) << tag;
    }
  }
}

TEST_F(TensorBoard, KnowsTheHyperparametersByTheNamesOfTheOptions) {
  const auto state = start(config());
  const RunFingerprint chosen = hparams(state->plan);
  const auto value = [&](const char* item) {
    const std::string* const found = find_item(chosen, item);
    return found == nullptr ? std::string("none") : *found;
  };
  EXPECT_EQ(value("model"), "tutorial");
  EXPECT_EQ(value("lr"), "0.1");
  EXPECT_EQ(value("global-batch"), "12");
  EXPECT_EQ(value("precision"), "fp32");
  EXPECT_EQ(value("ranks"), std::to_string(world().size()));
  for (const auto& [item, text] : chosen) EXPECT_FALSE(item.starts_with("dataset")) << item;
}

TEST_F(TensorBoard, HasNoDecayInTheLossWhereTheOptimizerHasItsOwn) {
  config::TrainConfig c = config();
  c.optimizer.kind = optim::OptimizerKind::adamw;
  const auto adamw = start(c);
  EXPECT_TRUE(weight_losses(adamw->plan, adamw->device, adamw->blocks.state).empty());
}

}  // namespace
}  // namespace cifar_mpi::train
