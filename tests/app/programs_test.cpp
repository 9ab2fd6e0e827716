#include "app/programs.hpp"

namespace cifar_mpi::test {
namespace {

TEST_F(Programs, FollowARunDirectory) {
  ASSERT_EQ(mpirun(1, kTrain + small("watched")).code, 0);
  for (const char* signal : {"TERM", "INT"}) {
    const Outcome outcome =
        run_command(std::string("timeout --preserve-status -s ") + signal + " 8 " + kEval + " " +
                    file("watched") + data() + " --watch --interval 0.1 --threads 1");
    EXPECT_EQ(outcome.code, 0) << outcome.output;  // it follows until it is asked to stop
    EXPECT_EQ(count_lines_with(outcome.output, "precision @ 1 = "), 1) << outcome.output;
  }
}

}  // namespace
}  // namespace cifar_mpi::test
