#pragma once

#include <string>

#include "app/programs.hpp"
#include "cifar_mpi/run/run_directory.hpp"
#include "fault/job.hpp"

/// Whole runs of the programs linked with the stand-in GPU, as users start them.
namespace cifar_mpi::test {

class GpuRuns : public Programs {
 protected:
  /// Far more seconds than ranks need to end, also beside other work.
  static constexpr double kPatience = 60.0;
  /// A run of small steps whose ranks share the one GPU, without a self-check. A network of 8 pixels has all
  /// layers and a quarter of the weights of one of 24. Only a rank that hangs reaches the timeout: a stand-in
  /// that gets no core has taken half a minute for a step.
  static std::string train(const std::string& run, const std::string& options) {
    return kTrain + data() + " --run-dir " + file(run) +
           " --device cuda --self-check off --share-gpus --global-batch 8 --threads 1 --log-every 1 "
           "--timeout 100 --input-size 8 " +
           options;
  }
  /// Whether the programs have a CPU backend to compare with.
  static bool has_cpu() {
    return run_command(kTrain + " --check-build").output.find("built without oneDNN") == std::string::npos;
  }
  static std::string checkpoint(const std::string& run, int step) {
    return run::checkpoint_path(file(run), static_cast<std::uint64_t>(step));
  }
  /// Of the newest checkpoint; 0 without one.
  static int last_step(const std::string& run) {
    if (!std::filesystem::exists(file(run))) return 0;
    const auto steps = run::list_checkpoints(Directory(file(run)));
    return steps.empty() ? 0 : static_cast<int>(steps.back());
  }
  static bool has_logged(const std::string& run, int step) {
    return text_of(file(run) + "/metrics.jsonl").find("{\"step\":" + std::to_string(step) + ",") !=
           std::string::npos;
  }
  static std::string exit_record(const std::string& run) { return text_of(file(run) + "/exit"); }

  /// `command` with separate settings on rank `rank`.
  static std::string where_rank(int rank, const std::string& setting, const std::string& command) {
    write_file(file("by_rank.sh"), "[ \"$OMPI_COMM_WORLD_RANK\" != " + std::to_string(rank) +
                                       " ] || export " + setting + "\nexec \"$@\"\n");
    return "bash " + file("by_rank.sh") + " " + command;
  }

  /// Runs with equal results, group by group.
  static void expect_same_groups(const std::string& run, const std::string& reference, int step,
                                 bool same_ranks = true) {
    ASSERT_EQ(run_command("command -v h5diff").code, 0) << "h5diff of hdf5-tools is not installed";
    for (const std::string group : {"/model", "/ema", "/optimizer", "/progress"}) {
      if (group == "/progress" && !same_ranks) continue;
      const Outcome diff = run_command("h5diff " + checkpoint(reference, step) + " " + checkpoint(run, step) +
                                       " " + group + " " + group);
      EXPECT_EQ(diff.code, 0) << run << group << " is not that of " << reference << ": " << diff.output;
    }
  }

  /// Starts mpirun in the background. It gives the other ranks time to report a lost rank.
  static Process launch(int ranks, const std::string& command, const std::string& log) {
    const std::string line = kShellSettings + "export OMPI_MCA_odls_base_sigkill_timeout=3; exec " + kMpirun +
                             " -np " + std::to_string(ranks) + " " + command;
    return start({"bash", "-c", line}, {}, file(log));
  }
};

}  // namespace cifar_mpi::test
