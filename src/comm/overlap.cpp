#include "cifar_mpi/comm/all_reduce_update.hpp"
#include "comm/collectives.hpp"

namespace cifar_mpi::comm {

bool overlap_pays(Path path) {
  switch (path) {
    case Path::device:
      // A device moves data while it computes, so transfers before the end of backward are free.
      return true;
    case Path::network:
      // The network carries data while the cores compute, and they poll it between tasks and pieces of tasks.
      // Two nodes of one rank, links held to 1, 3 and 10 Gbit/s, over a step of 51 ms without any all-reduce:
      // 16 ms more instead of 43, 4.5 instead of 14, and 3.6 instead of 4.6, where 3.5 ms are the processors'
      // own work for TCP, which remains on unlimited links, too.
      return true;
    case Path::memory:
      // The cores that compute also sum, so little overlaps. With a core per rank there is no measurable
      // difference: in the same rounds overlapped 52.9 and 54.0 ms a step, blocking 53.2 and 53.1, no
      // all-reduce 53.0 and 54.1. With 4 and 8 ranks on 2 loaded cores overlap took 0.91 of the time: a rank
      // that waits for a core delays the others only at the end, not at every bucket.
      return true;
  }
  return true;
}

bool share_pays(Path path) {
  switch (path) {
    case Path::device:
    case Path::network:
      return false;  // not measured
    case Path::memory:
      // A step of fast94 with 192 images on each of 2 ranks takes 366 instead of 385 ms (tests/MEASURED.md). With 8 ranks
      // the one with the most work saves 28 ms of a core. The moves, 8 MB, are summed like gradients.
      return true;
  }
  return false;
}

namespace {

Path path_of(const World& world, bool device) {
  if (device) return Path::device;
  return nodes_of(world).count() > 1 ? Path::network : Path::memory;
}

}  // namespace

bool resolve_overlap(Overlap asked, const World& world, bool device) {
  return asked == Overlap::automatic ? overlap_pays(path_of(world, device)) : asked == Overlap::on;
}

bool resolve_share(Share asked, const World& world, bool device) {
  return asked == Share::automatic ? share_pays(path_of(world, device)) : asked == Share::on;
}

}  // namespace cifar_mpi::comm
