#include "cuda/stand_in/block.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/stand_in/fiber.hpp"

namespace cifar_mpi::stand_in {

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace {

/// The limits of compute capability 9.0.
constexpr unsigned kMostThreads = 1024;
constexpr std::size_t kMostShared = 48 << 10;  ///< without a special request
constexpr unsigned kMostBlocksY = 65535;

/// Runs threads one after another until one must wait.
struct Worker {
  explicit Worker(void (*enter)()) : fiber(enter) {}
  Fiber fiber;
  uint3 thread{};
  int waits_at = 0;  ///< line of the source
};

/// xorshift (Marsaglia 2003).
struct Sequence {
  std::uint64_t state;

  std::uint64_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  }
};

Sequence& sequence() {
  static Sequence only = [] {
    const char* const seed = std::getenv("STAND_IN_SEED");
    return Sequence{0x9E3779B97F4A7C15ull * (seed != nullptr ? std::strtoull(seed, nullptr, 10) * 2 + 1 : 3)};
  }();
  return only;
}

/// Below `count`.
std::size_t scale(std::uint32_t bits, std::size_t count) {
  return static_cast<std::size_t>(bits * std::uint64_t{count} >> 32);
}

/// Two draws from each number.
template <class T>
void shuffle(std::vector<T>& items) {
  Sequence numbers = sequence();
  std::uint64_t bits = numbers.next();
  for (std::size_t i = items.size(); i > 1; --i) {
    bits = i % 2 == 0 ? numbers.next() : bits >> 32;
    std::swap(items[i - 1], items[scale(static_cast<std::uint32_t>(bits), i)]);
  }
  sequence() = numbers;
}

class Processor {
 public:
  void run(const char* kernel, const dim3& blocks, const dim3& threads, std::size_t shared_bytes,
           std::vector<std::uint64_t>& order, std::size_t number, const std::function<void()>& thread);
  void wait(int line);
  unsigned char* shared() { return shared_.data(); }

 private:
  void run_block();
  void require_one_barrier() const;
  Fiber& next_fiber();
  [[noreturn]] void work();
  static void enter();

  const std::function<void()>* thread_ = nullptr;
  std::vector<uint3> order_;  ///< of the threads
  std::size_t begun_ = 0;     ///< in the order
  std::vector<Worker*> resumed_;
  std::size_t gone_on_ = 0;  ///< of those
  Fiber home_;
  Worker* current_ = nullptr;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> idle_, waiting_;
  std::vector<unsigned char> shared_;
};

/// Lives to the end of the process: the GPU's thread may run kernels while it exits.
Processor& processor() {
  static auto* const only = new Processor;
  return *only;
}

void Processor::run(const char* kernel, const dim3& blocks, const dim3& threads, std::size_t shared_bytes,
                    std::vector<std::uint64_t>& order, std::size_t number,
                    const std::function<void()>& thread) {
  const unsigned count = threads.x * threads.y * threads.z;
  if (count == 0 || count > kMostThreads || shared_bytes > kMostShared || blocks.x == 0 || blocks.y == 0 ||
      blocks.z != 1 || blocks.y > kMostBlocksY) {
    throw std::runtime_error(std::string(kernel) + ": no GPU takes such a grid");
  }
  thread_ = &thread;
  blockDim = threads;
  gridDim = blocks;
  order_.clear();
  for (unsigned z = 0; z < threads.z; ++z) {
    for (unsigned y = 0; y < threads.y; ++y) {
      for (unsigned x = 0; x < threads.x; ++x) order_.push_back({x, y, z});
    }
  }
  try {
    for (; number > 0; --number) {
      const std::uint64_t block = order.back();
      order.pop_back();
      blockIdx = {static_cast<unsigned>(block % blocks.x), static_cast<unsigned>(block / blocks.x), 0};
      shared_.assign(shared_bytes, 0xFF);
      run_block();
    }
  } catch (const std::exception& error) {
    throw std::runtime_error(std::string(kernel) + ": " + error.what());
  }
}

/// Returns here when all threads have ended or wait.
void Processor::run_block() {
  shuffle(order_);
  begun_ = gone_on_ = 0;
  resumed_.clear();
  for (;;) {
    home_.switch_to(next_fiber());
    if (waiting_.empty()) return;
    resumed_.clear();
    resumed_.swap(waiting_);
    require_one_barrier();
    shuffle(resumed_);
    gone_on_ = 0;
  }
}

void Processor::require_one_barrier() const {
  for (const Worker* worker : resumed_) {
    if (worker->waits_at != resumed_.front()->waits_at)
      throw std::runtime_error("threads of one block wait at different barriers");
  }
}

/// That of a thread that can run; else that of run_block.
Fiber& Processor::next_fiber() {
  if (begun_ < order_.size()) {
    if (idle_.empty()) {
      workers_.push_back(std::make_unique<Worker>(&Processor::enter));
      idle_.push_back(workers_.back().get());
    }
    current_ = idle_.back();
    idle_.pop_back();
  } else if (gone_on_ < resumed_.size()) {
    current_ = resumed_[gone_on_++];
    threadIdx = current_->thread;
  } else {
    return home_;
  }
  return current_->fiber;
}

void Processor::work() {
  for (;;) {
    while (begun_ < order_.size()) {
      threadIdx = current_->thread = order_[begun_++];
      (*thread_)();
    }
    Worker* const own = current_;
    idle_.push_back(own);
    own->fiber.switch_to(next_fiber());
  }
}

void Processor::enter() { processor().work(); }

/// Returns when the thread is resumed.
void Processor::wait(int line) {
  Worker* const own = current_;
  own->waits_at = line;
  waiting_.push_back(own);
  own->fiber.switch_to(next_fiber());
}

}  // namespace

void run_blocks(const char* kernel, const dim3& blocks, const dim3& threads, std::size_t shared_bytes,
                std::vector<std::uint64_t>& order, std::size_t count, const std::function<void()>& thread) {
  processor().run(kernel, blocks, threads, shared_bytes, order, count, thread);
}

std::vector<std::uint64_t> draw_blocks(const dim3& blocks) {
  std::vector<std::uint64_t> order(std::uint64_t{blocks.x} * blocks.y);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  shuffle(order);
  return order;
}

void barrier(int line) { processor().wait(line); }

unsigned char* shared_memory() { return processor().shared(); }

std::size_t chance(std::size_t count) {
  return scale(static_cast<std::uint32_t>(sequence().next() >> 32), count);
}

}  // namespace cifar_mpi::stand_in
