#include "comm/exit_timer.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <utility>

namespace cifar_mpi::comm {

ExitTimer::ExitTimer(double seconds, int code, std::string text) {
  // Signals must reach the main thread, to interrupt its waits.
  sigset_t all{};
  sigset_t before{};
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this, seconds, code, text = std::move(text)] { wait(seconds, code, text); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ExitTimer::~ExitTimer() {
  {
    const std::scoped_lock lock(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void ExitTimer::wait(double seconds, int code, const std::string& text) {
  constexpr double kMostPerLook = 1.0;
  std::unique_lock lock(mutex_);
  for (double left = seconds; left > 0.0; left -= kMostPerLook) {
    const std::chrono::duration<double> look(std::min(left, kMostPerLook));
    if (changed_.wait_for(lock, look, [this] { return over_; })) return;
  }
  const std::string line = text + '\n';
  // stdio may be locked by the thread that hangs.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  std::_Exit(code);
}

}  // namespace cifar_mpi::comm
