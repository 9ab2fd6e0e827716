#pragma once

namespace cifar_mpi::app {

/// Starts the program again, in the same process, with an environment in which OpenMP's threads, which run oneDNN's
/// kernels, sleep after a short spin; returns where the environment says already how they wait.
///
/// By default they spin for milliseconds, on cores that our own threads or other processes want: beside other work a step
/// on two threads took 4 to 10 times as long. libgomp reads the variable while it is loaded, so main is too late to set it.
/// Belongs before MPI starts.
void limit_spinning(char** argv);

}  // namespace cifar_mpi::app
