#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

/// Progress of reading many images.
namespace cifar_mpi::app {

/// "reading: 1234 of 30000 images (4 %), 310 images/s, 1:33 left"
std::string progress_text(std::uint64_t done, std::uint64_t total, double seconds);

/// One updated line on a terminal; elsewhere a line every `interval_s` seconds.
class PackProgress {
 public:
  /// `columns` 0: no terminal. `out` must outlive it.
  PackProgress(std::uint64_t total, int columns, double interval_s, std::FILE* out = stdout);
  ~PackProgress() { clear(); }
  PackProgress(const PackProgress&) = delete;
  PackProgress& operator=(const PackProgress&) = delete;

  void show(std::uint64_t done);
  /// Removes the updated line before other output.
  void clear();

 private:
  std::uint64_t total_;
  int columns_;
  double interval_s_;
  std::FILE* out_;
  double begin_s_;
  double shown_s_;
  bool drawn_ = false;
};

}  // namespace cifar_mpi::app
