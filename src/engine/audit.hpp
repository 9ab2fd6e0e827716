#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/engine/program.hpp"

namespace cifar_mpi::engine {

/// Finds tasks whose declarations lie. Around a task every byte of the watched regions that the task did not
/// declare is filled with 0xFF (NaN as fp32), and what it only reads is copied; afterwards both must be as
/// they were left.
///
/// An undeclared write throws. An undeclared read gives NaN where floats are read, but a task may hide that
/// (oneDNN's ReLU makes it 0): compare bit for bit what the program leaves with what it leaves without audit.
/// All memory it needs is taken in the constructor: as much as the regions have, and as the largest range.
/// Regions outlive the audit and may overlap; `copy` reaches them and host memory, and returns when done.
class Audit {
 public:
  using Copy = std::function<void(std::byte* dst, const std::byte* src, std::size_t bytes)>;
  Audit(const StepProgram& program, std::vector<Bytes> regions, Copy copy);

  void before(TaskId task);
  /// Puts the hidden bytes back. Throws std::logic_error naming task, region and offset when a byte changed.
  void after(TaskId task);

 private:
  struct Watch {
    std::vector<Bytes> hidden;     ///< neither read nor written
    std::vector<Bytes> read_only;  ///< read and not written
  };
  const std::byte* read(const Bytes& range);
  [[noreturn]] void report(TaskId task, const std::byte* where, const char* declared) const;

  std::string program_;
  std::vector<std::string> names_;
  std::vector<Bytes> regions_;
  std::vector<Watch> watches_;  ///< by TaskId
  Copy copy_;
  Buffer shadow_;
  Buffer poison_;   ///< as long as the largest range, as is the next
  Buffer staging_;  ///< what a range holds now
};

}  // namespace cifar_mpi::engine
