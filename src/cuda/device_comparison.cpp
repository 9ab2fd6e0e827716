#include "cuda/device_comparison.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cuda/device_choice.hpp"

namespace cifar_mpi::cuda {

void compare_devices(const Device& device, const comm::World& world, bool share) {
  const std::vector<std::uint64_t> gpus = world.gather(device.identity());
  const std::vector<int> ordinals = world.gather(device.ordinal());
  const std::vector<std::uint64_t> places = world.gather(device.pci_number());
  const auto& hosts = world.hosts();
  std::vector<DeviceIdentity> ranks;
  std::map<std::string, std::string> lines;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto first = std::find(hosts.begin(), hosts.end(), hosts[rank]) - hosts.begin();
    ranks.push_back({first, gpus[rank]});
    std::string& line = lines[hosts[rank]];
    line +=
        concat(line.empty() ? "" : ", ", "rank ", rank, " GPU ", ordinals[rank], " ", pci_text(places[rank]));
  }
  for (const auto& [host, line] : lines) Log(world.rank()).info(concat("GPUs of ", host, ": ", line));
  const SharedDevice shared = find_shared_device(ranks);
  world.together([&] {
    if (shared.rank < 0 || share || world.rank() != 0) return;
    throw Error(ErrorKind::device,
                concat("ranks ", shared.other, " and ", shared.rank, " on ",
                       hosts[static_cast<std::size_t>(shared.rank)],
                       " have the same GPU; give each rank one of its own, or allow sharing for a test with "
                       "--share-gpus"));
  });
}

}  // namespace cifar_mpi::cuda
