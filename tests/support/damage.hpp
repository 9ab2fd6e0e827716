#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "support/temp_dir.hpp"

/// The result of reading a file with one wrong byte.
namespace cifar_mpi::test {

enum class Outcome { unchanged, refused, changed, other_exception, crashed, hung };

inline const char* to_string(Outcome outcome) {
  constexpr const char* kNames[] = {
      "read as before", "refused", "read with other content", "left by another exception", "crashed", "hung"};
  return kNames[static_cast<int>(outcome)];
}

/// Calls `reads_as_before` in a child process, which may crash or hang. The child exits without leak checks:
/// HDF5 1.10 loses memory when a header is damaged.
inline Outcome try_reading(ErrorKind kind, const std::function<bool()>& reads_as_before) {
  constexpr unsigned kLimit_s = 20;
  const auto leave = [](Outcome outcome) { _exit(static_cast<int>(outcome)); };
  const pid_t child = fork();
  if (child == 0) {
    for (const int signal : {SIGALRM, SIGSEGV, SIGABRT, SIGBUS, SIGFPE}) std::signal(signal, SIG_DFL);
    alarm(kLimit_s);
    try {
      leave(reads_as_before() ? Outcome::unchanged : Outcome::changed);
    } catch (const Error& error) {
      leave(error.kind() == kind ? Outcome::refused : Outcome::other_exception);
    } catch (...) {
      leave(Outcome::other_exception);
    }
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child)
    throw std::runtime_error("cannot start a child process");
  if (WIFSIGNALED(status)) return WTERMSIG(status) == SIGALRM ? Outcome::hung : Outcome::crashed;
  // A sanitizer's report ends the child with a code of its own.
  return WEXITSTATUS(status) <= static_cast<int>(Outcome::hung) ? Outcome{WEXITSTATUS(status)}
                                                                : Outcome::crashed;
}

struct Flip {
  std::size_t at = 0;
  char with = 0;  ///< is XORed, never 0
};

/// The same flips of random bytes for the same arguments, on any machine.
inline std::vector<Flip> random_flips(std::size_t file_size, std::size_t flips) {
  std::mt19937 random(1);
  std::vector<Flip> list(flips);
  for (Flip& flip : list) flip = {random() % file_size, static_cast<char>(1 + random() % 255)};
  return list;
}

/// Expects that the file at `path`, with each of the flips in turn, is read as before or refused with `kind`.
inline void expect_damage_is_noticed(const std::string& path, const std::vector<Flip>& flips, ErrorKind kind,
                                     const std::function<bool()>& reads_as_before) {
  const std::string whole = read_file(path);
  ASSERT_EQ(try_reading(kind, reads_as_before), Outcome::unchanged) << "the undamaged file";
  int refused = 0;
  for (const Flip& flip : flips) {
    std::string damaged = whole;
    damaged[flip.at] = static_cast<char>(damaged[flip.at] ^ flip.with);
    write_file(path, damaged);
    const Outcome outcome = try_reading(kind, reads_as_before);
    if (outcome == Outcome::refused) ++refused;
    EXPECT_TRUE(outcome == Outcome::refused || outcome == Outcome::unchanged)
        << "byte " << flip.at << " of " << whole.size() << " XOR " << int{flip.with} << ": "
        << to_string(outcome);
  }
  EXPECT_GT(refused, 0) << "no flip was noticed at all";
  write_file(path, whole);
}

}  // namespace cifar_mpi::test
