#include "comm/exit_timer.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <stop_token>
#include <utility>

#include "cifar_mpi/base/signals.hpp"

namespace cifar_mpi::comm {

ExitTimer::ExitTimer(double seconds, int code, std::string text) {
  const SignalBlock block;  // signals must reach the main thread, to interrupt its waits
  thread_ = std::jthread([seconds, code, text = std::move(text)](const std::stop_token& over) {
    constexpr double kMostPerLook = 1.0;
    std::mutex mutex;
    std::condition_variable_any changed;
    std::unique_lock lock(mutex);
    for (double left = seconds; left > 0.0; left -= kMostPerLook) {
      const std::chrono::duration<double> look(std::min(left, kMostPerLook));
      changed.wait_for(lock, over, look, [] { return false; });
      if (over.stop_requested()) return;
    }
    const std::string line = text + '\n';
    // stdio may be locked by the thread that hangs.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
    std::_Exit(code);
  });
}

}  // namespace cifar_mpi::comm
