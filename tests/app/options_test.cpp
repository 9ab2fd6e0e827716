#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <sstream>

#include "app/programs.hpp"
#include "app/usage.hpp"
#include "cifar_mpi/cuda/backend.hpp"

namespace cifar_mpi::test {
namespace {

TEST_F(Programs, AnswerWithoutMpi) {
  const std::vector<std::pair<std::string, std::string>> words{
      {kTrain, "--lr X"}, {kEval, "--weights"}, {kPack, "--synthetic"}, {kBench, "allreduce"}};
  for (const auto& [program, word] : words) {
    EXPECT_TRUE(contains(output_of(run_command(program + " --help")), word));
    const std::string version = output_of(run_command(program + " --version"));
    EXPECT_TRUE(std::regex_search(version, std::regex("^cifar_mpi_\\w+ \\d+\\.\\d+\\.\\d+ \\("))) << version;
  }
  const std::string build = output_of(run_command(kTrain + " --check-build"));
  for (const char* part : {"MPI", "cpu", "cuda", "ring", "tutorial"}) {
    EXPECT_TRUE(contains(build, part));
  }
}

/// The lines of --help that begin an option.
int options_in(const std::string& help) {
  std::istringstream lines(help);
  int options = 0;
  for (std::string line; std::getline(lines, line);) options += line.rfind("  --", 0) == 0;
  return options;
}

TEST_F(Programs, FitTheirHelpIntoATerminal) {
  for (const std::string& command :
       {kTrain, kEval, kPack, kReport, kBench, kBench + " step", kBench + " allreduce", kBench + " ways"}) {
    for (const std::string& option :
         {std::string(" --help"), std::string(command == kTrain ? " --help-all" : " -h")}) {
      SCOPED_TRACE(command + option);
      std::istringstream help(run_command(command + option).output);
      int lines = 0;
      for (std::string line; std::getline(help, line); ++lines) EXPECT_LE(line.size(), 80u) << line;
      EXPECT_GT(lines, 8);
    }
  }
  const std::string usual = run_command(kTrain + " --help").output;
  const std::string all = run_command(kTrain + " --help-all").output;
  EXPECT_LE(options_in(usual), 24) << usual;
  EXPECT_GT(options_in(all), 75) << all;
  for (const char* part : {"--lr X                  Learning rate [0.1]\n", "  --schedule NAME",
                           "Examples:", "Exit codes:", "Signals:"})
    EXPECT_TRUE(contains(usual, part));
}

TEST_F(Programs, ShowInTheirHelpWhatAModelAndAFileSet) {
  const auto expect = [](const std::string& options, const std::vector<std::string>& parts) {
    const std::string help = run_command(kTrain + options + " --help-all").output;
    for (const std::string& part : parts) EXPECT_TRUE(contains(help, part));
  };
  expect("", {"[runs/tutorial]", "tutorial, resnet", "[staircase]", "[256]"});
  expect(" --model resnet20", {"[resnet20]", "[runs/resnet20]", "[steps]", "[0.5,0.75]", "[163.84]"});
  write_file(file("help.toml"), "lr = 0.25\nmodel = \"resnet18\"\n");
  expect(" --epochs 7 --config " + file("help.toml"),
         {"Learning rate [0.25]", "[7]", "[cosine]", "[0.0005]"});
}

TEST_F(Programs, NameTheFirstWordThatTheyDoNotKnow) {
  expect_refusal(run_command(kTrain + " --stps 4 --sede 1"), 2,
                 "unknown option '--stps' (did you mean --steps?); see --help");
  expect_refusal(run_command(kPack + " these words"), 2, "unknown word 'these'; see --help");
  expect_refusal(run_command(kBench + " stepp"), 2,
                 "unknown command 'stepp' (did you mean step?); see --help");
  expect_refusal(run_command(kBench + " step stepp"), 2, "unknown word 'stepp'; see --help");
  const std::string hint = "(did you mean --model NAME or --config jobs/recipes/NAME.toml?)";
  expect_refusal(run_command(kTrain + " --recipe fast94"), 2, "unknown option '--recipe' " + hint);
  expect_refusal(run_command(kTrain + " --recipe=fast94"), 2, "unknown option '--recipe=fast94' " + hint);
  expect_refusal(run_command(kTrain + " --config tutorial-fast"), 2,
                 "there is no file 'tutorial-fast' for --config; recipes are in jobs/recipes, as in --config "
                 "jobs/recipes/tutorial-fast.toml");
  expect_refusal(run_command(kTrain + " --model tutorial-fast"), 2,
                 "'tutorial-fast'; its recipe is --config jobs/recipes/tutorial-fast.toml; see --help");
  expect_refusal(run_command(kTrain + " --model nosuch"), 2, "not 'nosuch'; see --help");
  expect_refusal(run_command(kTrain + " epochs=4"), 2, "unknown word 'epochs=4' (did you mean --epochs?);");
}

TEST_F(Programs, NeverSuggestTheWordThatTheyRefuse) {
  // options of a command: before it, and of another one
  for (const std::string words : {" --model resnet20", " --model resnet20 step", " links --model resnet20"}) {
    SCOPED_TRACE(words);
    expect_refusal(run_command(kBench + words), 2,
                   "unknown option '--model' (did you mean cifar_mpi_bench step --model?); see --help");
  }
  expect_refusal(run_command(kBench + " ways --sizes 8"), 2,
                 "unknown option '--sizes' (did you mean cifar_mpi_bench allreduce --sizes?); see --help");
}

TEST(SimilarOption, IsTheOneThatIsMeant) {
  CLI::App cli;
  CLI::App* const command = cli.add_subcommand("step");
  for (const char* name :
       {"--lr", "--lr-scaling", "--batch-size", "--schedule", "--seed", "--model", "--data", "--eps",
        "--cutout", "--run-dir", "--epochs", "--momentum-start", "--weight-decay", "--warmup-decay"})
    cli.add_option_function<int>(name, [](int) {});
  command->add_option_function<int>("--threads", [](int) {});
  for (const auto& [word, meant] :
       std::vector<std::pair<std::string, std::string>>{{"--learning-rate", "--lr"},
                                                        {"batch_size", "--batch-size"},
                                                        {"--Schedular=cosine", "--schedule"},
                                                        {"--sede", "--seed"},
                                                        {"--thread", "--threads"},
                                                        {"--batchsize", "--batch-size"},
                                                        {"--epoch", "--epochs"},
                                                        {"--num-epochs", "--epochs"},
                                                        {"--model-name", "--model"},
                                                        {"--batch", "--batch-size"},
                                                        {"--bs", "--batch-size"},
                                                        {"--dataset", "--data"},
                                                        {"--lr0.1", "--lr"},
                                                        {"--momentum", "--momentum-start"},
                                                        {"--wd", ""},      // initials of two
                                                        {"--gpus", ""},    // not --eps
                                                        {"--output", ""},  // not --cutout
                                                        {"--rate", ""},
                                                        {"--", ""},
                                                        {"-x", ""}})
    EXPECT_EQ(app::similar_option(cli, word), meant) << word;
}

TEST_F(Programs, PrintTheModelForTheDatasetOrForCifar10) {
  ASSERT_EQ(run_command(kPack + " --synthetic 40 --out " + file("set.h5")).code, 0);
  const std::string asked = "cd " + file("") + " && CIFAR_MPI_DATA= " + kTrain + " --print-model";
  for (const std::string& option : {std::string(), " --data " + file("set.h5")}) {
    const std::string found = output_of(run_command(asked + option));
    for (const char* part : {"conv2", "LocalResponseNorm", "12x12x64", "885120", "parameters: 1068298",
                             "36.9 MFLOP forward", "24x24x3"}) {
      EXPECT_TRUE(contains(found, part));
    }
    // Without a name: CIFAR-10's, unless this checkout has a dataset, which the program finds next to its
    // binary.
    EXPECT_TRUE(contains(found, option.empty() ? "CIFAR-10's images" : "set.h5") ||
                (option.empty() && contains(found, "cifar10.h5")))
        << found;
  }
  expect_refusal(run_command(asked + " --data " + file("none.h5")), 3, "none.h5");
}

TEST_F(Programs, RefuseRanksThatWereStartedInAnotherWay) {
  const auto outcome_of = [](const std::string& first, const std::string& second) {
    return mpirun(2, "sh -c '[ $OMPI_COMM_WORLD_RANK = 0 ] && exec " + first + " || exec " + second + "'");
  };
  const std::string train = kTrain + small("mixed");
  const std::string watch = kEval + data() + " " + file("mixed");
  std::ofstream(file("longer.toml")) << "steps = 9\n";
  const std::vector<std::array<std::string, 3>> cases{
      {train, train + " --reproducible --shuffle global", "--shuffle is global on rank 1"},
      {kTrain + data(), kTrain + data() + " --config " + file("longer.toml"), "--steps is 9 on rank 1"},
      {train, watch, "the program is cifar_mpi_eval"},
      {watch, watch + " --watch", "--watch is true on rank 1"},
      {watch, watch + "s", "checkpoint is "},
      {kBench + " step", kBench + " allreduce", "the command is allreduce on rank 1"},
      {kBench + " allreduce --sizes 4,8", kBench + " allreduce --sizes 4", "--sizes is 4 on rank 1"},
  };
  for (const auto& [first, second, part] : cases) {
    SCOPED_TRACE(part);
    const Outcome outcome = outcome_of(first, second);
    expect_refusal(outcome, 2, part);
    EXPECT_TRUE(contains(outcome.output, "start all ranks with the same program and options"));
  }
  for (const char* wrong : {" --foo", " --config nope"}) {
    expect_refusal(outcome_of(train, train + wrong), 2, "(on a rank other than 0, host ");
  }
  EXPECT_FALSE(std::filesystem::exists(file("mixed")));
  // Paths may differ between nodes, and an option that repeats a default changes nothing.
  ASSERT_TRUE(std::filesystem::copy_file(file("small.h5"), file("copy.h5")));
  output_of(outcome_of(train, train + " --data " + file("copy.h5") + " --lr 0.1"));
}

TEST_F(Programs, RefuseACollectiveOfGpusOnTheCpu) {
  for (const std::string& command : {kTrain + small("no_gpu"), kBench + " step"}) {
    expect_refusal(run_command(command + " --device cpu --all-reduce nccl"), 2,
                   "--all-reduce nccl sums between GPUs, and this is the CPU");
  }
}

TEST_F(Programs, CheckOnlyAGpuThatIsThere) {
  expect_refusal(run_command(kTrain + " --self-check only --device cpu"), 2, "--self-check compares GPUs");
  if (cuda::unusable().empty()) return;
  const Outcome refused = run_command(kTrain + " --self-check only");
  expect_refusal(refused, 6, "CUDA cannot be used: " + cuda::unusable() + "; start it on a node with a GPU");
  EXPECT_FALSE(contains(refused.output, "--device cpu")) << "this is refused";
}

TEST_F(Programs, RefuseOptionsThatMakeNoSense) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"--no-such-option", "no-such-option"},
      {"--batch-size 1e99", "batch-size"},
      {"--batch-size eight", "batch-size"},
      {"--global-batch -8", "--global-batch"},
      {"--lr nan", "--lr"},
      {"--lr inf", "--lr"},
      {"--epochs nan", "--epochs"},
      {"--schedule sideways", "schedule"},
      {"--optimizer lion", "optimizer"},
      {"--optimizer momentum --beta1 0.5",
       "--beta1 0.5 works only with --optimizer adamw, not with momentum"},
      {"--update ring", "update"},
      {"--update server --aggregate 0", "must be a whole number of at least 1, all or async, not '0'"},
      {"--update server --arrival-order 3",
       "--arrival-order 3 works only with --update server --aggregate async"},
      {"--update server --aggregate async --max-staleness -1",
       "must be a whole number of at least 0, or none, not '-1'"},
      {"--update server --aggregate async --reproducible --shuffle global",
       "--reproducible works only with --update all-reduce"},
      {"--update server --servers 0", "--servers must be at least 1, not 0"},
      {"--update local --augment none --flip random", "--flip random works only with"},
      {"--servers 1", "--servers 1 works only with --update server, not with all-reduce; leave it out"},
      {"--update server --local-steps 16",
       "--local-steps 16 works only with --update local, not with server"},
      {"--schedule steps", "--decay-at must hold fractions of the run"},
      {"--schedule steps --decay-at 0.5,half", "must be numbers separated by commas"},
      {"--steps -1", "--steps must be at least 1, or auto, not -1"},
      {"--steps 0", "--steps: must be at least 1, or auto, not '0'"},
      {"--global-batch 0", "or auto, not '0'"},
      {"--threads 0", "--threads: must lie between 1 and 4096, or auto, not '0'"},
      {"--input-size 0", "or auto, not '0'"},
      {"--eval-every 0.0", "or end, not '0.0'"},
      {"--stop-after 0", "or never, not '0'"},
      {"--timeout 0", "--timeout: must lie between 2 and 1000000000, or never, not '0'"},
      {"--optimizer muon --bias-lr 0", "or lr, not '0'"},
      {"--lookahead 5 --lookahead-steps 0", "or all, not '0'"},
      {"--shuffle sideways", "shuffle"},
      {"--all-reduce pigeon", "all-reduce"},
      {"--model resnet", "model"},
      {"--precision fp8", "precision"},
      {"--keep-best", "--keep-best needs several evaluations"},
      {"--patience 3", "--patience needs several evaluations"},
      {"--patience -1", "--patience"},
      {"--seed -1", "--seed"},
      {"--run-dir= --print-config", "--run-dir"},
      {"--init-from a.h5 --resume b.h5", "--resume b.h5 continues one"},
  };
  for (const auto& [option, part] : cases) {
    SCOPED_TRACE(option);
    expect_refusal(run_command(kTrain + data() + " --run-dir " + file("not_made") + " " + option), 2, part);
  }
  EXPECT_FALSE(std::filesystem::exists(file("not_made")));
}

TEST_F(Programs, DetectSeparateWorldsOfOne) {
  expect_refusal(run_command("OMPI_COMM_WORLD_SIZE=4 " + kTrain + small("worlds")), 10,
                 "OMPI_COMM_WORLD_SIZE");
}

TEST_F(Programs, RefuseNumbersOutOfRange) {
  const std::string pack = kPack + " --out " + file("never.h5");
  const std::vector<std::pair<std::string, std::string>> cases{
      {kTrain + " --seed 18446744073709551616", "'18446744073709551616'"},
      {kTrain + " --steps 1e20", "'1e20'"},
      {kTrain + " --steps 9223372036854775808", "'9223372036854775808'"},
      {kTrain + " --batch-size 010", "'010'"},  // 8 in C
      {kTrain + " --lr 1e400", "'1e400'"},
      {kTrain + " --bucket-mib 0.00097", "--bucket-mib must lie between 0.0009765625 and 4096, not"},
      {kTrain + " --threads 5000", "--threads must lie between 1 and 4096"},
      {kBench + " step --bucket-mib 0.00097", "from 0.000976562 to 4096"},
      {pack + " --synthetic 8 --seed -1", "'-1'"},
      {pack + " --synthetic 8 --classes 1", "from 2 to 255"},
      {pack + " --synthetic 8 --image 32x32", "'32x32'"},
      {pack + " --synthetic 8 --image 32x32x3x", "'32x32x3x'"},
      {pack + " --synthetic 8 --image 32x32x5", "'32x32x5'"},
      {pack + " --synthetic 8 --image 1025x32x3", "'1025x32x3'"},
      {pack + " --synthetic 8 --image 7x32x3", "'7x32x3'"},
      {kBench + " step --seconds 0", "'0'"},
      {kEval + " --watch --interval 1e9", "'1e9'"},
  };
  for (const auto& [command, part] : cases) {
    SCOPED_TRACE(command);
    expect_refusal(run_command(command), 2, part);
  }
  expect_refusal(run_command(pack + " --synthetic 1000000000"), 6, "GiB of memory");
}

TEST_F(Programs, NameTheWordThatTheyDoNotKnowOrMiss) {
  expect_refusal(run_command(kBench + " foo"), 2, "'foo'");
  expect_refusal(run_command(kBench), 2,
                 "the command is missing: step, allreduce, links or ways; example: cifar_mpi_bench step; see "
                 "--help");
  expect_refusal(run_command(kBench + " step foo"), 2, "foo");
  expect_refusal(run_command(kTrain + " foo"), 2, "foo");
  const std::string pack =
      "; example: cifar_mpi_pack --from cifar-10-batches-bin --out data/cifar10.h5; see --help";
  expect_refusal(run_command(kPack + " --synthetic 8"), 2, "pack: --out is missing" + pack);
  expect_refusal(run_command(kPack + " --out " + file("never.h5")), 2,
                 "pack: --from, --from-png, --from-folder or --synthetic is missing" + pack);
  expect_refusal(run_command(kPack + " --synthetic 8 --from x --out " + file("never.h5")), 2,
                 "pack: --from and --synthetic cannot be combined");
  expect_refusal(run_command(kTrain + " --lr"), 2, "train: --lr has no value; see --help");
  for (const char* value : {"maybe", "5", "99999999999999999999"})
    expect_refusal(run_command(kTrain + " --share-gpus=" + value), 2,
                   std::string("--share-gpus must be true or false, not '") + value + "'; see --help");
  for (const char* value : {"true", "on", "0"})
    EXPECT_EQ(run_command(kTrain + " --share-gpus=" + value + " --print-config").code, 0) << value;
  expect_refusal(run_command(kTrain + " --sync-batch-norm true --epochs 2"), 2,
                 "--sync-batch-norm takes no value; give it alone, or as --sync-batch-norm=true; see --help");
  expect_refusal(run_command(kEval + " --watch off"), 2, "--watch takes no value");
  expect_refusal(run_command(kBench + " step --share-gpus=maybe"), 2, "--share-gpus must be true or false");
  expect_refusal(run_command(kBench + " step --device gpu"), 2,
                 "--device: must be one of auto, cpu, cuda, not 'gpu'");
}

TEST_F(Programs, RefuseEmptyWords) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {kTrain, "--data"},       {kTrain, "--run-dir"},
      {kTrain, "--resume"},     {kTrain, "--init-from"},
      {kTrain, "--config"},     {kEval, "--data"},
      {kEval, "--predict"},     {kEval, "--export-onnx"},
      {kEval, "--predictions"}, {kPack, "--from"},
      {kPack, "--out"},         {kReport + " run", "--html"},
      {kReport, "--baseline"},  {kBench + " step", "--json"}};
  for (const auto& [program, option] : cases) {
    SCOPED_TRACE(program + " " + option);
    expect_refusal(run_command(concat(program, " ", option, " ''")), 2,
                   option + " has an empty value, as from an unset variable; give one, or leave it out");
  }
  for (const std::string words : {" --seed= 5", " --seed='' --print-config"})
    expect_refusal(run_command(kTrain + words), 2,
                   "--seed has an empty value, as from an unset variable; give one");
  for (const std::string words : {" = 5", "==5", " =5"})
    expect_refusal(run_command(kTrain + " --seed" + words), 2,
                   "--seed has a value that begins with '='; give it as --seed VALUE or --seed=VALUE");
  for (const std::string words : {" ''", " --json ''", " -- ''", " --weights raw ''"})
    expect_refusal(run_command(kEval + words), 2, "a word of the command line is empty");
}

TEST_F(Programs, TakeTheLastOfAnOptionGivenTwice) {
  const Outcome printed = run_command(kTrain + " --lr 1 --lr 2 --print-config");
  EXPECT_EQ(count_lines_with(printed.output, "lr=2"), 1) << printed.output;
  EXPECT_EQ(run_command(kPack + " --synthetic 8 --out " + file("one.h5") + " --out " + file("two.h5")).code,
            0);
  EXPECT_FALSE(std::filesystem::exists(file("one.h5")));
  EXPECT_TRUE(std::filesystem::exists(file("two.h5")));
}

TEST_F(Programs, EndWithFiveWhenTheirOutputIsLost) {
  ASSERT_EQ(run_command(kTrain + small("spoken")).code, 0);
  const std::vector<std::string> commands{kTrain + " --help",
                                          kEval + " --help",
                                          kPack + " --version",
                                          kBench + " step --help",
                                          kTrain + " --check-build",
                                          kTrain + " --print-config",
                                          kPack + " --synthetic 8 --force --out " + file("unsaid.h5"),
                                          kBench + " allreduce --sizes 4K --seconds 0.01",
                                          kEval + " " + file("spoken") + data() + " --threads 1"};
  for (const std::string& command : commands) {
    for (const char* lost : {" >/dev/full", " >&-"}) {
      SCOPED_TRACE(command + lost);
      expect_refusal(run_command(command + lost), 5, "standard output could not be written");
    }
  }
}

TEST_F(Programs, SayNothingWhereTheReaderOfTheirOutputLeaves) {
  const std::string said = file("said");
  run_command("{ sleep 0.2; " + kTrain + " --check-build; echo code $? >&2; } 2>" + said + " | true");
  EXPECT_EQ(read_file(said), "code 5\n");
}

TEST_F(Programs, KeepTheirFilesCleanWhenTheStandardStreamsAreClosed) {
  const std::string closed = " <&- >&- 2>&-";
  EXPECT_EQ(run_command(kTrain + small("quiet") + " --log-every 1" + closed).code, 0);
  const std::string metrics = read_file(file("quiet/metrics.jsonl"));
  EXPECT_EQ(count_lines_with(metrics, "{\""), count_lines_with(metrics, "")) << metrics;
  EXPECT_GE(count_lines_with(metrics, "\"cross_entropy\""), 2) << metrics;
  output_of(mpirun(2, "sh -c 'exec " + kTrain + small("quiet_ranks") + closed + "'"));
  for (const char* run : {"quiet", "quiet_ranks"})
    EXPECT_EQ(run_command(kEval + " " + file(run) + data() + " --threads 1").code, 0) << run;
}

}  // namespace
}  // namespace cifar_mpi::test
