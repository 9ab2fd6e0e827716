#pragma once

namespace cifar_mpi::app {

/// Restarts the program in the same process, with an environment in which OpenMP's threads, which run
/// oneDNN's kernels, sleep after a short spin. Returns if the environment already says how they wait.
///
/// By default they spin for milliseconds on cores that our own threads or other processes need: beside other
/// programs a step on two threads took 4 to 10 times as long. libgomp reads the variable when it is loaded,
/// so setting it in main is too late. Call this before MPI starts.
void limit_spinning(char** argv);

}  // namespace cifar_mpi::app
