#include "cifar_mpi/comm/reducer.hpp"
#include "comm/nodes.hpp"

namespace cifar_mpi::comm {

bool overlap_pays(Path path) {
  switch (path) {
    case Path::device:
      // A device moves data while it computes: what is in flight before backward ends is free.
      return true;
    case Path::network:
      // The network carries data while the cores compute, which only look after it between tasks. On links
      // slowed down to 10 and 1 Gbit/s, two ranks: 26.5 ms a step instead of 27.9, and 38 instead of 49.5
      // (24.1 without any all-reduce). Measured with a prototype.
      return true;
    case Path::memory:
      // The cores that compute also sum, so little runs beside anything. With a core per rank nothing can be
      // measured: in the same rounds overlapped 52.9 and 54.0 ms a step, blocking 53.2 and 53.1, no
      // all-reduce 53.0 and 54.1. With 4 and 8 ranks on 2 loaded cores overlap took 0.91 of the time: a rank
      // that waits for its turn holds the others up at the end only, not at every bucket.
      return true;
  }
  return true;
}

bool resolve_overlap(Overlap asked, const World& world, bool device) {
  if (asked != Overlap::automatic) return asked == Overlap::on;
  if (device) return overlap_pays(Path::device);
  return overlap_pays(nodes_of(world).count() > 1 ? Path::network : Path::memory);
}

}  // namespace cifar_mpi::comm
