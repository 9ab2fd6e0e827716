#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/engine/program.hpp"

namespace cifar_mpi::engine {

/// Finds tasks with wrong declarations. Around a task it fills every undeclared byte of the watched regions
/// with 0xFF (NaN as fp32) and copies the bytes that the task only reads; afterwards both must be unchanged.
///
/// An undeclared write throws. An undeclared read yields NaN if it reads floats, but a task may hide that
/// (oneDNN's ReLU makes it 0), so compare the program's results bit by bit with those without audit. The
/// constructor allocates all memory: as much as the regions, plus the largest range. Regions outlive the
/// audit and may overlap; `copy` reaches them and host memory, and returns when done.
class Audit {
 public:
  using Copy = std::function<void(std::byte* dst, const std::byte* src, std::size_t bytes)>;
  Audit(const StepProgram& program, std::vector<Bytes> regions, Copy copy);

  void before(TaskId task);
  /// Restores the hidden bytes. Throws std::logic_error with task, region and offset when a byte changed.
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
  Buffer poison_;   ///< as long as the largest range, like staging_
  Buffer staging_;  ///< present content of a range
};

}  // namespace cifar_mpi::engine
