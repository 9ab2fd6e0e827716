#pragma once

#include <mpi.h>

#include <cstddef>
#include <utility>

namespace cifar_mpi::comm {

/// Memory that all ranks of a node map, and nobody else.
///
/// Made by ourselves and not by MPI_Win_allocate_shared: Open MPI makes its file under a name that can be
/// guessed, in a folder where everybody may write, and takes over what stands there; it also ends with MPI.
/// Ours has no name at all (O_TMPFILE; the neighbours open it through /proc, which asks for the same user), so
/// that nothing is left behind whatever ends the ranks. Where that cannot be (another container each), it has
/// a random name, is made by nobody else (O_EXCL, mode 0600) and loses the name as soon as all have it open;
/// everybody compares what he opened with what was made.
class SharedFile {
 public:
  SharedFile() = default;
  /// Collective over `node`: `bytes` zeros. Where one rank cannot have them, `data` is null on all. The node's
  /// first rank takes the pages of the first `reserved` bytes. Throws Error{comm} when MPI fails.
  SharedFile(MPI_Comm node, std::size_t bytes, std::size_t reserved);
  ~SharedFile();
  SharedFile(SharedFile&& other) noexcept { *this = std::move(other); }
  SharedFile& operator=(SharedFile&& other) noexcept;

  std::byte* data() const { return data_; }
  int descriptor() const { return descriptor_; }

  /// Takes pages, next to the core that calls; they cannot be lost again, whoever fills the folder meanwhile.
  /// Without that a write to a page that is not there any more ends the process with SIGBUS. False when there
  /// are too few.
  bool occupy(std::size_t first, std::size_t bytes) const;

 private:
  struct Offer;
  bool try_to_share(MPI_Comm node, std::size_t bytes, std::size_t reserved, bool named);
  void close();

  int descriptor_ = -1;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace cifar_mpi::comm
