#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/engine/program.hpp"

namespace cifar_mpi::engine {

/// Finds tasks with wrong declarations. Between the tasks of a replay every byte of the watched regions is 0xFF (NaN
/// as fp32), and a shadow holds the content. A task gets the bytes that it declares; afterwards those that it only
/// reads and all undeclared ones must be unchanged.
///
/// An undeclared write throws. An undeclared read yields NaN if it reads floats, but a task may hide that
/// (oneDNN's ReLU makes it 0), so compare the program's results bit by bit with those without audit. The
/// constructor allocates all memory: as much as the regions, plus twice the largest range. Regions outlive the
/// audit and may overlap; `copy` reaches them and host memory, and returns when done. Without it they are host memory.
class Audit {
 public:
  using Copy = std::function<void(std::byte* dst, const std::byte* src, std::size_t bytes)>;
  Audit(const StepProgram& program, std::vector<Bytes> regions, Copy copy = {});

  /// Hides all regions before the first task of a replay, and puts them back after the last.
  void begin();
  void end();

  void before(TaskId task);
  /// Throws std::logic_error with task, region and offset when a byte changed.
  void after(TaskId task);

 private:
  struct Watch {
    std::vector<Bytes> hidden;     ///< neither read nor written
    std::vector<Bytes> read_only;  ///< read and not written
    std::vector<Bytes> written;
  };
  std::byte* shadow_of(const Bytes& range) const;
  void save(const std::vector<Bytes>& ranges);
  void show(const std::vector<Bytes>& ranges);
  void hide(const std::vector<Bytes>& ranges);
  const std::byte* read(const Bytes& range);
  [[noreturn]] void report(TaskId task, const std::byte* where, const char* declared) const;

  std::string program_;
  std::vector<std::string> names_;
  std::vector<Bytes> regions_;
  std::vector<Bytes> watched_;  ///< the regions without overlaps
  std::vector<Watch> watches_;  ///< by TaskId
  bool on_host_;
  Copy copy_;
  Buffer shadow_;   ///< of watched_, one range after another
  Buffer poison_;   ///< as long as the largest range, like staging_
  Buffer staging_;  ///< present content of a range
};

}  // namespace cifar_mpi::engine
