#include "cifar_mpi/comm/heartbeat.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "comm/exit_timer.hpp"
#include "support/mpi_world.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::comm {
namespace {

using test::test_world;

TEST(Heartbeats, AreSeenByAllRanksOfTheNode) {
  const World& world = test_world();
  const Heartbeats hearts(world);
  ASSERT_EQ(hearts.ranks(), world.node_size());
  EXPECT_EQ(hearts.self(), world.node_rank());
  EXPECT_EQ(hearts.pid(hearts.self()), getpid());
  const auto rank = static_cast<std::uint64_t>(world.rank());
  hearts.mine().step = 100 + rank;
  hearts.mine().activity = Activity::evaluating;
  hearts.mine().progress.show(7 + rank, 3);
  world.barrier();
  for (int place = 0; place < hearts.ranks(); ++place) {
    const Heartbeat& heart = hearts.of(place);
    const auto other = static_cast<std::uint64_t>(heart.rank.load());
    EXPECT_EQ(heart.step, 100 + other);
    EXPECT_EQ(heart.activity.load(), Activity::evaluating);
    EXPECT_EQ(heart.progress.snapshot(), (engine::ProgressCounter::Snapshot{7 + other, 3}));
    EXPECT_FALSE(hearts.gone(place));
  }
  world.barrier();
}

TEST(Heartbeats, LetOneRankOfTheNodeSpeak) {
  const World& world = test_world();
  const Heartbeats hearts(world);
  std::vector<double> speakers{hearts.elect_reporter() ? 1.0 : 0.0};
  EXPECT_FALSE(hearts.elect_reporter());
  world.sum(speakers);
  EXPECT_EQ(speakers.front(), 1.0);  // all ranks of a test are on one node
}

TEST(Heartbeats, LeaveNoFileBehind) {
  const TempDir dir;  // rank 0's is taken
  setenv("OMPI_MCA_osc_sm_backing_directory", dir.path().c_str(), 1);
  const Heartbeats hearts(test_world());
  unsetenv("OMPI_MCA_osc_sm_backing_directory");
  EXPECT_EQ(hearts.ranks(), test_world().node_size());
  EXPECT_EQ(dir.files(), 0u);
}

TEST(Heartbeats, StandAloneWhereNothingCanBeShared) {
  // Every rank asks for the same folder, so the failure is common to all.
  setenv("OMPI_MCA_osc_sm_backing_directory", "/nonexistent", 1);
  const Heartbeats hearts(test_world());
  unsetenv("OMPI_MCA_osc_sm_backing_directory");
  EXPECT_EQ(hearts.ranks(), 1);
  EXPECT_EQ(hearts.mine().rank, test_world().rank());
  EXPECT_EQ(hearts.pid(0), getpid());
  EXPECT_FALSE(hearts.gone(0));
}

/// The end of a child process that makes an exit timer of `limit` seconds and stays for `stay`.
int end_of_child(double limit, unsigned stay_us) {
  const pid_t child = fork();
  if (child == 0) {
    {
      const ExitTimer timer(limit, 42, "the exit timer ended it");
      usleep(stay_us);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(ExitTimer, EndsWhatTakesTooLongAndNothingElse) {
  if (test_world().rank() == 0) {
    EXPECT_EQ(end_of_child(0.1, 5'000'000), 42);
    EXPECT_EQ(end_of_child(60.0, 1000), 0);
  }
  test_world().barrier();
}

}  // namespace
}  // namespace cifar_mpi::comm
