#include "run/resume.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "support/errors.hpp"

namespace cifar_mpi::run {
namespace {

using data::Shuffle;

// Changes that leave it the same run.

StartRequest asking(const RunFingerprint& fingerprint) {
  StartRequest asked;
  asked.fingerprint = fingerprint;
  return asked;
}

/// The changes that are allowed.
std::string compare(const RunFingerprint& found, const StartRequest& asked) {
  return require_same_run(found, asked, "some/file.h5", 1);
}

void expect_other(const RunFingerprint& found, const StartRequest& asked, const std::string& text) {
  expect_error(ErrorKind::checkpoint, {"some/file.h5", text}, [&] { compare(found, asked); });
}

TEST(RequireSameRun, NamesTheItemThatDiffers) {
  const RunFingerprint run{{"model", "tutorial"}, {"--seed", "1"}, {"--lr", "0.1"}};
  EXPECT_NO_THROW(compare(run, asking(run)));
  EXPECT_NO_THROW(compare({run[2], run[0], run[1]}, asking(run)));
  RunFingerprint other = run;
  other[1].second = "7";
  expect_other(other, asking(run), "its --seed is 7, this one's is 1");
  expect_other(other, asking(run), "choose another --run-dir, with --init-from some/file.h5");
  // Weights of another network cannot start this one.
  other = run;
  other[0].second = "resnet20";
  expect_other(
      other, asking(run),
      "its model is resnet20, this one's is tutorial; give the same options to resume, or choose another "
      "--run-dir; the weights of one model cannot start another");
  for (const std::string item : {"network input", "dataset image"}) {
    expect_other({{item, "8x8"}}, asking({{item, "12x12"}}),
                 "its " + item +
                     " is 8x8, this one's is 12x12; give the same options to resume, or choose another "
                     "--run-dir, with --init-from some/file.h5 to start from its weights if no layer has "
                     "another shape");
  }
  expect_other({{"dataset label names", "cat, dog"}}, asking({{"dataset label names", "dog, cat"}}),
               "its dataset label names are cat, dog, this one's are dog, cat; give the same options");
  expect_other({run[0], run[1]}, asking(run), "--lr is not recorded, this one's is 0.1");
  // An item that only the checkpoint has was an option of that run: --micro-shards with --reproducible.
  RunFingerprint more = run;
  more.emplace_back("--micro-shards", "8");
  expect_other(more, asking(run), "--micro-shards is 8, this one's is not set");
}

TEST(RequireSameRun, TakesWhatWasNotYetRecordedForWhatItWas) {
  const RunFingerprint before{{"model", "tutorial"}};
  StartRequest asked = asking({{"model", "tutorial"}, {"--schedule", "staircase"}});
  asked.unrecorded = {{"--schedule", "staircase"}};
  EXPECT_NO_THROW(compare(before, asked));
  asked.fingerprint[1].second = "cosine";
  expect_other(before, asked, "its --schedule is staircase, this one's is cosine");
  asked.fingerprint = before;
  expect_other({{"model", "tutorial"}, {"--schedule", "linear"}}, asked,
               "its --schedule is linear, this one's is staircase");
}

TEST(RequireSameRun, RefusesAnotherOptimizer) {
  const StartRequest asked = asking({{"--optimizer", "momentum"}, {"--momentum", "0.9"}});
  expect_other({{"--optimizer", "adamw"}, {"--beta1", "0.9"}}, asked,
               "its --optimizer is adamw, this one's is momentum");
  expect_other({{"--optimizer", "momentum"}, {"--momentum", "0.8"}}, asked,
               "its --momentum is 0.8, this one's is 0.9");
}

TEST(RequireSameRun, LetsWhatIsNamedDifferAndNamesWhatCouldBe) {
  StartRequest asked = asking({{"--seed", "1"}, {"--lr", "0.01"}, {"--final-lr-share", "0"}});
  asked.changeable = {"--lr", "--decay-at", "--final-lr-share"};
  const RunFingerprint found{{"--seed", "1"}, {"--lr", "0.1"}, {"--decay-at", "0.5"}};
  expect_other(
      found, asked,
      "its --lr is 0.1, this one's is 0.01; give the same options to resume, --allow-change lr to resume");
  asked.may_differ = asked.changeable;
  EXPECT_EQ(compare(found, asked),
            "--lr 0.1 -> 0.01, --final-lr-share not recorded -> 0, --decay-at 0.5 -> not set");
  asked.fingerprint[0].second = "2";
  expect_other(found, asked, "its --seed is 1, this one's is 2; give the same options to resume, or");
}

TEST(RequireSameRun, SaysWhichLengthARateWasMadeFor) {
  expect_other({{kLength, "640"}}, asking({{kLength, "1280"}}),
               "its length in steps is 640, this one's is 1280; its learning rate or its lookahead depends "
               "on it: give --steps 640");
}

TEST(RequireSameRun, SuggestsTheGlobalBatchWhereOnlyTheRanksChanged) {
  StartRequest asked = asking({{"--global-batch", "512"}});
  const auto text = [&](int ranks) {
    return refusal(ErrorKind::checkpoint, [&] {
      require_same_run({{"--global-batch", "256"}}, asked, "file", ranks);
    });
  };
  EXPECT_TRUE(
      contains(text(4), "times the ranks that make a step, here 4: give --global-batch 256 to resume"));
  EXPECT_TRUE(contains(text(3), "use a number of ranks that divides 256 and give --global-batch 256"));
  asked.global_batch_given = true;  // the user chose it, so no advice to choose another
  EXPECT_FALSE(contains(text(4), "--global-batch 256 to resume"));
}

// Settings that may change, and the notes about them.

TEST(ChangedSettings, SaysOneLineForEach) {
  const RunFingerprint then{
      {"precision", "bf16"}, {"threads", "2"}, {"ranks", "4"}, {"all-reduce", "ring"}, {"bucket MiB", "1"}};
  EXPECT_TRUE(changed_settings(then, then).empty());
  RunFingerprint now = then;
  now[0].second = "fp32";
  now[2].second = "3";
  now[3].second = "window";
  const std::vector<ChangedSetting> changed = changed_settings(then, now);
  ASSERT_EQ(changed.size(), 3u);
  EXPECT_EQ(changed[0].name, "precision");
  EXPECT_EQ(changed[0].note,
            "note: precision is fp32, but the checkpoint was made with bf16: the run continues with "
            "different bits");
  EXPECT_TRUE(changed[1].note.starts_with("note: the number of ranks that compute is 3, but the checkpoint"));
  EXPECT_EQ(changed[2].name, "all-reduce");
  EXPECT_TRUE(
      changed[2].note.starts_with("note: all-reduce is window, but the checkpoint was made with ring:"));
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
  EXPECT_EQ(
      changed_kernels("a: 1\nb: 2\nc: 3\n", "a: 1\nb: 5\nc: 6\n"),
      "note: the kernel plan has \"b: 5\", but the checkpoint was made with \"b: 2\" (and 1 more): the run "
      "continues with different bits");
  EXPECT_TRUE(contains(changed_kernels("a: 1\n", "a: 1\nb: 2"),
                       "has \"b: 2\", but the checkpoint was made with \"nothing\":"));
}

TEST(ChangedKernels, CompareTheSizesOfImagesThatBothRunsReach) {
  const std::string whole = "conv1: jit\npool: own\n", small = "24x24 conv1: jit\n24x24 pool: own\n";
  const std::string earlier = "images of 24x24:\nconv1: jit\npool: own\n";
  EXPECT_EQ(changed_kernels(whole + earlier, whole + small), "") << "the form of earlier versions";
  EXPECT_EQ(changed_kernels(whole + earlier + "images of 28x28:\nconv1: fft\n", whole + small), "");
  EXPECT_EQ(changed_kernels(whole + small, whole), "");
  EXPECT_EQ(changed_kernels(whole, whole + small), "");
  for (const std::string& then : {earlier, small}) {
    EXPECT_TRUE(contains(
        changed_kernels(whole + then, whole + "24x24 conv1: jit\n24x24 pool: dnnl\n28x28 conv1: fft\n"),
        "has \"24x24 pool: dnnl\", but the checkpoint was made with \"24x24 pool: own\":"))
        << then;
  }
  EXPECT_NE(changed_kernels("conv1: fft\n" + earlier, whole + small), "");
}

// Another number of ranks.

struct Leg {
  int ranks = 1;
  std::uint64_t until = 0;  ///< step
};

/// How often each sample appears in each epoch of a run whose number of ranks changes.
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
          ++counts[sample.epoch][sample.id];
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
  // The comparison can fail, as it does for shards.
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
        for (const std::uint64_t epoch : {change.whole_epoch, change.whole_epoch + 1}) {
          ASSERT_EQ(counts.at(epoch).size(), samples) << "epoch " << epoch;
          for (const auto& [sample, count] : counts.at(epoch)) EXPECT_EQ(count, 1) << sample;
        }
        // After that step no rank takes a sample of an earlier epoch; before it one does.
        const auto earlier = [&](std::uint64_t step) {
          return data::SampleOrder(Shuffle::shard, 11, samples, 0, now, kBatch / now).at(step, 0).epoch;
        };
        for (int rank = 0; rank < now; ++rank) {
          const data::SampleOrder order(Shuffle::shard, 11, samples, rank, now,
                                        static_cast<int>(kBatch) / now);
          EXPECT_GE(order.at(change.step, 0).epoch, change.whole_epoch);
        }
        if (change.step > at) {
          bool any = earlier(change.step - 1) < change.whole_epoch;
          for (int rank = 1; rank < now; ++rank) {
            const data::SampleOrder order(Shuffle::shard, 11, samples, rank, now,
                                          static_cast<int>(kBatch) / now);
            any = any || order.at(change.step - 1, 0).epoch < change.whole_epoch;
          }
          EXPECT_TRUE(any);
        }
        if (change.seamless) {
          EXPECT_EQ(counts.at(change.whole_epoch - 1).size(), samples);
        }
      }
    }
  }
  EXPECT_TRUE(shard_change(96, kBatch, 8, 4, 3).seamless);  // one epoch is 8 steps
  EXPECT_FALSE(shard_change(96, kBatch, 9, 4, 3).seamless);
  EXPECT_FALSE(shard_change(103, kBatch, 103, 1, 4).seamless);  // shards of 25 and 26: never at one end
}

TEST(ResumeNotes, SpeakOfKernelsUnlessAnotherSettingBroughtThem) {
  Start start;
  start.resumed = true;
  start.kernels = "conv1: a\n";
  const auto notes = [&](const std::string& setting) {
    start.progress.resolved = {{"ranks", "2"}, {setting, "then"}};
    return resume_notes(
        start, {{{"ranks", "2"}, {setting, "now"}}, "conv1: b\n", false, Shuffle::global, 96, 12, 2});
  };
  for (const char* setting : {"update", "all-reduce", "bucket MiB", "nccl algorithm"}) {
    const std::vector<std::string> both = notes(setting);
    ASSERT_EQ(both.size(), 2u) << setting;
    EXPECT_TRUE(both[0].starts_with(concat("note: ", setting, " is now,"))) << both[0];
    EXPECT_TRUE(both[1].starts_with("note: the kernel plan has \"conv1: b\"")) << both[1];
  }
  for (const char* setting : {"precision", "threads", "wire"})
    EXPECT_EQ(notes(setting).size(), 1u) << setting;
}

TEST(ResumeNotes, SpeakOfShardsWhereTheNumberOfRanksChanged) {
  Start start;
  start.resumed = true;
  start.progress.step = 9;
  start.progress.resolved = {{"ranks", "4"}};
  StartedRun now{{{"ranks", "3"}}, "", true, Shuffle::shard, 96, 12, 3};
  const std::vector<std::string> notes = resume_notes(start, now);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_TRUE(notes[0].starts_with(
      "note: with --shuffle shard each of 3 ranks holds different samples than each of 4 did:"))
      << notes[0];
  start.progress.resolved[0].second = "13";  // more than the samples of a step: no run has that
  EXPECT_TRUE(resume_notes(start, now).empty());
  start.progress.resolved[0].second = "4";
  now.shuffle = Shuffle::global;
  EXPECT_TRUE(resume_notes(start, now).empty());
  now.reproducible = false;
  EXPECT_EQ(resume_notes(start, now).size(), 1u);  // other bits
  start.resumed = false;
  EXPECT_TRUE(resume_notes(start, now).empty());
}

TEST(ResumeNotes, SpeakOfViewsWhereEvaluationsAreCompared) {
  Start start;
  start.resumed = true;
  StartedRun now;
  now.views = 6;
  EXPECT_TRUE(resume_notes(start, now).empty());
  now.compares_evaluations = true;
  ASSERT_EQ(resume_notes(start, now).size(), 1u);
  EXPECT_TRUE(resume_notes(start, now)[0].starts_with(
      "note: --views is 6, but the checkpoint was made with 1: --patience and --keep-best begin anew"));
  start.views = 6;
  EXPECT_TRUE(resume_notes(start, now).empty());
}

/// More workers than a step has samples: each has its own count of batches.
TEST(ResumeNotes, SpeakOfSamplesWhereWorkersThatAreCountedByThemselvesBecameOthers) {
  Start start;
  start.resumed = true;
  start.progress.resolved = {{"ranks", "3"}};
  start.progress.batches = {7, 8, 9};
  StartedRun now{{}, "", false, Shuffle::shard, 96, 2, 4, true};
  const std::string note = "note: the samples of each of 4 workers continue where those of 3 were on average";
  for (const Shuffle shuffle : {Shuffle::shard, Shuffle::global}) {
    now.shuffle = shuffle;
    const std::vector<std::string> notes = resume_notes(start, now);
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_TRUE(notes[0].starts_with(note)) << notes[0];
  }
  now.ranks = 3;
  EXPECT_TRUE(resume_notes(start, now).empty());
}

}  // namespace
}  // namespace cifar_mpi::run
