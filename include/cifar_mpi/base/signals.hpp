#pragma once

#include <csignal>

namespace cifar_mpi {

/// Blocks all signals in the calling thread while it lives. Threads that are started meanwhile never get one: handlers run
/// on the main thread, and interrupt what that waits in.
class SignalBlock {
 public:
  SignalBlock();
  ~SignalBlock();
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace cifar_mpi
