#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace cifar_mpi {

/// The text on one line, without anything that steers a terminal: control characters (C0, DEL and C1), what
/// turns the direction of writing round, line separators and bytes that are no UTF-8 come as \n, \t, \xHH.
///
/// Texts come from files, and files from strangers: names of classes, settings of a checkpoint, fields of a
/// lock, names of files.
std::string printable(std::string_view text);

/// Lines for people, each made printable. Rank 0 speaks for all; other ranks are silent but for `every_rank`.
///
/// One line is one `fwrite`, so lines of several ranks do not mix inside a line.
class Log {
 public:
  /// `out` must outlive the log; it is flushed after every line.
  explicit Log(int rank = 0, std::FILE* out = stdout) : rank_(rank), out_(out) {}

  void info(std::string_view line) const;        ///< rank 0 only, to `out`
  void warn(std::string_view line) const;        ///< rank 0 only, "warning: …" to stderr
  void every_rank(std::string_view line) const;  ///< "[rank r] …" to stderr, from whichever rank calls

 private:
  int rank_;
  std::FILE* out_;
};

}  // namespace cifar_mpi
