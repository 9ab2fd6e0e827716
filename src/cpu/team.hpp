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
/// The end of an OpenMP loop waits for every thread, even for one whose core runs another process: on two
/// cores beside two busy processes a step took four to eight times as long as on two ranks of one thread.
/// Here a thread starts with its own range of the items, chunk by chunk, and then helps the others, and the
/// end of a loop waits only for chunks that have begun. A thread without a core takes no chunks. The
/// assignment of chunks to threads varies; the results do not.
///
/// A waiting thread spins for kSpinSeconds, which covers the serial work between two loops, and then sleeps.
/// This frees its core for other processes, and the scheduler returns a core quickly to a thread that slept.
namespace cifar_mpi::cpu {

class Team {
 public:
  Team() = default;
  ~Team() { resize(1); }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }
  /// Ends the threads and starts as many new ones as needed, so that loops allocate nothing. Never while a
  /// loop runs.
  void resize(int threads);

  /// Executes all items and returns; `body` does not throw. A call from inside a body, or during another
  /// thread's loop, runs serially.
  void run(std::ptrdiff_t items, RangeBody body, std::ptrdiff_t together = 1);

  /// Of the calling thread inside a body; 0 outside.
  static int thread_number();

 private:
  /// The items of one thread that have not begun.
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
