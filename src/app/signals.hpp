#pragma once

#include <atomic>

/// Requests to stop, and for a trace. Only the main thread may call these functions: handlers run on it, with
/// their own stack.
namespace cifar_mpi::app {

/// From now on SIGTERM, SIGUSR1, SIGINT and, unless it is ignored (nohup), SIGHUP set engine::kStopRequest in
/// the word. A second SIGINT ends the process at once. Call this after MPI_Init, which installs its own
/// handlers. The word must outlive the process's last signal.
void handle_stop_signals(std::atomic<int>& stop_request);

/// From now on SIGUSR1 sets engine::kStopRequest in the word, and SIGUSR2, which mpirun also forwards to all
/// ranks, sets engine::kTraceRequest. This may precede MPI_Init, which changes neither, so these signals do
/// not kill a program that is just starting.
void handle_user_signals(std::atomic<int>& requests);

/// To be called from any one thread a few times a second, with the seconds since the previous call.
///
/// Open MPI's mpirun, itself asked to stop, sends its ranks SIGCONT at once, SIGTERM one kill timeout later
/// and SIGKILL after one more. So a SIGCONT from mpirun is the first notice, and sets the stop word. An mpirun that resumes
/// passes its own SIGCONT on, too, so one that comes soon after mpirun or this process was stopped is no notice. The
/// daemons of other nodes pass on both and are not stopped themselves, so theirs is never a notice: the ranks on the node of
/// mpirun take it. A launcher that is gone, killed, sets train::kLauncherGone as well.
void poll_launcher(double seconds_since_last);

}  // namespace cifar_mpi::app
