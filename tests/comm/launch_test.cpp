#include "comm/launch.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace cifar_mpi::comm {
namespace {

Environment environment(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

TEST(Announcement, IsMissingWithoutALauncher) { EXPECT_FALSE(announced_ranks(environment({{"HOME", "/"}}))); }

TEST(Announcement, ComesFromEveryKnownLauncher) {
  for (const char* variable :
       {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const auto announced = announced_ranks(environment({{variable, "4"}}));
    ASSERT_TRUE(announced) << variable;
    EXPECT_EQ(announced->variable, variable);
    EXPECT_EQ(announced->ranks, 4);
  }
}

TEST(Announcement, IsNotReadFromABatchScript) {
  EXPECT_FALSE(
      announced_ranks(environment({{"SLURM_NTASKS", "4"}, {"SLURM_NPROCS", "4"}, {"SLURM_JOB_ID", "7"}})));
}

TEST(Announcement, OfTheNearestLauncherWins) {
  const auto announced =
      announced_ranks(environment({{"SLURM_STEP_NUM_TASKS", "4"}, {"OMPI_COMM_WORLD_SIZE", "1"}}));
  ASSERT_TRUE(announced);
  EXPECT_EQ(announced->ranks, 1);
}

TEST(Announcement, IsNotMadeOfOtherText) {
  EXPECT_FALSE(announced_ranks(environment({{"PMI_SIZE", ""}})));
  EXPECT_FALSE(announced_ranks(environment({{"PMI_SIZE", "4x"}})));
  EXPECT_FALSE(announced_ranks(environment({{"PMI_SIZE", "many"}})));
}

TEST(Announcement, TextSaysWhatWasFoundAndWhatToDo) {
  const std::string text = world_of_one_text({"PMI_SIZE", 4}, "Open MPI v4.1.4");
  for (const char* part : {"4 ranks", "PMI_SIZE=4", "mpirun of Open MPI v4.1.4", "srun --mpi=pmix"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
}

bool sets(const std::vector<Setting>& settings, std::string_view variable) {
  for (const Setting& s : settings) {
    if (s.variable == variable && s.value == "1") return true;
  }
  return false;
}

TEST(SettingsBeforeInit, GiveWayOnlyWithMoreLocalRanksThanCores) {
  constexpr const char* kYield = "OMPI_MCA_mpi_yield_when_idle";
  const auto three = environment({{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}, {"OMPI_COMM_WORLD_SIZE", "3"}});
  EXPECT_TRUE(sets(settings_before_init(three, 2), kYield));
  EXPECT_FALSE(sets(settings_before_init(three, 3), kYield));
}

TEST(SettingsBeforeInit, LeaveTheUsersChoiceAlone) {
  const auto chosen = environment({{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                                   {"OMPI_MCA_mpi_yield_when_idle", "0"},
                                   {"OMPI_MCA_ess_singleton_isolated", "0"}});
  EXPECT_TRUE(settings_before_init(chosen, 2).empty());
}

TEST(SettingsBeforeInit, IsolateOnlyAProcessWithoutLauncher) {
  constexpr const char* kIsolated = "OMPI_MCA_ess_singleton_isolated";
  EXPECT_TRUE(sets(settings_before_init(environment({}), 2), kIsolated));
  EXPECT_FALSE(sets(settings_before_init(environment({{"OMPI_COMM_WORLD_SIZE", "1"}}), 2), kIsolated));
}

}  // namespace
}  // namespace cifar_mpi::comm
