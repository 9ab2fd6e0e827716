#include "run/resume.hpp"

#include <fmt/core.h>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/config/options.hpp"
#include "cifar_mpi/data/fingerprint.hpp"
#include "cifar_mpi/run/run_directory.hpp"
#include "cpu/simd.hpp"
#include "train/run_fixture.hpp"
#include "train/session_state.hpp"

namespace cifar_mpi::train {
namespace {

using data::Shuffle;

/// Copies a file under another name of the run directory, so that it looks like a checkpoint of that step.
void copy_as_step(const std::string& from, const std::string& run_dir, std::uint64_t step) {
  std::filesystem::copy_file(from, run::checkpoint_path(run_dir, step),
                             std::filesystem::copy_options::overwrite_existing);
}

class Resume : public RunTest {
 protected:
  /// The lines about steps and evaluations.
  static std::vector<std::string> metrics(const config::TrainConfig& config) {
    return metrics_with(config, "{\"step\":");
  }
};

TEST_F(Resume, TakesTheNewestThatIsOfTheStepItsNameSays) {
  config::TrainConfig c = config();
  c.checkpoint_every = 2;
  run(c);
  std::string before;
  on_rank_zero([&] {
    copy_as_step(run::checkpoint_path(c.run_dir, 2), c.run_dir, 9);  // a half-renamed one, say
    copy_as_step(run::checkpoint_path(c.run_dir, 4), c.run_dir, 8);
    std::filesystem::resize_file(run::checkpoint_path(c.run_dir, 8), 5000);
    write_file(c.run_dir + "/checkpoints/step_7.h5", "not a name of ours");
    write_file(c.run_dir + "/checkpoints/step_000000011.h5.123-0.tmp", "torn");
    before = read_file(run::checkpoint_path(c.run_dir, 9));
  });
  const auto state = start(c);
  EXPECT_EQ(state->plan.progress.step, 4u);
  on_rank_zero([&] {
    EXPECT_EQ(read_file(run::checkpoint_path(c.run_dir, 9)), before) << "a skipped file is left alone";
    EXPECT_TRUE(std::filesystem::exists(run::checkpoint_path(c.run_dir, 8)));
    EXPECT_TRUE(std::filesystem::exists(c.run_dir + "/checkpoints/step_7.h5"));
    for (const std::uint64_t step : {2u, 4u}) std::filesystem::remove(run::checkpoint_path(c.run_dir, step));
  });
  expect_agreed(ErrorKind::checkpoint,
                "holds no checkpoint that can be read; the newest: ", [&] { start(c); });
  expect_agreed(ErrorKind::checkpoint, "; to start over, remove the directory or choose another --run-dir",
                [&] { start(c); });
}

TEST_F(Resume, DrawsNoInitialWeights) {
  const config::TrainConfig c = config();
  const auto state = start(c);
  run(*state);
  const step::Plan& plan = state->plan;
  run::StartRequest asked;
  asked.run = &opened(c);
  asked.fingerprint = config::run_fingerprint(plan.config, plan.sizes, plan.info);
  asked.optimizer = plan.config.optimizer.kind;
  const auto initial = []() -> std::vector<run::NamedTensor> { throw std::logic_error("draws weights"); };
  EXPECT_TRUE(run::find_start(asked, initial, plan.network.params, world(), Log()).resumed);
  config::TrainConfig other = c;
  other.run_dir = path("other");
  asked.run = &opened(other);
  EXPECT_THROW(run::find_start(asked, initial, plan.network.params, world(), Log()), std::logic_error);
}

TEST_F(Resume, TakesWhatMayChangeAndRecordsIt) {
  config::TrainConfig c = config();
  run(c);
  c.steps = 6;
  c.lr *= 0.5;
  expect_agreed(ErrorKind::checkpoint, "--allow-change lr to resume", [&] { start(c); });
  c.allow_change = {"lr"};
  run(c);
  c.steps = 7;
  c.seed = 9;
  expect_agreed(ErrorKind::checkpoint, "its --seed is", [&] { start(c); });
  c.seed = config().seed;
  run(c);
  const std::string changed =
      concat("step 4: --lr ", config::exact(2.0 * c.lr), " -> ", config::exact(c.lr), '\n');
  on_rank_zero([&] {
    const run::Checkpoint found = saved(c, 7);
    EXPECT_EQ(found.provenance.changes, changed);
    EXPECT_EQ(*find_item(found.progress.identity, "--lr"), config::exact(c.lr));
    EXPECT_NE(read_file(c.run_dir + "/config.toml").find("# changed at " + changed), std::string::npos);
  });
}

TEST_F(Resume, SkipsADamagedNewestCheckpointOfANamedRun) {
  config::TrainConfig c = config();
  c.checkpoint_every = 2;
  run(c);
  on_rank_zero([&] { std::filesystem::resize_file(run::checkpoint_path(c.run_dir, 4), 5000); });
  config::TrainConfig other = config();
  other.run_dir = path("other");
  other.resume = c.run_dir;
  EXPECT_EQ(start(other)->plan.progress.step, 2u);
  other.run_dir = path("third");
  other.resume = "auto";
  other.init_from = c.run_dir;
  EXPECT_NE(start(other)->plan.initialized_from.find("step_000000002.h5, step 2"), std::string::npos);
  c.resume = c.run_dir;
  EXPECT_EQ(start(c)->plan.progress.step, 2u);
}

TEST_F(Resume, GoesOnFromANamedCheckpointButNotInFrontOfLaterOnes) {
  config::TrainConfig c = config();
  c.checkpoint_every = 2;
  run(c);
  config::TrainConfig from = config();
  from.resume = run::checkpoint_path(c.run_dir, 2);
  expect_agreed(ErrorKind::checkpoint, "step_000000004.h5 is of a later step than", [&] { start(from); });
  from.run_dir = path("branch");
  EXPECT_EQ(start(from)->plan.progress.step, 2u);
  from.resume = path("nowhere.h5");
  expect_agreed(ErrorKind::checkpoint, "nowhere.h5", [&] { start(from); });
}

TEST_F(Resume, RefusesOtherImagesAndLabelsOfTheSameShape) {
  config::TrainConfig c = config();
  run(c);
  const auto expect_refused = [&](const char* what, const auto& change) {
    SCOPED_TRACE(what);
    config::TrainConfig other = c;
    other.data = other_data(change);
    expect_agreed(ErrorKind::checkpoint, what, [&] { start(other); });
  };
  // Far from the images that ranks compare with each other, in the part of the last rank.
  expect_refused("its dataset content is", [](auto&, data::Samples& train, auto&) {
    train.images[(kTrainSamples - 2) * 3072 + 5] ^= 1;
  });
  expect_refused("its dataset content is",
                 [](auto&, data::Samples& train, auto&) { train.labels[1] = train.labels[1] == 0; });
  expect_refused("its dataset label names are", [](data::DatasetInfo& info, auto&, auto&) {
    std::swap(info.label_names[0], info.label_names[1]);
  });
  config::TrainConfig same = c;
  same.data = other_data([](data::DatasetInfo& info, auto&, auto&) { info.source = "copied"; });
  EXPECT_NO_THROW(start(same));
}

TEST_F(Resume, FingerprintsTheSetAlikeForAnyRanksAndOrder) {
  const data::DatasetFile file(path("data.h5"));
  const data::Samples all = file.read(data::Split::train, {0, kTrainSamples});
  const std::string wanted = fmt::format("{:016x}", data::fingerprint(all.images, all.labels, 0));
  for (const Shuffle shuffle : {Shuffle::global, Shuffle::shard}) {
    config::TrainConfig c = config();
    c.shuffle = shuffle;
    c.run_dir = path(std::string("run_") + std::string(to_string(shuffle)));
    EXPECT_EQ(start(c)->plan.progress.identity.back(),
              (std::pair<std::string, std::string>{"dataset content", wanted}));
  }
}

TEST_F(Resume, TakesOverWhatIsLeftAutomatic) {
  config::TrainConfig c = config();
  c.precision = engine::Precision::fp32;
  c.all_reduce = "mpi";
  run(c);
  config::TrainConfig automatic = config();
  automatic.precision = engine::Precision::automatic;
  automatic.threads = 0;
  const auto state = start(automatic);
  EXPECT_EQ(state->plan.config.precision, engine::Precision::fp32);
  EXPECT_EQ(state->plan.config.threads, 1);
  EXPECT_EQ(state->blocks.update->name(), "mpi");
  EXPECT_EQ(state->plan.progress.resolved, saved(c, 4).progress.resolved);
}

TEST_F(Resume, RecordsThatNcclMayUseNvls) {
  config::TrainConfig c = config();
  EXPECT_EQ(find_item(start(c)->plan.progress.resolved, "nccl nvls"), nullptr);
  c.nccl_nvls = true;
  const auto state = start(c);
  const std::string* const nvls = find_item(state->plan.progress.resolved, "nccl nvls");
  ASSERT_NE(nvls, nullptr);
  EXPECT_EQ(*nvls, "on");
}

TEST_F(Resume, AdoptsThreadsAndAllReduceOnlyOnTheSameNumberOfRanks) {
  step::Plan plan(config(), world(), Log(1));
  const auto adopted = [&](int ranks, config::TrainConfig asked) {
    plan.config = asked;
    adopt(plan, {{"precision", "bf16"},
                 {"conv", "fft"},
                 {"threads", "3"},
                 {"ranks", std::to_string(ranks)},
                 {"all-reduce", "ring"},
                 {"nccl algorithm", "tree"}});
    return plan.config;
  };
  config::TrainConfig automatic = config();
  automatic.precision = engine::Precision::automatic;
  automatic.threads = 0;
  const config::TrainConfig same = adopted(world().size(), automatic);
  EXPECT_EQ(same.precision, engine::Precision::bf16);
  EXPECT_EQ(same.conv, engine::ConvMethod::fft);
  EXPECT_EQ(same.threads, 3);
  EXPECT_EQ(same.all_reduce, "ring");
  EXPECT_EQ(same.nccl_algorithm, "tree");
  EXPECT_TRUE(plan.adopted.precision && plan.adopted.all_reduce);
  const config::TrainConfig other = adopted(world().size() + 1, automatic);
  EXPECT_EQ(other.precision, engine::Precision::bf16);
  EXPECT_EQ(other.conv, engine::ConvMethod::fft);
  EXPECT_EQ(other.threads, 0);
  EXPECT_EQ(other.all_reduce, "auto");
  EXPECT_EQ(other.nccl_algorithm, "auto");
  config::TrainConfig chosen = config();
  chosen.precision = engine::Precision::fp32;
  chosen.conv = engine::ConvMethod::direct;
  chosen.threads = 1;
  chosen.all_reduce = "mpi";
  const config::TrainConfig kept = adopted(world().size(), chosen);
  EXPECT_EQ(kept.precision, engine::Precision::fp32);
  EXPECT_EQ(kept.conv, engine::ConvMethod::direct);
  EXPECT_EQ(kept.threads, 1);
  EXPECT_EQ(kept.all_reduce, "mpi");
  EXPECT_FALSE(plan.adopted.precision || plan.adopted.all_reduce);
}

TEST_F(Resume, GoesOnWithDirectConvolutionsWhereNoneOtherWereKnown) {
  step::Plan plan(config(), world(), Log(1));
  adopt(plan, {{"precision", "fp32"}});
  EXPECT_EQ(plan.config.conv, engine::ConvMethod::direct);
}

TEST_F(Resume, SaysThatAnotherWayOfConvolutionsChangesBits) {
  config::TrainConfig c = config();
  c.conv = engine::ConvMethod::direct;
  run(c);
  config::TrainConfig other = config();
  other.conv = engine::ConvMethod::fft;
  const auto then = saved(c, 4).progress.resolved;
  const auto changed = run::changed_settings(then, start(other)->plan.progress.resolved);
  ASSERT_EQ(changed.size(), 1u);
  EXPECT_EQ(
      changed.front().note,
      "note: conv is fft, but the checkpoint was made with direct: the run continues with different bits");
}

TEST_F(Resume, BelievesNoSettingsThatNoRunHas) {
  run(config());
  const run::Checkpoint good = saved(config(), 4);
  const std::string forged = path("forged.h5");
  const auto refused = [&](const std::string& name, const std::string& value,
                           const std::vector<std::uint64_t>& batches = {}) {
    on_rank_zero([&] {
      run::Checkpoint other = good;
      other.progress.batches = batches;
      if (name == "step") other.progress.step = UINT64_MAX;
      for (auto& [key, text] : other.progress.resolved) {
        if (key == name) text = value;
      }
      run::write_checkpoint(forged, other);
    });
    config::TrainConfig c = config();
    c.run_dir = path("other");
    c.resume = forged;
    c.threads = 0;
    expect_agreed(ErrorKind::checkpoint, concat("its ", name, name == "step" ? " is " : " are ", value),
                  [&] { start(c); });
  };
  for (const char* threads : {"100000", "-1", "99999999999999999999", "two", ""}) refused("threads", threads);
  refused("conv threads", "-1");
  for (const char* ranks : {"0", "-2", "13", "2147483647", "x"}) refused("ranks", ranks);
  refused("ranks", "3", {4, 4});
  refused("step", "18446744073709551615");
}

TEST_F(Resume, KeepsTheConvolutionsOfTheFirstStartWithOtherThreads) {
  if (!cpu::has_avx2()) GTEST_SKIP() << "there is no choice without AVX2";
  config::TrainConfig c = config();
  c.model = "resnet20";
  c.augment = data::Augment::crop;
  c.batch_size = 96 / world().size();
  c.input_size = 32;  // transforms pay off
  c.steps = 1;
  run(c);
  const run::Checkpoint first = saved(c, 1);
  // So many threads that transforms pay off in no layer.
  c.resume = path("many.h5");
  on_rank_zero([&] {
    run::Checkpoint many = first;
    for (auto& [name, value] : many.progress.resolved) {
      if (name == "conv threads") value = "4096";
    }
    run::write_checkpoint(c.resume, many);
  });
  const auto transforms = [](const SessionState& state) {
    const std::string plan = state.device.tower->plan_text();
    return plan.find(": FFT of ") != std::string::npos || plan.find(": Winograd ") != std::string::npos;
  };
  const auto conv_threads = [](const SessionState& state) {
    return *find_item(state.plan.progress.resolved, "conv threads");
  };
  c.steps = 2;
  c.threads = 2;
  c.run_dir = path("other");
  const auto of_many = start(c);
  EXPECT_FALSE(transforms(*of_many));
  EXPECT_EQ(conv_threads(*of_many), "4096");
  c.resume = run::checkpoint_path(config().run_dir, 1);
  c.run_dir = path("third");
  const auto of_one = start(c);
  EXPECT_TRUE(transforms(*of_one));
  EXPECT_EQ(conv_threads(*of_one), "1");
  const auto changed = run::changed_settings(first.progress.resolved, of_one->plan.progress.resolved);
  ASSERT_EQ(changed.size(), 1u);
  EXPECT_EQ(changed.front().note,
            "note: threads is 2, but the checkpoint was made with 1: the run continues with different bits");
}

TEST_F(Resume, AdoptsNoNameThatIsNoChoice) {
  step::Plan plan(config(), world(), Log(1));
  const auto adopted = [&](bool reproducible) {
    plan.config = config();
    plan.config.reproducible = reproducible;
    adopt(plan, {{"precision", "int4"},
                 {"ranks", std::to_string(world().size())},
                 {"all-reduce", "ring"},
                 {"nccl algorithm", "/etc/passwd"}});
    return plan.config;
  };
  EXPECT_EQ(adopted(false).nccl_algorithm, "auto");
  EXPECT_EQ(adopted(false).all_reduce, "ring");
  EXPECT_EQ(adopted(true).all_reduce, "auto");
}

TEST_F(Resume, ResumesToTheSameBitsInShardsAndWithDistortions) {
  config::TrainConfig straight = config();
  straight.shuffle = Shuffle::shard;
  straight.steps = 11;
  straight.run_dir = path("straight");
  run(straight);
  config::TrainConfig parts = straight;
  parts.run_dir = path("parts");
  run_in_parts(parts, {5, 9, 11});
  expect_same_state(saved(straight, 11), saved(parts, 11));
}

/// The lines without what depends on the clock.
std::vector<std::string> without_times(std::vector<std::string> lines) {
  for (std::string& line : lines) {
    if (const std::size_t at = line.find(",\"images_per_second\""); at != std::string::npos) line.resize(at);
  }
  return lines;
}

TEST_F(Resume, CutsTheMetricsBackWithoutDuplicateOrGap) {
  config::TrainConfig c = config();
  c.steps = 9;
  c.log_every = 1;
  c.checkpoint_every = 2;
  c.eval_every = 3.0 / 8.0;  // every three steps
  c.run_dir = path("straight");
  run(c);
  const std::vector<std::string> wanted = without_times(metrics(c));
  ASSERT_EQ(wanted.size(), 12u);  // 9 steps and the evaluations of steps 3, 6, 9
  for (std::uint64_t killed = 1; killed <= 9; ++killed) {
    // The state that a kill after that step leaves: the lines up to it, a torn one, and the checkpoints so
    // far.
    config::TrainConfig again = c;
    again.run_dir = path(concat("killed_", killed));
    on_rank_zero([&] {
      std::filesystem::create_directories(again.run_dir + "/checkpoints");
      for (std::uint64_t step = 2; step <= std::min<std::uint64_t>(killed, 8); step += 2)
        copy_as_step(run::checkpoint_path(c.run_dir, step), again.run_dir, step);
      std::string left;
      for (const std::string& line : wanted) {
        if (std::stoull(line.substr(8)) <= killed) left += (line.ends_with('}') ? line : line + "}") + "\n";
      }
      write_file(again.run_dir + "/metrics.jsonl", left + "{\"step\":1,\"a\":{\"min\":1}");
    });
    run(again);
    std::vector<std::string> lines = without_times(metrics(again));
    for (std::string& line : lines) {
      if (line.ends_with('}') && line.find("test_accuracy") == std::string::npos) line.pop_back();
    }
    EXPECT_EQ(lines, wanted) << "killed after step " << killed;
  }
}

}  // namespace
}  // namespace cifar_mpi::train
