#include "app/signals.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <string>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/engine/layout.hpp"
#include "cifar_mpi/train/session.hpp"

namespace cifar_mpi::app {
namespace {

// Handlers take no argument, so their data are global: lock-free words only.
std::atomic<std::atomic<int>*> stop_word{nullptr};
std::atomic<std::atomic<int>*> trace_word{nullptr};
std::atomic<int> interrupts{0};
std::atomic<int> launcher_notices{0};
std::atomic<pid_t> launcher{0};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::atomic<int>*>::is_always_lock_free);

/// Since this process was last stopped, as far as is known; negative soon after its launcher was stopped.
std::atomic<double> awake_s{1e9};

/// A gap of this length between polls means that the process was stopped.
constexpr double kStopped = 1.0;
/// A launcher that resumes passes its SIGCONT on within this time, also on a loaded machine.
constexpr double kResumes = 3.0;

void request_stop() {
  if (std::atomic<int>* const word = stop_word.load(std::memory_order_relaxed))
    word->fetch_or(engine::kStopRequest, std::memory_order_relaxed);
}

/// An mpirun that was asked to stop ends, too: then its request is the reason.
void stop_without_launcher() {
  std::atomic<int>* const word = stop_word.load(std::memory_order_relaxed);
  if (word != nullptr && (word->load(std::memory_order_relaxed) & engine::kStopRequest) == 0)
    word->fetch_or(engine::kStopRequest | train::kLauncherGone, std::memory_order_relaxed);
}

extern "C" void on_trace(int) {
  if (std::atomic<int>* const word = trace_word.load(std::memory_order_relaxed))
    word->fetch_or(engine::kTraceRequest, std::memory_order_relaxed);
}

extern "C" void on_stop(int) { request_stop(); }

extern "C" void on_interrupt(int signal) {
  request_stop();
  if (interrupts.fetch_add(1, std::memory_order_relaxed) == 0) return;
  std::signal(signal, SIG_DFL);
  std::raise(signal);  // delivered when this handler returns
}

extern "C" void on_continue(int, siginfo_t* info, void*) {
  if (info->si_pid == launcher.load(std::memory_order_relaxed))
    launcher_notices.fetch_add(1, std::memory_order_relaxed);
}

/// Gives handlers on this thread their own stack. oneDNN's matrix products temporarily point the stack
/// pointer into a heap buffer (with AVX2, if the inner extent is above 8192), and a handler would overwrite
/// the memory before it.
void make_signal_stack() {
  constexpr std::size_t kBytes = 64 << 10;  // saved registers take up to 11 KiB
  alignas(64) static std::byte memory[kBytes];
  const stack_t stack{.ss_sp = memory, .ss_flags = 0, .ss_size = kBytes};
  sigaltstack(&stack, nullptr);
}

void handle(int signal, struct sigaction action) {
  make_signal_stack();
  action.sa_flags |= SA_RESTART | SA_ONSTACK;
  sigaction(signal, &action, nullptr);
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  handle(signal, action);
}

bool is_ignored(int signal) {
  struct sigaction now {};
  return sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

/// mpirun or its daemon, if it started this process; else 0, which sends no signals.
pid_t find_launcher() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr && getpgrp() == getpid() ? getppid() : 0;
}

/// From /proc; empty if the process is gone.
struct Process {
  std::string name;
  char state = ' ';
};

Process look_up(pid_t pid) {
  std::ifstream file(concat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  const std::size_t begin = line.find('('), end = line.rfind(") ");
  if (begin == std::string::npos || end == std::string::npos) return {};
  return {line.substr(begin + 1, end - begin - 1), line[end + 2]};
}

}  // namespace

void handle_stop_signals(std::atomic<int>& stop_request) {
  stop_word = &stop_request;
  launcher = find_launcher();
  handle(SIGTERM, on_stop);
  handle(SIGUSR1, on_stop);
  handle(SIGINT, on_interrupt);  // even if a shell ignores it for background processes
  if (!is_ignored(SIGHUP)) handle(SIGHUP, on_stop);
  struct sigaction action {};
  action.sa_sigaction = on_continue;
  action.sa_flags = SA_SIGINFO;
  handle(SIGCONT, action);
}

void handle_user_signals(std::atomic<int>& requests) {
  stop_word = trace_word = &requests;
  handle(SIGUSR1, on_stop);
  handle(SIGUSR2, on_trace);
}

void poll_launcher(double seconds_since_last) {
  const pid_t parent = launcher;
  if (parent == 0) return;
  // The ranks of an mpirun that was killed would train on unseen.
  if (getppid() != parent) stop_without_launcher();
  const Process process = look_up(parent);
  const bool daemon = process.name == "orted" || process.name == "prted";
  const bool launcher_stopped = process.state == 'T' || process.state == 't';
  const bool told = launcher_notices.exchange(0, std::memory_order_relaxed) > 0;
  // The thread that calls may resume before the one to which the signal is delivered: a stop counts for a while.
  double awake = awake_s.load() + seconds_since_last;
  if (seconds_since_last >= kStopped) awake = std::min(awake, 0.0);
  if (launcher_stopped) awake = kStopped - kResumes;
  awake_s = awake;
  if (told && !daemon && awake >= kStopped) request_stop();
}

}  // namespace cifar_mpi::app
