// Jumps between stacks look wrong to the C library's guard.
#undef _FORTIFY_SOURCE

#include "cuda/stand_in/block.hpp"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace cifar_mpi::stand_in {

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace {

/// The limits of compute capability 9.0.
constexpr unsigned kMostThreads = 1024;
constexpr std::size_t kMostShared = 48 << 10;  ///< without a special request
constexpr unsigned kMostBlocksY = 65535;

constexpr std::size_t kStackBytes = 64 << 10;

/// Runs threads one after another until one must wait. Has its own stack, made by makecontext; later it is
/// left and entered by jumps, which need no system call.
struct Fiber {
  jmp_buf place{};
  bool begun = false;
  std::unique_ptr<std::byte[]> stack = std::make_unique<std::byte[]>(kStackBytes);
  uint3 thread{};
  int waits_at = 0;  ///< line of the source
};

template <class T>
void shuffle(std::vector<T>& items) {
  for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[chance(i)]);
}

class Processor {
 public:
  void run(const char* kernel, const dim3& blocks, const dim3& threads, std::size_t shared_bytes,
           std::vector<std::uint64_t>& order, std::size_t number, const std::function<void()>& thread);
  void wait(int line);
  unsigned char* shared() { return shared_.data(); }

 private:
  void run_block();
  void go_on(Fiber* fiber);
  void begin(Fiber& fiber);
  void leave();
  [[noreturn]] void work();
  static void enter();

  const std::function<void()>* thread_ = nullptr;
  std::vector<unsigned> order_;  ///< of the threads
  std::size_t next_ = 0;         ///< in the order
  jmp_buf home_{};
  Fiber* current_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_, waiting_;
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
  order_.resize(count);
  std::iota(order_.begin(), order_.end(), 0u);
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

void Processor::run_block() {
  shuffle(order_);
  next_ = 0;
  while (next_ < order_.size()) {
    if (idle_.empty()) {
      fibers_.push_back(std::make_unique<Fiber>());
      idle_.push_back(fibers_.back().get());
    }
    Fiber* const fiber = idle_.back();
    idle_.pop_back();
    go_on(fiber);
  }
  while (!waiting_.empty()) {
    std::vector<Fiber*> ready;
    ready.swap(waiting_);
    for (const Fiber* fiber : ready) {
      if (fiber->waits_at == ready.front()->waits_at) continue;
      idle_.insert(idle_.end(), ready.begin(), ready.end());
      throw std::runtime_error("threads of one block wait at different barriers");
    }
    shuffle(ready);
    for (Fiber* const fiber : ready) go_on(fiber);
  }
}

/// Returns when the fiber waits or has no thread left.
void Processor::go_on(Fiber* fiber) {
  current_ = fiber;
  threadIdx = fiber->thread;
  fiber->waits_at = 0;
  if (_setjmp(home_) == 0) {
    if (fiber->begun) _longjmp(fiber->place, 1);
    begin(*fiber);
  }
  (current_->waits_at != 0 ? waiting_ : idle_).push_back(current_);
}

void Processor::begin(Fiber& fiber) {
  fiber.begun = true;
  ucontext_t context{};
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.get();
  context.uc_stack.ss_size = kStackBytes;
  makecontext(&context, &Processor::enter, 0);
  setcontext(&context);
}

void Processor::work() {
  for (;;) {
    while (next_ < order_.size()) {
      const unsigned i = order_[next_++];
      threadIdx = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
      current_->thread = threadIdx;
      (*thread_)();
    }
    leave();
  }
}

void Processor::enter() { processor().work(); }

/// Returns when the fiber is resumed.
void Processor::leave() {
  if (_setjmp(current_->place) == 0) _longjmp(home_, 1);
}

void Processor::wait(int line) {
  current_->waits_at = line;
  leave();
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
  static std::uint64_t state = [] {
    const char* const seed = std::getenv("STAND_IN_SEED");
    return 0x9E3779B97F4A7C15ull * (seed != nullptr ? std::strtoull(seed, nullptr, 10) * 2 + 1 : 3);
  }();
  state ^= state << 13;  // xorshift (Marsaglia 2003)
  state ^= state >> 7;
  state ^= state << 17;
  return static_cast<std::size_t>((state >> 32) * count >> 32);
}

}  // namespace cifar_mpi::stand_in
