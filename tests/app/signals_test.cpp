#include "app/signals.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

#include "cifar_mpi/engine/layout.hpp"

namespace cifar_mpi::app {
namespace {

#if defined(__x86_64__)
/// Sends this process a signal while the stack pointer is `place`, as oneDNN's matrix products have it.
void signal_with_stack_at(std::byte* place, int signal) {
  long result = SYS_kill;
  asm volatile(
      "mov %%rsp, %%rbx\n\t"
      "mov %[place], %%rsp\n\t"
      "syscall\n\t"
      "mov %%rbx, %%rsp"
      : "+a"(result)
      : [place] "r"(place), "D"(static_cast<long>(::getpid())), "S"(static_cast<long>(signal))
      : "rbx", "rcx", "r11", "memory");
}

/// A handler on the stack of the thread would be killed by the page before `place`.
TEST(StopSignals, TouchNothingBelowTheStackPointer) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const memory = ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(::mprotect(memory, page, PROT_NONE), 0);
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT}) {
    std::atomic<int> request{0};
    handle_stop_signals(request);
    signal_with_stack_at(static_cast<std::byte*>(memory) + page, signal);
    EXPECT_EQ(request.load(), engine::kStopRequest) << signal;
    std::signal(signal, SIG_DFL);
  }
  ::munmap(memory, 2 * page);
}
#endif

}  // namespace
}  // namespace cifar_mpi::app
