#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// A job under mpirun that a test disturbs. Its processes are found as children of the mpirun it started,
/// never by name.
namespace cifar_mpi::test {

using Environment = std::map<std::string, std::string>;

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
inline void sleep_s(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// What can be read: a file of a process that ends meanwhile is cut short.
inline std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// Waits for `condition`, at most `seconds`; returns whether it holds.
inline bool wait_until(double seconds, const std::function<bool()>& condition) {
  for (const double until = seconds_now() + seconds; seconds_now() < until; sleep_s(0.01)) {
    if (condition()) return true;
  }
  return condition();
}

/// A started process with all its output in a file. Killed when the test leaves it.
class Process {
 public:
  Process(pid_t pid, std::string log) : pid_(pid), log_(std::move(log)) {}
  ~Process() {
    if (code_ < 0) kill(pid_, SIGKILL), wait(5.0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  std::string output() const { return text_of(log_); }
  void signal(int number) const { kill(pid_, number); }
  /// Its exit code, 128 + N when signal N ended it, -1 while it runs.
  int wait(double seconds) {
    wait_until(seconds, [this] {
      int status = 0;
      if (code_ < 0 && waitpid(pid_, &status, WNOHANG) == pid_)
        code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      return code_ >= 0;
    });
    return code_;
  }

 private:
  pid_t pid_;
  std::string log_;
  int code_ = -1;
};

/// In a child between fork and exec.
[[noreturn]] inline void become(const std::vector<std::string>& words, const Environment& environment) {
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  _exit(127);
}

inline Process start(const std::vector<std::string>& words, const Environment& environment,
                     const std::string& log) {
  const pid_t child = fork();
  if (child == 0) {
    const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int in = open("/dev/null", O_RDONLY);
    dup2(in, 0), dup2(out, 1), dup2(out, 2);
    become(words, environment);
  }
  return {child, log};
}

/// The ranks that `mpirun` started, by rank; fewer if some have ended or not started.
inline std::map<int, pid_t> ranks_of(pid_t mpirun) {
  namespace fs = std::filesystem;
  std::map<int, pid_t> ranks;
  std::error_code error;
  for (const auto& thread : fs::directory_iterator("/proc/" + std::to_string(mpirun) + "/task", error)) {
    std::istringstream children(text_of(thread.path() / "children"));
    for (pid_t child = 0; children >> child;) {
      const std::string variables = text_of("/proc/" + std::to_string(child) + "/environ");
      const std::string key("\0OMPI_COMM_WORLD_RANK=", 22);
      const std::size_t at = variables.find(key);
      if (at != std::string::npos) ranks[std::atoi(variables.c_str() + at + key.size())] = child;
    }
  }
  return ranks;
}

/// False when it has ended, even if it is still a zombie.
inline bool runs(pid_t pid) {
  const std::string status = text_of("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t at = status.rfind(") ");
  return at != std::string::npos && status[at + 2] != 'Z' && status[at + 2] != 'X';
}

}  // namespace cifar_mpi::test
