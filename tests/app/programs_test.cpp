#include "app/programs.hpp"

namespace cifar_mpi::test {
namespace {

TEST_F(Programs, FollowARunDirectory) {
  ASSERT_EQ(mpirun(1, kTrain + small("watched")).code, 0);
  const Outcome outcome = run_command("timeout 10 " + kEval + " " + file("watched") + data() +
                                      " --watch --interval 0.1 --threads 1");
  EXPECT_EQ(outcome.code, 124) << outcome.output;  // it follows until it is ended
  EXPECT_EQ(count_lines_with(outcome.output, "precision @ 1 = "), 1) << outcome.output;
}

}  // namespace
}  // namespace cifar_mpi::test
