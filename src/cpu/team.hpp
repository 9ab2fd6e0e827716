#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "cpu/parallel.hpp"

/// The threads that share the loops of a rank.
///
/// OpenMP's end of a loop waits for every thread, also for one whose core another process has: on two cores beside two busy
/// processes a step took four to eight times as long as on two ranks of one thread. Here a thread begins with its own range of
/// the items, chunk by chunk, and then helps the others, and the end of a loop waits only for chunks that were begun. A thread
/// that has no core takes no chunks. Which thread does which chunk changes, what a chunk computes does not.
///
/// Who waits spins for kSpinSeconds, which covers the serial work between two loops, and then sleeps: a core that others want is
/// given away, and a thread that slept gets it back at once when there is work.
namespace cifar_mpi::cpu {

class Team {
 public:
  Team() = default;
  ~Team() { resize(1); }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }
  /// Ends the threads and starts as many new ones as are needed, so that loops allocate nothing. Never while a loop runs.
  void resize(int threads);

  /// Does all items and returns; `body` does not throw. A call from inside a body, or while another thread's loop runs, does them on its own.
  void run(std::ptrdiff_t items, RangeBody body, std::ptrdiff_t together = 1);

  /// Of the calling thread inside a body; 0 outside.
  static int thread_number();

 private:
  /// The items of one thread that nobody has begun.
  struct alignas(64) Share {
    std::atomic<std::ptrdiff_t> next{0};
    std::ptrdiff_t end = 0;
    std::ptrdiff_t chunk = 1;
  };

  void work(int number);
  bool wait_for_loop(std::uint32_t seen);
  bool join();
  void leave();
  void close();
  void take_chunks(int number, int helped);

  int size_ = 1;
  bool spins_ = true;  ///< false: there are more threads than cores
  std::vector<std::thread> workers_;
  std::unique_ptr<Share[]> shares_;
  const RangeBody* body_ = nullptr;
  std::atomic<bool> busy_{false};
  alignas(64) std::atomic<std::uint32_t> posted_{0};  ///< counts loops; workers sleep on it
  std::atomic<std::uint32_t> sleepers_{0};
  std::atomic<bool> ends_{false};
  alignas(64) std::atomic<std::uint32_t> state_{0};  ///< kOpen, kAsleep, and how many workers are in the loop
};

}  // namespace cifar_mpi::cpu
