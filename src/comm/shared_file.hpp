#pragma once

#include <mpi.h>

#include <cstddef>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/base/directory.hpp"

namespace cifar_mpi::comm {

/// Memory that all ranks of a node map, and no other process.
///
/// Made by ourselves and not by MPI_Win_allocate_shared: Open MPI creates its file under a predictable name in a
/// world-writable folder, and accepts an existing file; that memory also ends with MPI. Ours has no name (O_TMPFILE;
/// the other ranks open it through /proc, which requires the same user), so no file remains however the ranks end. If
/// that is impossible (ranks in different containers), it gets a random name (O_EXCL, mode 0600), which is removed as
/// soon as all ranks have opened it; every rank compares the opened file with the created one.
class SharedFile {
 public:
  SharedFile() = default;
  /// Collective over `node`: `bytes` zeros. If it fails on one rank, `data` is null on all. The node's first
  /// rank allocates the pages of the first `reserved` bytes. Throws Error{comm} when MPI fails.
  SharedFile(MPI_Comm node, std::size_t bytes, std::size_t reserved);

  std::byte* data() const { return memory_.data(); }
  int descriptor() const { return file_.get(); }

  /// Allocates pages near the calling core, so that other users who fill the folder cannot take them. A write
  /// to a page that cannot be allocated ends the process with SIGBUS. False if there are too few.
  bool occupy(std::size_t first, std::size_t bytes) const;

 private:
  struct Offer;
  bool try_to_share(MPI_Comm node, std::size_t bytes, std::size_t reserved, bool named);

  Descriptor file_;
  Buffer memory_;
};

}  // namespace cifar_mpi::comm
