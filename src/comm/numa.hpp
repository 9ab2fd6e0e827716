#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "comm/cores.hpp"

/// The NUMA domains of a node, and which of them each rank keeps to.
namespace cifar_mpi::comm {

struct NumaDomain {
  int number = 0;
  CoreMask cores;
};

/// The domains that have cores, by number; none where the system lists none. The argument is where Linux lists them.
std::vector<NumaDomain> numa_domains(const std::filesystem::path& folder = "/sys/devices/system/node");

/// The cores that rank `mine` of a node should keep to: its whole mask, or the part of it that lies in its own domains.
///
/// A rank gets domains only if nothing else has placed the ranks: `masks`, which has the mask of every rank of the node, are
/// all equal to `allowed`, the cores of the container or job. The ranks then share the domains in the order of both: ranks that
/// outnumber the domains share one, fewer ranks get several neighbouring domains each. If that would leave a rank less than an
/// even share of the cores (3 ranks on 2 domains), all keep their whole masks. All ranks of a node decide alike.
CoreMask home_mask(std::span<const CoreMask> masks, std::size_t mine, const CoreMask& allowed,
                   std::span<const NumaDomain> domains);

/// Limits the calling thread, and those it starts afterwards, to these cores; where the system refuses, nothing changes.
void keep_to(CoreMask mask);

/// "cores 0-3,8, NUMA domain 0"
std::string place_text(const CoreMask& mask, std::span<const NumaDomain> domains);

/// A line for each group of neighbouring ranks of a host with equal places: "ranks 0-3 on node1: cores 0-7, NUMA domain 0".
std::vector<std::string> place_lines(std::span<const std::string> hosts, std::span<const std::string> places);

}  // namespace cifar_mpi::comm
