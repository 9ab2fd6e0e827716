#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace cifar_mpi {

/// The text on one line and safe for a terminal: control characters (C0, DEL and C1), marks of writing
/// direction, line separators and bytes that are not UTF-8 become \n, \t, \xHH.
///
/// Required for all text from untrusted files: names of classes, settings of a checkpoint, fields of a lock,
/// names of files.
std::string printable(std::string_view text);

/// Writes log lines, each made printable. Ranks other than 0 write only with `every_rank`.
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

/// Writes the text as it is, and flushes; is_logging() is true meanwhile.
void write_flushed(std::FILE* out, std::string_view text);

/// True while this process writes a line or text, which takes long if the reader is stopped.
bool is_logging();

}  // namespace cifar_mpi
