#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace {

long now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

/// Loaded before everything else into ranks of tests, except those that compare times of a few milliseconds: replaces the
/// C library's function, so that a rank that waits long sleeps. Open MPI yields whenever it finds nothing to do, which
/// takes up to half of the processor time of a test with more ranks than cores. Calls the C library alone, because
/// programs that the tests start load this, too.
///
/// It hides what a rank does in the millisecond after it could go on. The tests of comm run without it.
extern "C" int sched_yield() noexcept {
  constexpr int kYields = 30;       // in a row, before the first sleep
  constexpr long kInARow = 20'000;  // more time between two calls is work
  constexpr timespec kNap{0, 1'000'000};
  thread_local long last = 0;
  thread_local int row = 0;
  row = now_ns() - last < kInARow ? row + 1 : 0;
  if (row < kYields) {
    syscall(SYS_sched_yield);
  } else {
    nanosleep(&kNap, nullptr);
  }
  last = now_ns();
  return 0;
}
