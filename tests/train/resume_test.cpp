#include "train/resume.hpp"

#include <fstream>
#include <map>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/data/fingerprint.hpp"
#include "cifar_mpi/run/run_directory.hpp"
#include "train/run_fixture.hpp"

namespace cifar_mpi::train {
namespace {

using data::Shuffle;

// What is of the same run.

TEST(RequireSameRun, NamesTheItemThatDiffers) {
  const RunFingerprint run{{"model", "tutorial"}, {"--seed", "1"}, {"--lr", "0.1"}};
  const auto compare = [](const RunFingerprint& found, const RunFingerprint& wanted) {
    require_same_run(found, wanted, "some/file.h5", TrainConfig(), 2);
  };
  EXPECT_NO_THROW(compare(run, run));
  EXPECT_NO_THROW(compare({run[2], run[0], run[1]}, run));
  RunFingerprint other = run;
  other[1].second = "7";
  expect_error(ErrorKind::checkpoint,
               {"some/file.h5", "its --seed is 7, this one's is 1", "choose another --run-dir"},
               [&] { compare(other, run); });
  expect_error(ErrorKind::checkpoint, {"--lr is not recorded, this one's is 0.1"}, [&] {
    compare({run[0], run[1]}, run);
  });
  // What only the checkpoint has was an option of that run: --micro-shards with --reproducible.
  RunFingerprint more = run;
  more.emplace_back("--micro-shards", "8");
  expect_error(ErrorKind::checkpoint, {"--micro-shards is 8, this one's is not set"},
               [&] { compare(more, run); });
}

TEST(RequireSameRun, SuggestsTheGlobalBatchWhereOnlyTheRanksChanged) {
  const auto text = [](const TrainConfig& config, int ranks) {
    try {
      require_same_run({{"--global-batch", "256"}}, {{"--global-batch", "512"}}, "file", config, ranks);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  TrainConfig config;
  EXPECT_NE(text(config, 4).find("give --global-batch 256 to go on with 4 ranks"), std::string::npos)
      << text(config, 4);
  EXPECT_NE(text(config, 3).find("start a number of ranks that divides 256 and give --global-batch 256"),
            std::string::npos)
      << text(config, 3);
  config.global_batch = 512;  // the user has chosen it: no advice to choose another
  EXPECT_EQ(text(config, 4).find("to go on"), std::string::npos) << text(config, 4);
}

// What may change, and what is said of it.

TEST(ChangedSettings, SaysOneLineForEach) {
  const RunFingerprint then{
      {"precision", "bf16"}, {"threads", "2"}, {"ranks", "4"}, {"all-reduce", "ring"}, {"bucket MiB", "1"}};
  EXPECT_TRUE(changed_settings(then, then).empty());
  RunFingerprint now = then;
  now[0].second = "fp32";
  now[3].second = "window";
  const std::vector<std::string> notes = changed_settings(then, now);
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_EQ(
      notes[0],
      "note: precision is fp32, the checkpoint was made with bf16: the run goes on, but not to the same "
      "bits");
  EXPECT_TRUE(notes[1].starts_with("note: all-reduce is window, the checkpoint was made with ring:"));
}

TEST(ChangedSettings, IgnoresHowNothingIsSummed) {
  RunFingerprint then{{"ranks", "1"}, {"all-reduce", "ring"}, {"bucket MiB", "1"}};
  RunFingerprint now{{"ranks", "1"}, {"all-reduce", "mpi"}, {"bucket MiB", "4"}};
  EXPECT_TRUE(changed_settings(then, now).empty());
  then[0].second = now[0].second = "2";
  EXPECT_EQ(changed_settings(then, now).size(), 2u);
  now[0].second = "1";
  EXPECT_EQ(changed_settings(then, now).size(), 3u);
}

TEST(ChangedKernels, NamesTheFirstAndCountsTheOthers) {
  EXPECT_EQ(changed_kernels("a: 1\nb: 2\n", "a: 1\nb: 2\n"), "");
  EXPECT_EQ(changed_kernels("a: 1\nb: 2\nc: 3\n", "a: 1\nb: 5\nc: 6\n"),
            "note: the kernel plan has \"b: 5\", the checkpoint was made with \"b: 2\" (and 1 more): the run "
            "goes on, but not to the same bits");
  EXPECT_NE(
      changed_kernels("a: 1\n", "a: 1\nb: 2").find("has \"b: 2\", the checkpoint was made with \"nothing\":"),
      std::string::npos);
}

// Another number of ranks.

struct Leg {
  int ranks = 1;
  std::uint64_t until = 0;  ///< step
};

/// How often each sample comes up in each pass of a run whose number of ranks changes, pass by pass.
std::map<std::uint64_t, std::map<std::uint64_t, int>> visits(Shuffle shuffle, std::uint64_t samples,
                                                             std::uint64_t global_batch,
                                                             const std::vector<Leg>& legs) {
  std::map<std::uint64_t, std::map<std::uint64_t, int>> counts;
  std::uint64_t step = 0;
  for (const Leg& leg : legs) {
    const auto batch = global_batch / static_cast<std::uint64_t>(leg.ranks);
    for (; step < leg.until; ++step) {
      for (int rank = 0; rank < leg.ranks; ++rank) {
        const data::SampleOrder order(shuffle, 11, samples, rank, leg.ranks, static_cast<int>(batch));
        for (std::uint64_t i = 0; i < batch; ++i) {
          const data::SampleRef sample = order.at(step, i);
          ++counts[sample.pass][sample.id];
        }
      }
    }
  }
  return counts;
}

TEST(AnotherNumberOfRanks, RepeatsAndSkipsNothingInTheGlobalOrder) {
  const std::vector<Leg> changing{{4, 17}, {3, 31}, {2, 40}, {4, 60}};
  for (const std::uint64_t samples : {96u, 103u}) {
    EXPECT_EQ(visits(Shuffle::global, samples, 12, changing),
              visits(Shuffle::global, samples, 12, {{1, 60}}));
  }
  // The comparison can fail: it does for shards.
  EXPECT_NE(visits(Shuffle::shard, 96, 12, changing), visits(Shuffle::shard, 96, 12, {{4, 60}}));
}

TEST(AnotherNumberOfRanks, IsWholeFromTheNextPassOnInShards) {
  constexpr std::uint64_t kBatch = 12;
  for (const std::uint64_t samples : {96u, 103u, 100u}) {
    for (const auto& [then, now] : {std::pair{4, 3}, {3, 2}, {2, 4}, {1, 4}, {4, 1}}) {
      for (const std::uint64_t at : {5u, 8u, 16u, 17u, 200u}) {
        SCOPED_TRACE(concat(samples, " samples, ", then, " to ", now, " ranks after step ", at));
        const ShardChange change = shard_change(samples, kBatch, at, then, now);
        const std::uint64_t end = change.step + 3 * (samples / kBatch + 1);
        const auto counts = visits(Shuffle::shard, samples, kBatch, {{then, at}, {now, end}});
        for (const std::uint64_t pass : {change.whole_pass, change.whole_pass + 1}) {
          ASSERT_EQ(counts.at(pass).size(), samples) << "pass " << pass;
          for (const auto& [sample, count] : counts.at(pass)) EXPECT_EQ(count, 1) << sample;
        }
        // After that step no rank takes a sample of an earlier pass, and before it one does.
        const auto earlier = [&](std::uint64_t step) {
          return data::SampleOrder(Shuffle::shard, 11, samples, 0, now, kBatch / now).at(step, 0).pass;
        };
        for (int rank = 0; rank < now; ++rank) {
          const data::SampleOrder order(Shuffle::shard, 11, samples, rank, now,
                                        static_cast<int>(kBatch) / now);
          EXPECT_GE(order.at(change.step, 0).pass, change.whole_pass);
        }
        if (change.step > at) {
          bool any = earlier(change.step - 1) < change.whole_pass;
          for (int rank = 1; rank < now; ++rank) {
            const data::SampleOrder order(Shuffle::shard, 11, samples, rank, now,
                                          static_cast<int>(kBatch) / now);
            any = any || order.at(change.step - 1, 0).pass < change.whole_pass;
          }
          EXPECT_TRUE(any);
        }
        if (change.seamless) {
          EXPECT_EQ(counts.at(change.whole_pass - 1).size(), samples);
        }
      }
    }
  }
  EXPECT_TRUE(shard_change(96, kBatch, 8, 4, 3).seamless);  // one pass is 8 steps
  EXPECT_FALSE(shard_change(96, kBatch, 9, 4, 3).seamless);
  EXPECT_FALSE(shard_change(103, kBatch, 103, 1, 4).seamless);  // shards of 25 and 26: never at one end
}

// Which checkpoint.

/// Copies a file under another name of the run directory, so that it looks like a checkpoint of that step.
void copy_as_step(const std::string& from, const std::string& run_dir, std::uint64_t step) {
  std::filesystem::copy_file(from, run::checkpoint_path(run_dir, step),
                             std::filesystem::copy_options::overwrite_existing);
}

class Resume : public RunTest {
 protected:
  std::vector<std::string> metrics(const std::string& run_dir) {
    world().barrier();
    std::ifstream file(run_dir + "/metrics.jsonl");
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
};

TEST_F(Resume, TakesTheNewestThatIsOfTheStepItsNameSays) {
  TrainConfig c = config();
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
  EXPECT_EQ(state->progress.step, 4u);
  on_rank_zero([&] {
    EXPECT_EQ(read_file(run::checkpoint_path(c.run_dir, 9)), before) << "a skipped file is left alone";
    EXPECT_TRUE(std::filesystem::exists(run::checkpoint_path(c.run_dir, 8)));
    EXPECT_TRUE(std::filesystem::exists(c.run_dir + "/checkpoints/step_7.h5"));
    for (const std::uint64_t step : {2u, 4u}) std::filesystem::remove(run::checkpoint_path(c.run_dir, step));
  });
  expect_agreed(ErrorKind::checkpoint,
                "holds no checkpoint that can be read; the newest: ", [&] { start(c); });
}

TEST_F(Resume, GoesOnFromANamedCheckpointButNotInFrontOfLaterOnes) {
  TrainConfig c = config();
  c.checkpoint_every = 2;
  run(c);
  TrainConfig from = config();
  from.resume = run::checkpoint_path(c.run_dir, 2);
  expect_agreed(ErrorKind::checkpoint, "step_000000004.h5 is of a later step than", [&] { start(from); });
  from.run_dir = path("branch");
  EXPECT_EQ(start(from)->progress.step, 2u);
  from.resume = path("nowhere.h5");
  expect_agreed(ErrorKind::checkpoint, "nowhere.h5", [&] { start(from); });
}

TEST_F(Resume, RefusesOtherImagesAndLabelsOfTheSameShape) {
  TrainConfig c = config();
  run(c);
  const auto expect_refused = [&](const char* what, const auto& change) {
    SCOPED_TRACE(what);
    TrainConfig other = c;
    other.data = other_data(change);
    expect_agreed(ErrorKind::checkpoint, what, [&] { start(other); });
  };
  // Far from the images that ranks compare with each other, in the part of the last rank.
  expect_refused("its dataset content is", [](auto&, data::Samples& train, auto&) {
    train.images[(kTrainSamples - 2) * 3072 + 5] ^= 1;
  });
  expect_refused("its dataset content is",
                 [](auto&, data::Samples& train, auto&) { train.labels[1] = train.labels[1] == 0; });
  expect_refused("its dataset label names is", [](data::DatasetInfo& info, auto&, auto&) {
    std::swap(info.label_names[0], info.label_names[1]);
  });
  TrainConfig same = c;
  same.data = other_data([](data::DatasetInfo& info, auto&, auto&) { info.source = "copied"; });
  EXPECT_NO_THROW(start(same));
}

TEST_F(Resume, FingerprintsTheSetAlikeForAnyRanksAndOrder) {
  const data::DatasetFile file(path("data.h5"));
  const data::Samples all = file.read(data::Split::train, {0, kTrainSamples});
  const std::string wanted =
      format("%016llx", static_cast<unsigned long long>(data::fingerprint(all.images, all.labels, 0)));
  for (const Shuffle shuffle : {Shuffle::global, Shuffle::shard}) {
    TrainConfig c = config();
    c.shuffle = shuffle;
    c.run_dir = path(std::string("run_") + std::string(to_string(shuffle)));
    EXPECT_EQ(start(c)->progress.identity.back(),
              (std::pair<std::string, std::string>{"dataset content", wanted}));
  }
}

TEST_F(Resume, TakesOverWhatIsLeftAutomatic) {
  TrainConfig c = config();
  c.precision = engine::Precision::fp32;
  c.all_reduce = "mpi";
  run(c);
  world().barrier();
  TrainConfig automatic = config();
  automatic.precision = engine::Precision::automatic;
  automatic.threads = 0;
  const auto state = start(automatic);
  EXPECT_EQ(state->config.precision, engine::Precision::fp32);
  EXPECT_EQ(state->config.threads, 1);
  EXPECT_EQ(state->collective->name(), "mpi");
  EXPECT_EQ(state->progress.resolved,
            run::read_checkpoint(run::checkpoint_path(c.run_dir, 4)).progress.resolved);
}

TEST_F(Resume, AdoptsThreadsAndAllReduceOnlyOnTheSameNumberOfRanks) {
  SessionState state(config(), world(), Log(1), stop_);
  const auto adopted = [&](int ranks, TrainConfig asked) {
    state.config = asked;
    state.adopted_all_reduce = state.adopted_precision = false;
    adopt(state, {{"precision", "bf16"},
                  {"threads", "3"},
                  {"ranks", std::to_string(ranks)},
                  {"all-reduce", "ring"},
                  {"nccl algorithm", "tree"}});
    return state.config;
  };
  TrainConfig automatic = config();
  automatic.precision = engine::Precision::automatic;
  automatic.threads = 0;
  const TrainConfig same = adopted(world().size(), automatic);
  EXPECT_EQ(same.precision, engine::Precision::bf16);
  EXPECT_EQ(same.threads, 3);
  EXPECT_EQ(same.all_reduce, "ring");
  EXPECT_EQ(same.nccl_algorithm, "tree");
  EXPECT_TRUE(state.adopted_precision && state.adopted_all_reduce);
  const TrainConfig other = adopted(world().size() + 1, automatic);
  EXPECT_EQ(other.precision, engine::Precision::bf16);
  EXPECT_EQ(other.threads, 0);
  EXPECT_EQ(other.all_reduce, "auto");
  EXPECT_EQ(other.nccl_algorithm, "auto");
  TrainConfig chosen = config();
  chosen.precision = engine::Precision::fp32;
  chosen.threads = 1;
  chosen.all_reduce = "mpi";
  const TrainConfig kept = adopted(world().size(), chosen);
  EXPECT_EQ(kept.precision, engine::Precision::fp32);
  EXPECT_EQ(kept.threads, 1);
  EXPECT_EQ(kept.all_reduce, "mpi");
  EXPECT_FALSE(state.adopted_precision || state.adopted_all_reduce);
}

TEST_F(Resume, ResumesToTheSameBitsInShardsAndWithDistortions) {
  TrainConfig straight = config();
  straight.shuffle = Shuffle::shard;
  straight.steps = 11;
  straight.run_dir = path("straight");
  run(straight);
  TrainConfig parts = straight;
  parts.run_dir = path("parts");
  for (const std::int64_t steps : {5, 9, 11}) {
    parts.steps = steps;
    run(parts);
  }
  world().barrier();
  const run::Checkpoint a = run::read_checkpoint(run::checkpoint_path(straight.run_dir, 11));
  const run::Checkpoint b = run::read_checkpoint(run::checkpoint_path(parts.run_dir, 11));
  expect_same_tensors(a.model, b.model);
  expect_same_tensors(a.ema, b.ema);
}

/// The lines without what depends on the clock.
std::vector<std::string> without_times(std::vector<std::string> lines) {
  for (std::string& line : lines) {
    if (const std::size_t at = line.find(",\"images_per_second\""); at != std::string::npos) line.resize(at);
  }
  return lines;
}

TEST_F(Resume, CutsTheMetricsBackWithoutDuplicateOrGap) {
  TrainConfig c = config();
  c.steps = 9;
  c.log_every = 1;
  c.checkpoint_every = 2;
  c.eval_every = 3.0 / 8.0;  // every three steps
  c.run_dir = path("straight");
  run(c);
  const std::vector<std::string> wanted = without_times(metrics(c.run_dir));
  ASSERT_EQ(wanted.size(), 12u);  // 9 steps and the evaluations of steps 3, 6, 9
  for (std::uint64_t killed = 1; killed <= 9; ++killed) {
    // What a kill after that step leaves: the lines up to it, a torn one, and the checkpoints so far.
    TrainConfig again = c;
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
    std::vector<std::string> lines = without_times(metrics(again.run_dir));
    for (std::string& line : lines) {
      if (line.ends_with('}') && line.find("test_accuracy") == std::string::npos) line.pop_back();
    }
    EXPECT_EQ(lines, wanted) << "killed after step " << killed;
    world().barrier();
  }
}

}  // namespace
}  // namespace cifar_mpi::train
