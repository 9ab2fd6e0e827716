#include "hostile/trial.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/error.hpp"

namespace cifar_mpi::test {
namespace {

constexpr int kRead = 100, kRefused = 101, kForeign = 102;  // a sanitizer ends with 1
constexpr unsigned kLimit_s = 5;

#if defined(__SANITIZE_ADDRESS__)
constexpr double kSlower = 10.0;
constexpr bool kMeasuresMemory = false;  // freed memory stays for a while, and shadows count
#else
constexpr double kSlower = 1.0;
constexpr bool kMeasuresMemory = true;
#endif

/// Runs `body`, which writes to the descriptor and ends the process, under a limit of time.
Trial watch(double patience, const std::function<void(int)>& body) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) throw std::runtime_error("no pipe");
  std::fflush(nullptr);
  const double begin = steady_seconds();
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    setpgid(0, 0);
    for (const int signal : {SIGALRM, SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGPIPE})
      std::signal(signal, SIG_DFL);
    alarm(static_cast<unsigned>(kLimit_s * kSlower * patience));
    body(ends[1]);
    _exit(1);
  }
  close(ends[1]);
  Trial trial;
  std::array<char, 4096> chunk{};
  const double deadline = begin + kLimit_s * kSlower * patience + 1.0;
  for (pollfd ask{ends[0], POLLIN, 0}; steady_seconds() < deadline;) {  // its children may hold the pipe open
    if (poll(&ask, 1, 100) <= 0) continue;
    const ssize_t n = read(ends[0], chunk.data(), chunk.size());
    if (n <= 0) break;
    if (trial.seen.size() < 1 << 20) trial.seen.append(chunk.data(), static_cast<std::size_t>(n));
  }
  if (steady_seconds() >= deadline) kill(-child, SIGALRM);
  close(ends[0]);
  int status = 0;
  rusage used{};
  if (child < 0 || wait4(child, &status, 0, &used) != child) throw std::runtime_error("no child");
  kill(-child, SIGKILL);  // a program that hung may have left children
  trial.seconds = steady_seconds() - begin;
  trial.peak_bytes = static_cast<std::size_t>(used.ru_maxrss) << 10;
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  trial.end = code == kRead                                        ? End::read
              : code == kRefused                                   ? End::refused
              : code == kForeign                                   ? End::foreign_exception
              : WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? End::hung
                                                                   : End::crashed;
  return trial;
}

void write_all(int descriptor, const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t n = write(descriptor, text.data() + at, text.size() - at);
    if (n <= 0) return;
    at += static_cast<std::size_t>(n);
  }
}

}  // namespace

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

const char* to_string(End end) {
  constexpr const char* kNames[] = {"read", "refused", "crashed", "hung", "left by another exception"};
  return kNames[static_cast<int>(end)];
}

Trial try_to(const std::function<std::string()>& read) {
  return watch(1.0, [&](int out) {
    try {
      write_all(out, read());
      _exit(kRead);
    } catch (const Error& error) {
      write_all(out, error.what());
      _exit(kRefused);
    } catch (const std::exception& error) {
      write_all(out, error.what());
      _exit(kForeign);
    }
  });
}

Trial try_in_a_gigabyte(const std::function<std::string()>& read) {
  return try_to([&] {
    const rlimit limit{1'000'000'000, 1'000'000'000};
    if (kMeasuresMemory && setrlimit(RLIMIT_AS, &limit) != 0) throw std::runtime_error("no limit");
    return read();
  });
}

bool apart(const std::function<void()>& make) {
  return try_to([&] { return make(), std::string(); }).end == End::read;
}

Trial try_program(const std::string& command) {
  constexpr double kPatience = 6.0;  // MPI takes its time to start on a busy machine
  Trial trial = watch(kPatience, [&](int out) {
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    const std::string guarded = command +
                                " </dev/null; code=$?; "
                                "case $code in 0) exit 100 ;; [2-6] | 8 | 9) exit 101 ;; 1) exit 102 ;; "
                                "*) kill -ABRT $$ ;; esac";
    execl("/bin/bash", "bash", "-c", guarded.c_str(), nullptr);
  });
  return trial;
}

Figures::Figures(std::string kind, const Trial& good, double least_read)
    : kind_(std::move(kind)), good_(good), least_read_(least_read) {
  EXPECT_EQ(to_string(good.end), std::string("read")) << kind_ << ", the good file: " << good.seen;
}

Figures::~Figures() {
  std::printf(
      "%-14s %6llu cases: %llu read, %llu refused, %llu bad; at most %.2f s, %.1f MiB (a good one %.1f)\n",
      kind_.c_str(), static_cast<unsigned long long>(cases_), static_cast<unsigned long long>(read_),
      static_cast<unsigned long long>(refused_), static_cast<unsigned long long>(bad_), longest_s_,
      static_cast<double>(most_bytes_) / (1 << 20), static_cast<double>(good_.peak_bytes) / (1 << 20));
  std::fflush(stdout);
  if (cases_ < 50) return;
  EXPECT_GT(static_cast<double>(read_), least_read_ * static_cast<double>(cases_)) << kind_;
}

void Figures::add(std::uint64_t seed, const Trial& trial) {
  ++cases_;
  read_ += trial.end == End::read;
  refused_ += trial.end == End::refused;
  longest_s_ = std::max(longest_s_, trial.seconds);
  most_bytes_ = std::max(most_bytes_, trial.peak_bytes);
  const bool ended = trial.end == End::read || trial.end == End::refused;
  const bool modest = !kMeasuresMemory || trial.peak_bytes <= 2 * good_.peak_bytes;
  const bool discreet = trial.seen.find(kSecret) == std::string::npos;
  const bool plain = trial.end != End::refused || trial.seen.find('\0') == std::string::npos;
  bad_ += !(ended && modest && discreet && plain);
  EXPECT_TRUE(ended) << kind_ << ", seed " << seed << ": " << to_string(trial.end) << " " << trial.seen;
  EXPECT_TRUE(modest) << kind_ << ", seed " << seed << ": " << trial.peak_bytes << " bytes, a good one "
                      << good_.peak_bytes << "; " << trial.seen;
  EXPECT_TRUE(discreet && plain) << kind_ << ", seed " << seed << ": " << trial.seen;
}

}  // namespace cifar_mpi::test
