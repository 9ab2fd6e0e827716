#pragma once

#include <csignal>

namespace cifar_mpi {

/// Blocks all signals in the calling thread during its lifetime. Threads started meanwhile receive none, so
/// handlers run on the main thread and interrupt its system calls.
class SignalBlock {
 public:
  SignalBlock() {
    sigset_t all{};
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalBlock() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace cifar_mpi
