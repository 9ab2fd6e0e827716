#include "cpu/team.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/signals.hpp"

namespace cifar_mpi::cpu {
namespace {

constexpr std::uint32_t kOpen = 1u << 31;    // workers may join
constexpr std::uint32_t kAsleep = 1u << 30;  // the caller sleeps until the last worker has left
constexpr double kSpinSeconds = 50e-6;
/// Chunks of a thread's share: small, so that the last one ends soon and a thread without a core holds up
/// little work.
constexpr std::ptrdiff_t kChunks = 8;
/// Number of other threads whose shares an idle worker tries; trying all would be expensive with many
/// threads.
constexpr int kHelped = 8;

thread_local int number_here = 0;
thread_local bool inside = false;

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(std::atomic<std::uint32_t>) == 4);

void sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t value) {
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake(const std::atomic<std::uint32_t>& word, int threads) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0);
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Spins until `done()`, for at most kSpinSeconds; returns whether it is.
template <class Done>
bool spin_until(bool spins, const Done& done) {
  if (done()) return true;
  if (!spins) return false;
  const double end = steady_seconds() + kSpinSeconds;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      pause();
    }
  } while (steady_seconds() < end);
  return done();
}

int cores_here() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : INT_MAX;
}

}  // namespace

int Team::thread_number() { return number_here; }

void Team::resize(int threads) {
  if (threads == size_) return;
  ends_ = true;
  posted_.fetch_add(1);
  wake(posted_, INT_MAX);
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
  ends_ = false;
  size_ = threads;
  shares_ = std::make_unique<Share[]>(static_cast<std::size_t>(size_));
  spins_ = size_ <= cores_here();
  const SignalBlock block;  // workers get no signals
  for (int number = 1; number < size_; ++number) workers_.emplace_back([this, number] { work(number); });
}

void Team::run(std::ptrdiff_t items, RangeBody body, std::ptrdiff_t together) {
  if (items == 0) return;
  if (size_ == 1 || items == 1 || inside || busy_.exchange(true, std::memory_order_acquire))
    return body({0, items});
  for (int t = 0; t < size_; ++t) {
    const Range own = range_of(items, size_, t);
    const std::ptrdiff_t chunk = std::max<std::ptrdiff_t>(1, own.size() / kChunks);
    Share& share = shares_[static_cast<std::size_t>(t)];
    share.next.store(own.begin, std::memory_order_relaxed);
    share.end = own.end;
    share.chunk = own.size() < 2 * together ? chunk : (chunk + together - 1) / together * together;
  }
  body_ = &body;
  state_.store(kOpen, std::memory_order_release);
  posted_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) wake(posted_, INT_MAX);
  inside = true;
  take_chunks(0, size_ - 1);
  inside = false;
  close();
  busy_.store(false, std::memory_order_release);
}

/// All chunks have begun, so closes the loop to new workers, then waits for those inside.
void Team::close() {
  state_.fetch_and(~kOpen, std::memory_order_acq_rel);
  const auto alone = [this] { return state_.load(std::memory_order_acquire) == 0; };
  if (spin_until(spins_, alone)) return;
  std::uint32_t state = state_.fetch_or(kAsleep, std::memory_order_acq_rel) | kAsleep;
  while (state != kAsleep) {
    sleep_while(state_, state);
    state = state_.load(std::memory_order_acquire);
  }
}

void Team::take_chunks(int number, int helped) {
  for (int t = 0; t <= helped; ++t) {
    Share& share = shares_[static_cast<std::size_t>((number + t) % size_)];
    std::ptrdiff_t begin = share.next.load(std::memory_order_relaxed);
    while (begin < share.end) {
      const std::ptrdiff_t end = std::min((begin / share.chunk + 1) * share.chunk, share.end);
      if (!share.next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
      (*body_)({begin, end});
      begin = share.next.load(std::memory_order_relaxed);
    }
  }
}

bool Team::join() {
  std::uint32_t state = state_.load(std::memory_order_acquire);
  while ((state & kOpen) != 0) {
    if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel, std::memory_order_acquire))
      return true;
  }
  return false;
}

void Team::leave() {
  if (state_.fetch_sub(1, std::memory_order_acq_rel) == (kAsleep | 1)) wake(state_, 1);
}

/// False: the team ends.
bool Team::wait_for_loop(std::uint32_t seen) {
  const auto is_new = [&] { return posted_.load(std::memory_order_acquire) != seen; };
  if (!spin_until(spins_, is_new)) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (posted_.load(std::memory_order_seq_cst) == seen) sleep_while(posted_, seen);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }
  return !ends_;
}

void Team::work(int number) {
  number_here = number;
  inside = true;
  // A loop that was posted before this thread ran is still open, or done.
  for (std::uint32_t seen = posted_.load(std::memory_order_acquire);;
       seen = posted_.load(std::memory_order_acquire)) {
    if (ends_) return;
    if (join()) {
      take_chunks(number, std::min(kHelped, size_ - 1));
      leave();
    }
    if (!wait_for_loop(seen)) return;
  }
}

}  // namespace cifar_mpi::cpu
