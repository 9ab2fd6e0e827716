#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace cifar_mpi::test {

struct Outcome {
  int code = 0;
  std::string output;  ///< standard output and standard error
};

/// `text` as one word of a shell command.
inline std::string in_quotes(const std::string& text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

/// Settings with which mpirun starts anywhere, even if tests are started without tools/run_tests.
inline const std::string kShellSettings =
    "for s in env/mpirun env/one_machine tests/support/ranks; do . \"" CIFAR_MPI_SOURCE_ROOT
    "/$s.sh\"; done; unset CIFAR_MPI_DATA; ";

/// Runs a shell command under a watchdog; 124 means that it hung. A study that takes 50 s on a quiet machine takes
/// minutes on a busy one.
inline Outcome run_command(const std::string& command) {
  const std::string guarded =
      "timeout -k 5 300 bash -c " + in_quotes(kShellSettings + command) + " 2>&1 </dev/null";
  std::FILE* pipe = popen(guarded.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("popen failed");
  Outcome outcome;
  std::array<char, 4096> chunk{};
  while (const std::size_t n = std::fread(chunk.data(), 1, chunk.size(), pipe))
    outcome.output.append(chunk.data(), n);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

/// Lines of `output` that hold `part`.
inline int count_lines_with(const std::string& output, const std::string& part) {
  int lines = 0;
  for (std::size_t at = 0; at < output.size();) {
    std::size_t end = output.find('\n', at);
    if (end == std::string::npos) end = output.size();
    lines += output.substr(at, end - at).find(part) != std::string::npos;
    at = end + 1;
  }
  return lines;
}

}  // namespace cifar_mpi::test
