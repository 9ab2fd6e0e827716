#pragma once

#include <atomic>

/// Requests to stop, and for a trace. The functions are for the main thread: handlers run there, on a stack of their own.
namespace cifar_mpi::app {

/// From now on engine::kStopRequest is set in the word by SIGTERM, SIGUSR1, SIGINT, and SIGHUP unless that is ignored
/// (nohup). A second SIGINT ends the process at once, by that signal. To be called after MPI_Init, which installs
/// handlers of its own. The word must live as long as the process.
void handle_stop_signals(std::atomic<int>& stop_request);

/// From now on SIGUSR1 sets engine::kStopRequest in the word, and SIGUSR2, which mpirun passes on to all ranks too,
/// engine::kTraceRequest. May be called before MPI_Init, which leaves both alone: who asks a program that is just
/// starting is heard, and does not kill it.
void handle_user_signals(std::atomic<int>& requests);

/// To be called a few times a second with the seconds since the call before; from any one thread.
///
/// Open MPI's mpirun, itself asked to stop, sends its ranks SIGCONT at once, SIGTERM one kill timeout later
/// and SIGKILL after one more. So a SIGCONT from mpirun is the first notice, and sets the stop word. An mpirun that resumes
/// passes its own SIGCONT on, too, so one that comes soon after mpirun or this process was stopped is no notice. The
/// daemons of other nodes pass on both and are not stopped themselves, so theirs is never a notice: the ranks on the node of
/// mpirun take it. A launcher that is gone, killed, sets the stop word as well.
void poll_launcher(double seconds_since_last);

}  // namespace cifar_mpi::app
