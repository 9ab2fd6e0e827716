#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "support/mpi_world.hpp"

namespace cifar_mpi::test {
namespace {

bool from_a_launcher(std::string_view variable) {
  constexpr std::array<std::string_view, 8> kPrefixes = {"OMPI_", "PMIX_", "PMI_",   "PRTE_",
                                                         "ORTE_", "MV2_",  "SLURM_", "HYDRA_"};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](std::string_view prefix) { return variable.starts_with(prefix); });
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& s : strings) result.push_back(s.data());
  result.push_back(nullptr);
  return result;
}

std::string read_all(std::FILE* file) {
  std::string text;
  std::rewind(file);
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
  return text;
}

struct ChildResult {
  int exit_code = -1;
  std::string output;  ///< stdout and stderr together
};

/// Runs this test program again as a single process, with the tests that match `filter` (including disabled
/// ones), and waits for it. Its environment lacks all variables of the launcher, and has `variables` added.
ChildResult run_alone(const std::string& filter,
                      const std::vector<std::pair<std::string, std::string>>& variables) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!from_a_launcher(*entry)) environment.emplace_back(*entry);
  }
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  std::vector<std::string> arguments = {"/proc/self/exe", "--gtest_filter=" + filter,
                                        "--gtest_also_run_disabled_tests"};
  std::array<char, 4096> path{};
  if (readlink("/proc/self/exe", path.data(), path.size() - 1) < 0)
    throw std::runtime_error("no /proc/self/exe");

  // A file instead of a pipe, which a daemon started by MPI would keep open.
  std::FILE* const output = std::tmpfile();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fileno(output), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, fileno(output), STDERR_FILENO);
  pid_t child = 0;
  const int spawned = posix_spawn(&child, path.data(), &actions, nullptr, pointers(arguments).data(),
                                  pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  ChildResult result;
  int status = 0;
  if (spawned == 0 && waitpid(child, &status, 0) == child && WIFEXITED(status))
    result.exit_code = WEXITSTATUS(status);
  result.output = read_all(output);
  std::fclose(output);
  return result;
}

TEST(WorldOfOne, StartsWithoutALauncher) {
  if (test_world().rank() != 0) return;
  const ChildResult child = run_alone("None.*", {});
  EXPECT_EQ(child.exit_code, 0) << child.output;
}

TEST(WorldOfOne, IsRefusedWhereMoreRanksWereAnnounced) {
  if (test_world().rank() != 0) return;
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const ChildResult child = run_alone("None.*", {{variable, "4"}});
    EXPECT_EQ(child.exit_code, exit_code(ErrorKind::launch)) << child.output;
    EXPECT_NE(child.output.find(std::string(variable) + "=4"), std::string::npos) << child.output;
    EXPECT_NE(child.output.find(comm::World::library()), std::string::npos) << child.output;
  }
}

TEST(WorldOfOne, IsWelcomeInABatchScriptForManyTasks) {
  if (test_world().rank() != 0) return;
  const ChildResult child = run_alone("None.*", {{"SLURM_NTASKS", "4"}, {"SLURM_STEP_NUM_TASKS", "1"}});
  EXPECT_EQ(child.exit_code, 0) << child.output;
}

/// Runs in a child process only.
TEST(World, DISABLED_AbortsInMidLine) {
  std::printf("before the end");
  test_world().abort(exit_code(ErrorKind::diverged));
}

TEST(World, AbortKeepsTheExitCodeAndWhatWasPrinted) {
  if (test_world().rank() != 0) return;
  const ChildResult child = run_alone("World.DISABLED_AbortsInMidLine", {});
  EXPECT_EQ(child.exit_code, exit_code(ErrorKind::diverged)) << child.output;
  EXPECT_NE(child.output.find("before the end"), std::string::npos) << child.output;
}

/// Runs in a child process only.
TEST(World, DISABLED_AbortsWhileAnotherThreadHoldsStdio) {
  alarm(30);  // ends a child that hangs
  std::atomic<bool> held{false};
  std::thread([&] {
    flockfile(stdout);
    held = true;
    for (;;) pause();
  }).detach();
  while (!held) std::this_thread::yield();
  test_world().abort(exit_code(ErrorKind::diverged));
}

TEST(World, AbortEndsThoughStdioHangs) {
  if (test_world().size() > 1) GTEST_SKIP() << "takes 5 s, and once is enough: needs exactly 1 rank";
  const ChildResult child = run_alone("World.DISABLED_AbortsWhileAnotherThreadHoldsStdio", {});
  EXPECT_EQ(child.exit_code, exit_code(ErrorKind::diverged)) << child.output;
}

/// For a separate job (CTest's comm.AbortsFromAnotherThread): the launcher must end the other ranks.
TEST(World, DISABLED_AbortsFromAnotherThread) {
  if (test_world().rank() == 0) {
    std::thread([] { test_world().abort(exit_code(ErrorKind::diverged)); }).join();
  }
  test_world().barrier();
}

}  // namespace
}  // namespace cifar_mpi::test
