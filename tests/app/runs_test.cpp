#include <gtest/gtest.h>

#include <thread>

#include "app/programs.hpp"

namespace cifar_mpi::test {
namespace {

TEST_F(Programs, TrainEvaluateAndResume) {
  const std::string trained = output_of(mpirun(2, kTrain + usual("first") + " --lr 0.5 --log-every 1"));
  EXPECT_TRUE(std::regex_search(
      trained,
      std::regex(
          R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}: step 2, loss = \d+\.\d\d \(\d+\.\d examples/sec; \d+\.\d{3} sec/batch; 0:00 left; epoch \d+\.\d\d\))")))
      << trained;
  EXPECT_EQ(count_lines_with(trained, "learning rate: "), 1) << trained;
  EXPECT_EQ(count_lines_with(trained, "; all-reduce auto ("), 1) << trained;
  for (const char* const part :
       {"2 ranks with 8 samples each make a global batch of 16, so an epoch has ",
        "; --global-batch 8 keeps the batch, the steps and the accuracy of one rank"})
    EXPECT_TRUE(contains(trained, part));

  EXPECT_TRUE(contains(trained,
                       "\nno verdict: no step was sampled; train more steps: ten per epoch are "
                       "sampled, but at most one in ten\nto see more:\n  cifar_mpi_report " +
                           file("first") + "\n"));

  // The same pictures on one rank or two; other weights give another cross-entropy.
  const auto evaluate = [](int ranks, const std::string& weights) {
    const std::string outcome =
        output_of(mpirun(ranks, kEval + " " + file("first") + data() + " --threads 1 --weights " + weights));
    EXPECT_TRUE(std::regex_search(outcome, std::regex("step 2, 12 test images, cross-entropy \\d")))
        << outcome;
    EXPECT_TRUE(std::regex_search(outcome, std::regex("precision @ 1 = [01]\\.\\d{4}\n"))) << outcome;
    EXPECT_EQ(count_lines_with(outcome, "pattern9"), 1) << outcome;
    return outcome;
  };
  const auto per_class = [](const std::string& output) { return output.substr(output.find("pattern0")); };
  EXPECT_EQ(per_class(evaluate(1, "ema")), per_class(evaluate(2, "ema")));
  EXPECT_NE(evaluate(1, "ema"), evaluate(1, "raw"));
  const std::string again =
      output_of(mpirun(2, kTrain + usual("first") + " --lr 0.5 --trace 1-2 --threads 3"));
  EXPECT_TRUE(contains(again, "this run is finished: step 2 of 2; raise --steps or --epochs"));
  EXPECT_EQ(count_lines_with(again, "warning: "), 0) << again;
  EXPECT_EQ(
      count_lines_with(again, "note: the run is at step 2, past those of --trace 1-2: nothing is traced"), 1)
      << again;
}

TEST_F(Programs, SayWhatEndsARunForGood) {
  for (const std::string option : {"--lookahead 2", "--schedule linear"}) {
    const std::string train = kTrain + small("ended_" + option.substr(2, 4)) + " " + option;
    ASSERT_EQ(run_command(train).code, 0);
    const Outcome again = run_command(train);
    EXPECT_TRUE(contains(again.output, "this run is finished: step 2 of 2; " + option + " ends with it"));
    expect_refusal(run_command(train + " --steps 4"), 4, "its length in steps is 2, this one's is 4");
  }
}

TEST_F(Programs, SayWhichLineOfARunsConfigurationIsWrong) {
  ASSERT_EQ(run_command(kTrain + small("edited")).code, 0);
  const std::string eval = kEval + " " + file("edited") + " --threads 1", config = file("edited/config.toml");
  EXPECT_EQ(run_command(eval).code, 0);
  write_file(config, "# by hand\nlr = fast\n" + read_file(config));
  const Outcome refused = mpirun(2, eval);
  expect_refusal(refused, 2, config + ":2: ");
  EXPECT_EQ(count_lines_with(refused.output, "; correct it, or name the run's dataset with --data"), 1);
  output_of(run_command(eval + data()));
}

TEST_F(Programs, SayHowManyThreadsThereAreAndWhereCoresAreTooFew) {
  const std::string fits = output_of(run_command(kTrain + small("fits")));
  EXPECT_TRUE(contains(fits, "threads: 1 per rank ("));
  EXPECT_FALSE(contains(fits, "share fewer cores"));
  const std::string many = std::to_string(std::thread::hardware_concurrency() + 1);
  const std::string crowded = output_of(run_command(kTrain + small("crowded") + " --threads " + many));
  EXPECT_EQ(count_lines_with(crowded, many + " threads per rank share fewer cores"), 1) << crowded;
}

TEST_F(Programs, TrainOnAnotherDatasetOfTheSchema) {
  ASSERT_EQ(run_command(kPack + " --synthetic 64 --image 28x28x1 --classes 7 --out " + file("gray.h5")).code,
            0);
  output_of(mpirun(2, kTrain + " --data " + file("gray.h5") + " --run-dir " + file("gray") +
                          " --batch-size 8 --steps 2 --threads 1"));
  expect_refusal(run_command(kEval + " " + file("gray") + data()), 4,
                 "was trained on 28x28x1 images of 7 classes");
}

TEST_F(Programs, BeginWithTheWeightsOfAFinishedRun) {
  const std::string longer = " --lr 0.05 --log-every 1 --steps 40";
  ASSERT_EQ(mpirun(2, kTrain + usual("taught") + longer).code, 0);
  const std::string checkpoint = file("taught/checkpoints/latest");
  const std::string tuned =
      output_of(mpirun(3, kTrain + usual("tuned") + longer + " --steps 3 --init-from " + checkpoint));
  EXPECT_EQ(count_lines_with(tuned,
                             "initialized from the averaged weights of step_000000040.h5, step 40, test acc"),
            1)
      << tuned;
  EXPECT_LT(losses("tuned").front(),
            losses("taught").front() - 0.2);  // than that of guessing among ten classes
  const std::string again = output_of(
      mpirun(2, kTrain + usual("tuned") + longer + " --steps 4 --batch-size 12 --init-from gone.h5"));
  EXPECT_EQ(count_lines_with(again, "; --init-from is not read again"), 1) << again;
}

TEST_F(Programs, KeepTheBestCheckpointSoThatItCanBeEvaluated) {
  const std::string train =
      kTrain + small("best") + " --lr 0.05 --keep 1 --keep-best --eval-every 1 --steps ";
  ASSERT_EQ(mpirun(2, train + "20").code, 0);
  const std::string longer = output_of(mpirun(2, train + "30"));  // the files name the best so far
  std::smatch best;
  ASSERT_TRUE(std::regex_search(
      longer, best, std::regex("best checkpoint: \\S*/checkpoints/(step_\\d+\\.h5), test accuracy (\\S+) %")))
      << longer;
  EXPECT_EQ(std::filesystem::read_symlink(file("best/checkpoints/best")), best[1].str());
  const std::string evaluated =
      output_of(run_command(kEval + data() + " --threads 1 " + file("best/checkpoints/best")));
  std::smatch precision;
  ASSERT_TRUE(std::regex_search(evaluated, precision, std::regex("precision @ 1 = (\\S+)")));
  EXPECT_NEAR(100.0 * std::stod(precision[1]), std::stod(best[2]), 0.011);
}

TEST_F(Programs, EndADivergedRunWithItsOwnCode) {
  expect_refusal(mpirun(2, kTrain + small("wild") + " --steps 50 --lr 1e8"), 8, "diverged");
}

TEST_F(Programs, TrainToTheSameBitsOnAnyNumberOfRanksWhenAsked) {
  ASSERT_EQ(run_command("command -v h5diff").code, 0) << "h5diff of hdf5-tools is not installed";
  const std::string train =
      kTrain + data() + " --shuffle global --global-batch 32 --input-size 12 --steps 4 --threads 1";
  const auto differ = [](const std::string& run, const std::string& other, const std::string& group) {
    const std::string newest = "/checkpoints/latest ";
    return run_command("h5diff " + file(run) + newest + file(other) + newest + group + " " + group);
  };
  struct Case {
    std::string name, options;
    std::vector<int> ranks;
    std::vector<std::string> groups;
    std::string says = {};
    int times = 0;
  };
  const std::vector<Case> cases{
      {"usual_", "", {1, 2, 4, 8}, {"/model", "/ema", "/optimizer"}},
      {"muon_", " --optimizer muon", {1, 2}, {"/model", "/momentum"}},
      {"sizes_",
       " --model resnet20 --image-size 8x0.25,10x0.5,12",
       {1, 2},
       {"/model", "/ema", "/running", "/momentum"},
       ": images of 1",
       2},
      {"frozen_",
       " --input-size 16 --steps 9 --model fast94 --lr 0.01 --ends-lr 0.01 --bias-lr 0.01 --image-size full",
       {1, 2, 4},
       {"/model", "/ema", "/running", "/momentum"},
       "after step 7: images of 16x16, whitening/biases frozen",
       1},
      {"slow_",
       " --lookahead 3 --schedule linear --final-lr-share 0.1 --tail-epochs 0.2",
       {1, 2, 4},
       {"/model", "/ema", "/slow"}}};
  for (const Case& c : cases) {
    for (const int ranks : c.ranks) {
      const std::string run = c.name + std::to_string(ranks);
      SCOPED_TRACE(run);
      const std::string outcome =
          output_of(mpirun(ranks, train + " --reproducible --run-dir " + file(run) + c.options));
      if (c.times > 0) {
        EXPECT_EQ(count_lines_with(outcome, c.says), c.times) << outcome;
      }
      for (const std::string& group : c.groups) {
        const Outcome diff = differ(c.name + "1", run, group);
        EXPECT_EQ(diff.code, 0) << group << ": " << diff.output;
      }
    }
  }
  // The comparison can fail: without the flag the order of the sums differs.
  for (const int ranks : {1, 2}) {
    ASSERT_EQ(mpirun(ranks, train + " --run-dir " + file("plain_" + std::to_string(ranks))).code, 0);
  }
  EXPECT_EQ(differ("plain_1", "plain_2", "/model").code, 1);

  const std::string ask = kTrain + data() + " --reproducible --shuffle global --run-dir " + file("never");
  expect_refusal(mpirun(3, ask + " --global-batch 48"), 2, "power of two");
  expect_refusal(mpirun(2, ask + " --global-batch 24 --micro-shards 16"), 2, "into 16 equal micro-shards");
  expect_refusal(run_command(ask + " --micro-shards 6"), 2, "--micro-shards");
  expect_refusal(run_command(ask + " --all-reduce ring"), 2, "doubling");
  expect_refusal(run_command(ask + " --shuffle shard"), 2, "--shuffle global");
}

TEST_F(Programs, StopOnASignalWithACheckpointToGoOnFrom) {
  for (const char* signal : {"TERM", "INT", "USR1"}) {
    const std::string run = small(std::string("stopped_") + signal);
    // bash makes background commands ignore SIGINT, and a program inherits that until it handles the signal.
    const Outcome outcome =
        run_command(kTrain + run + " --steps 100000 & child=$!; for i in $(seq 300); do sleep 0.1; [ ! -s " +
                    file(std::string("stopped_") + signal + "/metrics.jsonl") + " ] || break; done; kill -" +
                    signal + " $child; wait $child");
    expect_refusal(outcome, 75, "stopped on request at step");
    EXPECT_EQ(count_lines_with(outcome.output, "checkpoint: "), 1) << outcome.output;
  }
}

/// Follows a run and stops it when `script` ends. `program` is cifar_mpi_eval --watch with its launcher, if
/// any; in the script `await COMMAND` waits, and `said TEXT` searches the program's output.
Outcome follow(const std::string& program, const std::string& folder, const std::string& script) {
  return run_command(
      "cd " + folder + "; " + program + " --interval 0.05 --threads 1 >said.txt 2>&1 & " +
      "child=$!; said() { grep -q -- \"$1\" " + folder + "/said.txt; }; " +
      "await() { for i in $(seq 600); do kill -0 $child || return; \"$@\" && return; sleep 0.1; done; }; " +
      script + "; kill -${signal:-TERM} $child; wait $child; code=$?; cat " + folder +
      "/said.txt; exit $code");
}

TEST_F(Programs, TrainOnWhenNobodyReadsTheirOutput) {
  const Outcome outcome =
      run_command(kTrain + small("unread") + " --steps 30 --log-every 1 | head -2; echo ${PIPESTATUS[0]}");
  EXPECT_TRUE(contains(outcome.output, "\n0\n"));
  EXPECT_TRUE(std::filesystem::exists(file("unread/checkpoints/step_000000030.h5")));
}

TEST_F(Programs, FollowARunDirectory) {
  ASSERT_EQ(mpirun(1, kTrain + small("watched")).code, 0);
  for (const char* signal : {"TERM", "INT"}) {
    const std::string outcome = output_of(follow(
        kEval + data() + " --watch .", file("watched"),
        "await said precision; sleep 0.5; signal=" + std::string(signal)));  // it follows until it is stopped
    EXPECT_EQ(count_lines_with(outcome, "precision @ 1 = "), 1) << outcome;
  }
}

TEST_F(Programs, GoOnFollowingARunAfterADamagedCheckpoint) {
  const std::string last = file("hurt") + "/checkpoints/step_000000002.h5";
  ASSERT_EQ(mpirun(1, kTrain + small("hurt")).code, 0);
  ASSERT_EQ(mpirun(1, kTrain + small("hurt_too") + " --steps 3").code, 0);
  std::filesystem::copy_file(last, file("hurt") + "/whole.h5");
  std::filesystem::resize_file(last, 100);
  // After the message, the file is written again under its name; then comes a later one.
  const std::string outcome = output_of(
      follow(kEval + data() + " --watch .", file("hurt"),
             "await said 'cannot be read'; sleep 0.5; mv " + file("hurt") + "/whole.h5 " + last +
                 "; await said 'precision'; mv " + file("hurt_too") + "/checkpoints/step_000000003.h5 " +
                 file("hurt") + "/checkpoints; await said 'step_000000003.h5: step 3'"));
  EXPECT_EQ(count_lines_with(outcome, "skipping a checkpoint that cannot be read: "), 1) << outcome;
  EXPECT_EQ(count_lines_with(outcome, "step_000000002.h5: step 2"), 1) << outcome;
  EXPECT_EQ(count_lines_with(outcome, "step_000000003.h5: step 3"), 1) << outcome;
}

TEST_F(Programs, BeginFollowingARunBeforeItsDamagedCheckpoints) {
  ASSERT_EQ(mpirun(1, kTrain + small("hurt_end") + " --steps 4 --checkpoint-every 1").code, 0);
  for (const char* step : {"3", "4"})
    std::filesystem::resize_file(file("hurt_end/checkpoints/step_00000000") + step + ".h5", 100);
  const std::string outcome =
      output_of(follow(kEval + data() + " --watch .", file("hurt_end"), "await said precision; sleep 0.5"));
  EXPECT_EQ(count_lines_with(outcome, "skipping a checkpoint that cannot be read: "), 2) << outcome;
  EXPECT_EQ(count_lines_with(outcome, "precision @ 1 = "), 1) << outcome;
  EXPECT_EQ(count_lines_with(outcome, "step_000000002.h5: step 2"), 1) << outcome;
}

TEST_F(Programs, GoOnFollowingARunThatOneRankSeesLater) {
  ASSERT_EQ(mpirun(1, kTrain + small("near/run")).code, 0);
  std::filesystem::create_directory(file("far"));
  write_file(file("by_rank.sh"), "place=near; [ \"$OMPI_COMM_WORLD_RANK\" = 0 ] || place=far\ncd " +
                                     file("$place") + "\nexec " + kEval + data() + " --watch run \"$@\"");
  const Outcome outcome = follow(kMpirun + " -np 2 bash " + file("by_rank.sh"), file("far"),
                                 "await said 'cannot be read'; sleep 0.5; cp -r " + file("near") + "/run " +
                                     file("far") + "; await said precision; signal=USR1");
  EXPECT_EQ(count_lines_with(outcome.output, "skipping a checkpoint that cannot be read: "), 1)
      << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, "precision @ 1 = "), 1) << outcome.output;
}

TEST_F(Programs, StopFollowingARunOfAnotherKindOfData) {
  ASSERT_EQ(mpirun(1, kTrain + small("other_kind")).code, 0);
  ASSERT_EQ(run_command(kPack + " --synthetic 64 --image 28x28x1 --classes 7 --out " + file("mnist.h5")).code,
            0);
  expect_refusal(
      run_command("timeout 60 " + kEval + " --data " + file("mnist.h5") + " --watch " + file("other_kind")),
      4, "was trained on 32x32x3 images of 10 classes");
}

TEST_F(Programs, SayOnceWhatTheyWaitFor) {
  const std::string watch = kEval + data() + " --watch --interval 0.05 --threads 1 ";
  const std::string said = file("said");
  // After the message, it has a second to repeat it.
  const Outcome outcome = run_command(watch + file("nothing_yet") + " >" + said +
                                      " 2>&1 & child=$!; for i in $(seq 600); do sleep 0.1; [ ! -s " + said +
                                      " ] || break; done; sleep 1; kill $child; wait $child; cat " + said);
  EXPECT_EQ(count_lines_with(outcome.output, "waiting for the first checkpoint"), 1) << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, file("nothing_yet")), 1) << outcome.output;
  EXPECT_EQ(count_lines_with(outcome.output, "that run directory does not exist yet"), 1) << outcome.output;
  expect_refusal(run_command("timeout 60 " + watch + file("small.h5")), 2, "is not one");
  expect_refusal(run_command("timeout 60 " + watch + file("nothing_yet") + " --data " + file("missing.h5")),
                 3, "missing.h5");
}

}  // namespace
}  // namespace cifar_mpi::test
