#include "cifar_mpi/base/signals.hpp"

namespace cifar_mpi {

SignalBlock::SignalBlock() {
  sigset_t all{};
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before_);
}

SignalBlock::~SignalBlock() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

}  // namespace cifar_mpi
