#pragma once

#include <string>

/// The terminal that shows the output, if any, and what is typed into one.
namespace cifar_mpi {

/// Columns of the terminal that shows this process's standard output, 0 when it is not shown on one (a file,
/// a pipe).
///
/// Open MPI gives every rank a pseudo-terminal of its own, so `isatty` is true even for `mpirun … | cat`;
/// under a launcher the parent's standard output is examined instead.
int terminal_columns();

/// Whether the environment's locale (LC_ALL, else LC_CTYPE, else LANG, the first that is set) writes UTF-8.
bool terminal_takes_utf8();

/// One word of a shell command, quoted where it must be.
std::string shell_word(const std::string& text);

}  // namespace cifar_mpi
