#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "app/bench_allreduce.hpp"
#include "app/device.hpp"
#include "app/programs.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/cuda/backend.hpp"
#include "cifar_mpi/forecast/links.hpp"
#include "cifar_mpi/report/timeline_file.hpp"
#include "report/json.hpp"
#include "support/errors.hpp"

namespace cifar_mpi::app {
namespace {

AllReduceOptions on(const std::string& device) {
  AllReduceOptions options;
  options.device = device;
  return options;
}

TEST(AllReduceOptions, NameCollectivesOfTheDevice) {
  for (const char* name : {"ring", "window", "mpi"}) {
    AllReduceOptions options = on("cpu");
    options.config.algorithms = {"auto", name};
    EXPECT_NO_THROW(check(options));
    options.device = "cuda";
    expect_error(ErrorKind::usage, {std::string("--algorithms ") + name}, [&] { check(options); });
  }
  AllReduceOptions options = on("cuda");
  options.config.algorithms = {"auto", "nccl", "doubling"};
  EXPECT_NO_THROW(check(options));
  options.nccl_algorithm = "ring";
  expect_error(ErrorKind::usage, {"--algorithms doubling gathers"}, [&] { check(options); });
  options.nccl_algorithm = "auto";
  options.device = "cpu";
  expect_error(ErrorKind::usage, {"--algorithms nccl"}, [&] { check(options); });
}

TEST(AllReduceOptions, MeanAllThatGpusHaveWhenNobodySays) {
  AllReduceOptions options = on("cuda");
  check(options);
  EXPECT_EQ(options.config.algorithms, (std::vector<std::string>{"nccl", "doubling"}));
  options = on("cuda");
  options.nccl_algorithm = "tree";
  check(options);
  EXPECT_EQ(options.config.algorithms, std::vector<std::string>{"nccl"});
  options = on("cpu");
  check(options);
  EXPECT_TRUE(options.config.algorithms.empty());
}

TEST(AllReduceOptions, RefuseWhatTheDeviceCannot) {
  AllReduceOptions options = on("cuda");
  options.wire = "bf16";
  expect_error(ErrorKind::usage, {"--wire bf16"}, [&] { check(options); });
  options = on("cpu");
  options.share_gpus = true;
  expect_error(ErrorKind::usage, {"--share-gpus"}, [&] { check(options); });
  options = on("cpu");
  options.nccl_algorithm = "tree";
  expect_error(ErrorKind::usage, {"--nccl-algo"}, [&] { check(options); });
  options.device = "cuda";
  options.share_gpus = true;
  EXPECT_NO_THROW(check(options));
  options.nccl_nvls = true;
  expect_error(ErrorKind::usage, {"--nccl-nvls cannot be combined with --nccl-algo tree"},
               [&] { check(options); });
  options = on("cpu");
  options.nccl_nvls = true;
  expect_error(ErrorKind::usage, {"--nccl-nvls is for GPUs"}, [&] { check(options); });
}

TEST(CollectiveNames, NameEachOnceAndRefuseOnTheCpuOnlyThoseOfGpus) {
  std::vector<std::string> names = collective_names();
  EXPECT_EQ(std::count(names.begin(), names.end(), "nccl"), 1);
  EXPECT_EQ(std::count(names.begin(), names.end(), "doubling"), 1);
  EXPECT_NO_THROW(check_collective("doubling", false, "--device cpu"));
  EXPECT_NO_THROW(check_collective("nccl", true, "--device cuda"));
  EXPECT_THROW(check_collective("nccl", false, "--device cpu"), Error);
}

TEST(AllReduceJson, HasMpisTimeWhereItWasMeasured) {
  comm::AllReduceTiming timing;
  timing.algorithm = timing.resolved = "nccl";
  timing.bytes = 4096;
  timing.median_s = 2e-6;
  EXPECT_FALSE(contains(to_json(timing, 1, "cuda"), "mpi_allreduce_us"));
  EXPECT_TRUE(contains(to_json(timing, 1, "cuda"), "\"device\": \"cuda\""));
  timing.mpi_allreduce_s = 3e-6;
  EXPECT_TRUE(contains(to_json(timing, 1, "cpu"), "\"mpi_allreduce_us\": 3.000, \"wrong\": 0}"));
}

class Bench : public test::Programs {};

TEST_F(Bench, LimitsHowLongOpenMpsThreadsSpinUnlessTheEnvironmentSaysIt) {
  const auto environment_of = [](const std::string& settings, int threads) {
    return test::run_command(
               concat("env -u GOMP_SPINCOUNT OMP_DISPLAY_ENV=VERBOSE ", settings, " ", test::kBench,
                      " step --device cpu --batch-size 2 --rounds 1 --seconds 0.001 --threads ", threads))
        .output;
  };
  const std::string limited = "GOMP_SPINCOUNT = '1000'";
  EXPECT_TRUE(contains(environment_of("", 2), limited));
  EXPECT_FALSE(contains(environment_of("", 1), limited));
  const std::string given = environment_of("GOMP_SPINCOUNT=77", 2);
  EXPECT_TRUE(contains(given, "GOMP_SPINCOUNT = '77'"));
  EXPECT_FALSE(contains(given, limited));
  EXPECT_FALSE(contains(environment_of("OMP_WAIT_POLICY=passive", 2), limited));
}

TEST_F(Bench, KeepsItsNameWhenItRestartsItself) {
  const std::string command =
      concat("env -u GOMP_SPINCOUNT ", test::kBench,
             " step --device cpu --batch-size 2 --rounds 1 --seconds 0.2 --threads 2 ",
             "> /dev/null 2>&1 & while name=$(cat /proc/$!/comm 2> /dev/null); do ",
             "last=$name; sleep 0.01; done; wait $! && echo $last");
  EXPECT_EQ(test::run_command(command).output, "cifar_mpi_bench\n");
}

TEST_F(Bench, UsesNoMoreInstructionsThanItIsLetTo) {
  const auto step = [](const std::string& options) {
    return test::run_command(concat(test::kBench,
                                    " step --device cpu --batch-size 16 --rounds 1 --seconds 0.001 ",
                                    "--threads 1 --conv fft ", options));
  };
  const std::string portable = output_of(step("--isa portable"));
  EXPECT_TRUE(contains(portable, "SSE4.1"));
  EXPECT_TRUE(contains(portable, "vectors of 4"));
  EXPECT_FALSE(contains(portable, "avx"));
  const test::Outcome avx2 = step("--isa avx2");
  if (avx2.code == exit_code(ErrorKind::device)) GTEST_SKIP() << "this cpu has no AVX2";
  EXPECT_TRUE(contains(avx2.output, ", AVX2, "));
  EXPECT_FALSE(contains(avx2.output, "avx512"));
  EXPECT_FALSE(contains(avx2.output, "AVX-512"));
}

TEST_F(Bench, SaysWhichKernelsItMeasuresAboveEachTable) {
  const std::string outcome = output_of(test::run_command(
      test::kBench + " step --device cpu --threads 1 --batch-size 2,3 --rounds 1 --seconds 0.001"));
  EXPECT_EQ(test::count_lines_with(outcome, "  conv2 forward: "), 2) << outcome;
  EXPECT_LT(outcome.find("  conv2 forward: "), outcome.find("ms per step"));
}

TEST_F(Bench, WritesTheStepOfEachBatchSizeAsJson) {
  const std::string path = file("step.json");
  const std::string outcome = output_of(mpirun(
      2, test::kBench + " step --device cpu --threads 1 --batch-size 2,3 --rounds 2 --seconds 0.01 --json " +
             path));
  std::istringstream lines(read_file(path));
  int batch = 2;
  for (std::string line; std::getline(lines, line); ++batch) {
    report::JsonObject object;
    ASSERT_EQ(object.parse(line), "") << line;
    EXPECT_EQ(object.text("format"), "cifar_mpi step");
    EXPECT_EQ(object.number("batch_size"), batch);
    EXPECT_EQ(object.number("ranks"), 2);
    EXPECT_TRUE(contains(object.text("kernels"), "conv2 forward: ")) << line;
    const std::string bits = "bits of the first two steps: " + object.text("bits") + "\n";
    EXPECT_EQ(test::count_lines_with(outcome, bits.substr(0, bits.size() - 1)), 1) << bits << outcome;
    for (const char* name : {"step_ms", "images_per_s", "processor_share", "peak_gflops", "copy_gb_s",
                             "alone_ms", "blocking_ms"}) {
      const auto values = object.numbers(name);
      ASSERT_EQ(values.size(), 3u) << name;
      EXPECT_TRUE(0.0 < values[0] && values[0] <= values[1] && values[1] <= values[2])
          << name << " in " << line;
    }
    const auto step_ms = object.numbers("step_ms"), images = object.numbers("images_per_s");
    EXPECT_NEAR(images[2], 2 * batch / (1e-3 * step_ms[0]), 1e-4 * images[2]);
    const auto slices = object.numbers("slice_ms"), shares = object.numbers("slice_share");
    ASSERT_GE(slices.size(), 2u) << line;
    ASSERT_LE(slices.size(), 100u) << line;
    EXPECT_EQ(slices.size(), shares.size()) << line;
    EXPECT_LE(std::ranges::min(slices), step_ms[2]) << line;
    EXPECT_GE(std::ranges::max(slices), step_ms[0]) << line;
    EXPECT_GT(std::ranges::min(shares), 0.0) << line;
  }
  EXPECT_EQ(batch, 4);
}

TEST_F(Bench, RefusesAFileThatItCannotWriteBeforeItMeasures) {
  const test::Outcome outcome = test::run_command(
      test::kBench + " step --device cpu --batch-size 2 --rounds 1 --seconds 0.01 --json /nowhere/step.json");
  expect_refusal(outcome, exit_code(ErrorKind::io), "/nowhere/step.json");
  EXPECT_FALSE(contains(outcome.output, "ms per step"));
}

TEST_F(Bench, ComparesWaysWithAndWithoutASlowWorkerInColumnsThatProgramsCanRead) {
  const std::string outcome = output_of(test::run_command(
      test::kBench + " ways --ways all-reduce,local:2 --compute-ms 5 --seconds 0.01 --batch-size 2"));
  for (const char* row :
       {"all-reduce +1 +2 +no", "all-reduce +1 +2 +x3", "local:2 +1 +2 +no", "local:2 +1 +2 +x3"}) {
    const std::regex line(concat("\n", row, " +[0-9.]+ +[0-9]+ +[0-9]+ +- +- +0.0% +-  "));
    EXPECT_TRUE(std::regex_search(outcome, line)) << row << " in " << outcome;
  }
}

TEST_F(Bench, RecordsAWayForTheForecast) {
  const std::string ways =
      test::kBench + " ways --slow-factor 1 --compute-ms 2 --batch-size 2 --record " + file("run");
  output_of(test::run_command(concat(test::kMpirun, " -np 2 ", ways, " --ways all-reduce --seconds 0.5")));
  const report::Timeline timeline = report::read_timeline(file("run") + "/timeline.h5");
  EXPECT_EQ(timeline.hosts.size(), 2u);
  EXPECT_GE(timeline.steps.size(), 3u);
  const std::string forecast = output_of(
      test::run_command(concat(test::kReport, " ", file("run"), " --forecast 4 --link 20us,10gbit")));
  EXPECT_TRUE(contains(forecast, "recorded on 2 ranks"));
  EXPECT_TRUE(contains(forecast, "a recording of cifar_mpi_bench ways"));
  EXPECT_FALSE(contains(forecast, "warning: "));
  EXPECT_FALSE(contains(forecast, "no core for its work"));
  const std::string exporting = concat(test::kReport, " ", file("run"), " --link 20us,10gbit --goal ",
                                       file("step.goal"), " --chakra ", file("step"), " --forecast ");
  expect_refusal(test::run_command(exporting + "4,8"), exit_code(ErrorKind::usage), "one number, not 2");
  const std::string exported = output_of(test::run_command(exporting + "4"));
  EXPECT_TRUE(contains(exported, "step.0.et to "));
  EXPECT_TRUE(exists(DirectoryEntry(file("step.3.et"))));
  EXPECT_TRUE(contains(read_file(file("step.goal")), "// A step of 4 ranks, 2 per node."));
  const test::Outcome brief =
      test::run_command(concat(test::kMpirun, " -np 2 ", ways, " --ways all-reduce --seconds 0.002"));
  EXPECT_TRUE(contains(brief.output, "too few steps: raise --seconds"));
  expect_refusal(test::run_command(ways + " --ways all-reduce"), exit_code(ErrorKind::usage),
                 "at least two ranks");
  write_file(file("run/metrics.jsonl"), "");
  expect_refusal(test::run_command(concat(test::kMpirun, " -np 2 ", ways, " --ways all-reduce")),
                 exit_code(ErrorKind::usage), "holds a training run");
  for (const char* const several : {"all-reduce,local:2", "server:1"})
    expect_refusal(test::run_command(ways + " --ways " + several), exit_code(ErrorKind::usage),
                   "--record needs a single way without servers");
}

TEST_F(Bench, RefusesWaysThatThereAreNotOrTheRanksCannotGo) {
  expect_refusal(test::run_command(test::kBench + " ways --ways all-reduce,ring"),
                 exit_code(ErrorKind::usage), "not 'ring'");
  const test::Outcome outcome = test::run_command(test::kBench + " ways --ways all-reduce,server:1");
  expect_refusal(outcome, exit_code(ErrorKind::usage), "--servers 1");
  EXPECT_FALSE(contains(outcome.output, "ms/step")) << "something was measured before";
}

TEST_F(Bench, MeasuresLinksOnEmulatedNodesForTheForecast) {
  const std::string json = file("links.json");
  const test::Outcome outcome = test::run_command(
      concat("exec ", CIFAR_MPI_SOURCE_ROOT "/tools/shaped_nodes --rate 1gbit --nodes 4 -- ", test::kBench,
             " links --seconds 0.01 --json ", json));
  if (outcome.code == 77) GTEST_SKIP() << outcome.output;
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "ring of 4 nodes"));
  const forecast::Links links = forecast::read_links(json);
  EXPECT_EQ(links.message.size(), 8u);
  // 8 MiB take 67 ms at 1 Gbit/s, less at most 256 kB for each of the two token buckets on the way; busy cores
  // add to it, and to the shortest message, whose time is subtracted for the speed
  EXPECT_GT(links.message.back().second, 0.060) << outcome.output;
  EXPECT_GT(links.bytes_per_s, 0.0) << outcome.output;
}

/// The answer to a message is short: it takes no part of the speed.
TEST_F(Bench, MeasuresTheWholeSpeedOfALinkBetweenTwoNodes) {
  double fastest = 0.0;
  for (int i = 0; i < 10 && fastest < 0.6 * 125e6; ++i) {  // busy cores only slow it down
    const std::string json = file(concat("links", i, ".json"));
    const test::Outcome outcome = test::run_command(
        concat("exec ", CIFAR_MPI_SOURCE_ROOT "/tools/shaped_nodes --rate 1gbit --nodes 2 -- ", test::kBench,
               " links --seconds 0.05 --json ", json));
    if (outcome.code == 77) GTEST_SKIP() << outcome.output;
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    fastest = std::max(fastest, forecast::read_links(json).bytes_per_s);
  }
  EXPECT_GT(fastest, 0.6 * 125e6);
}

TEST_F(Bench, MeasuresAStudyOfEmulatedNodes) {
  if (test::run_command("command -v python3").code != 0) GTEST_SKIP() << "there is no python3 here";
  const std::string out = file("study");
  const test::Outcome outcome = test::run_command(concat(
      "exec " CIFAR_MPI_SOURCE_ROOT "/tools/shaped_nodes --once -- " CIFAR_MPI_SOURCE_ROOT
      "/tools/study --hosts node1,node2 --device cpu --threads 1 --seconds 0.02 --rounds 2 --repeats 1 ",
      "--batch-size 4 --sizes 4K --seeds 1 --target 1 --train '--batch-size 4 --steps 4 --log-every 2 "
      "--data ",
      file("small.h5"), "' --build ", test::kBin, " --out ", out));
  if (outcome.code == 77) GTEST_SKIP() << outcome.output;
  // Too short to judge speeds: code 3 if a node or link looks slow. No launch failed, and all bits agree.
  EXPECT_TRUE(outcome.code == 0 || outcome.code == 3) << outcome.output;
  for (const char* problem : {" failed: ", " bits ", "does not answer", "wrong sums"})
    EXPECT_FALSE(contains(outcome.output, problem));
  const std::string json = read_file(out + "/study.json");
  for (const char* metric :
       {"node node2: copy_gb_s", "pair node1 - node2: bandwidth", "all-reduce ring, 4096 bytes",
        "strong scaling, 2 nodes", "weak scaling, 1 node", "time to the target"})
    EXPECT_TRUE(contains(json, concat('"', metric, '"'))) << metric;
  EXPECT_GT(forecast::read_links(out + "/study.json").bytes_per_s, 0.0);
  EXPECT_EQ(forecast::read_links(out + "/study.json").message,
            forecast::read_links(out + "/links.json").message);
  EXPECT_TRUE(contains(read_file(out + "/accuracy/seed_1/dawnbench.tsv"), "top1Accuracy\n"));
}

TEST_F(Bench, ReplacesNoFileOfAnotherKind) {
  write_file(file("data.h5"), "precious");
  const std::string json = " --seconds 0.01 --json " + file("data.h5");
  for (const std::string what :
       {"links", "step --device cpu --batch-size 2 --rounds 1", "allreduce --sizes 4"}) {
    expect_refusal(test::run_command(concat(test::kBench, ' ', what, json)), exit_code(ErrorKind::usage),
                   "data.h5 exists and is not a file of cifar_mpi_bench " + what.substr(0, what.find(' ')));
    EXPECT_EQ(read_file(file("data.h5")), "precious") << what;
  }
  const std::string sums =
      concat(test::kBench, " allreduce --sizes 4 --seconds 0.01 --json ", file("sums.json"));
  const std::string step = concat(test::kBench, " step --device cpu --batch-size 2 --rounds 1 --seconds 0.01",
                                  " --json ", file("step.json"));
  for (const std::string& command : {sums, sums, step, step}) {
    const test::Outcome outcome = test::run_command(command);
    EXPECT_EQ(outcome.code, 0) << command << '\n' << outcome.output;
  }
}

TEST_F(Bench, RefusesToMeasureLinksOnOneNode) {
  expect_refusal(mpirun(2, test::kBench + " links"), exit_code(ErrorKind::usage),
                 "all ranks are on one node");
}

TEST_F(Bench, RefusesGpusInOneSentenceWhereThereAreNone) {
  if (cuda::unusable().empty()) GTEST_SKIP() << "this machine has a GPU";
  expect_refusal(mpirun(2, test::kBench + " allreduce --device cuda --sizes 4K"),
                 exit_code(ErrorKind::device), cuda::unusable() + "; use --device cpu");
}

}  // namespace
}  // namespace cifar_mpi::app
