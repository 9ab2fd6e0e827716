// Jumps between stacks look wrong to the C library's guard.
#undef _FORTIFY_SOURCE

#include "cuda/stand_in/fiber.hpp"

#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace cifar_mpi::stand_in {
namespace {

/// No multiple of a page, because stacks that end at the same offset of a page would compete for few places
/// of the cache.
constexpr std::size_t kStackBytes = (64 << 10) + (1 << 10) + 64;

}  // namespace

// Sanitizers follow only the C library's jumps.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

/// Saves the registers that a call must keep, and the stack's address in `*top`; loads those that were saved
/// at `to`.
extern "C" void cifar_mpi_stand_in_switch(void** top, void* to);
asm(R"(
  .pushsection .text
  .type cifar_mpi_stand_in_switch, @function
cifar_mpi_stand_in_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size cifar_mpi_stand_in_switch, . - cifar_mpi_stand_in_switch
  .popsection
)");

Fiber::Fiber(void (*enter)()) : stack_(std::make_unique_for_overwrite<std::byte[]>(kStackBytes)) {
  constexpr std::uintptr_t kAlignment = 16, kSaved = 6;
  const auto end = reinterpret_cast<std::uintptr_t>(stack_.get() + kStackBytes) / kAlignment * kAlignment;
  void** const words = reinterpret_cast<void**>(end) - (kSaved + 2);
  std::fill(words, words + kSaved + 2, nullptr);  // the last one: nothing called `enter`
  words[kSaved] = reinterpret_cast<void*>(enter);
  top_ = words;
}

void Fiber::switch_to(Fiber& to) { cifar_mpi_stand_in_switch(&top_, to.top_); }

#else

Fiber::Fiber(void (*enter)())
    : stack_(std::make_unique_for_overwrite<std::byte[]>(kStackBytes)), enter_(enter) {}

void Fiber::switch_to(Fiber& to) {
  if (_setjmp(place_) != 0) return;
  if (to.enter_ == nullptr) _longjmp(to.place_, 1);
  ucontext_t context{};
  getcontext(&context);
  context.uc_stack.ss_sp = to.stack_.get();
  context.uc_stack.ss_size = kStackBytes;
  makecontext(&context, std::exchange(to.enter_, nullptr), 0);
  setcontext(&context);
}

#endif

}  // namespace cifar_mpi::stand_in
