#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>

#include "cifar_mpi/run/run_lock.hpp"

/// Holders of locks for tests.
namespace cifar_mpi::run {

/// The process number of a child that ended and was reaped.
inline std::uint64_t ended_process() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  return static_cast<std::uint64_t>(child);
}

/// A holder whose process cannot be seen from here.
inline LockHolder on_another_host() {
  LockHolder holder = this_process();
  holder.host = "elsewhere";
  return holder;
}

}  // namespace cifar_mpi::run
