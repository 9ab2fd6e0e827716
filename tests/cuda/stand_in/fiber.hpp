#pragma once

#include <setjmp.h>

#include <cstddef>
#include <memory>

namespace cifar_mpi::stand_in {

/// A function that runs on its own stack, and leaves it and comes back by switches. The threads of a kernel
/// switch at each barrier, so on x86-64 a switch is 15 instructions: with setjmp and longjmp a training step
/// takes 1.6 times as long.
class Fiber {
 public:
  /// The stack of the caller.
  Fiber() = default;
  /// The first switch to it calls `enter`, which must not return.
  explicit Fiber(void (*enter)());

  /// Leaves this stack, which is the current one, for the place where `to` was left. Returns after a switch
  /// back.
  void switch_to(Fiber& to);

 private:
  std::unique_ptr<std::byte[]> stack_;
  void* top_ = nullptr;        ///< of the registers that a switch has saved on the stack; unused by jumps
  void (*enter_)() = nullptr;  ///< until it is called; only jumps use it
  jmp_buf place_{};            ///< only jumps use it
};

}  // namespace cifar_mpi::stand_in
