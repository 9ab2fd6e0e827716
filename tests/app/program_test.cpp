#include "app/program.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "cifar_mpi/base/error.hpp"

namespace cifar_mpi::app {
namespace {

struct End {
  int code = 0;
  std::string said;
};

End end_of(const std::function<int()>& body) {
  testing::internal::CaptureStderr();
  const int code = run_alone("a_program", body);
  return {code, testing::internal::GetCapturedStderr()};
}

TEST(RunAlone, EndsWithTheCodeOfTheBody) {
  const End end = end_of([] { return 7; });
  EXPECT_EQ(end.code, 7);
  EXPECT_EQ(end.said, "");
}

TEST(RunAlone, TurnsExceptionsIntoASentenceAndACode) {
  const End ours = end_of([]() -> int { throw Error(ErrorKind::io, "the disk is full"); });
  EXPECT_EQ(ours.code, 5);
  EXPECT_EQ(ours.said, "a_program: the disk is full\n");
  const End memory = end_of([]() -> int { throw std::bad_alloc(); });
  EXPECT_EQ(memory.code, 6);
  EXPECT_EQ(memory.said.find("a_program: not enough memory"), 0u) << memory.said;
  const End thread = end_of([]() -> int {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  });
  EXPECT_EQ(thread.code, 6);
  EXPECT_EQ(thread.said.find("a_program: a thread could not be started"), 0u) << thread.said;
  const End bug = end_of([]() -> int { throw std::logic_error("oops"); });
  EXPECT_EQ(bug.code, 1);
  EXPECT_EQ(bug.said, "a_program: internal error: oops\n");
}

TEST(Parse, TakesTheStandardDescriptorsThatAreClosed) {
  const auto child = [] {
    for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::close(descriptor);
    CLI::App cli("", "a_program");
    char name[] = "a_program";
    char* words[] = {name, nullptr};
    const bool parsed = !parse(cli, 1, words).has_value();
    // Otherwise standard output would write into this file.
    std::exit(parsed && ::open("/dev/zero", O_RDONLY | O_CLOEXEC) > STDERR_FILENO ? 42 : 1);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(42), "");
}

TEST(RunInWorld, NamesTheRankThatEndsAllOthers) {
  // An error without a vote: this rank prints it and aborts MPI.
  const auto child = [] {
    const CLI::App cli("", "a_program");
    char name[] = "a_program";
    char* words[] = {name, nullptr};
    run_in_world(cli, 1, words, [](comm::World&) -> int { throw Error(ErrorKind::io, "the disk is full"); });
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(5), "a_program: rank 0: the disk is full");
}

TEST(RunInWorld, LeavesWithOneSentenceWhenAllRanksKnow) {
  const auto child = [] {
    const CLI::App cli("", "a_program");
    char name[] = "a_program";
    char* words[] = {name, nullptr};
    std::exit(run_in_world(cli, 1, words, [](comm::World& world) {
      world.together([] { throw Error(ErrorKind::data, "no data"); });
      return 0;
    }));
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(3), "a_program: .*no data");
}

}  // namespace
}  // namespace cifar_mpi::app
