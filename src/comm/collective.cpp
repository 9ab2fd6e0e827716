#include "cifar_mpi/comm/collective.hpp"

#include <array>
#include <cstddef>

#include "cifar_mpi/base/text.hpp"
#include "comm/collectives.hpp"

namespace cifar_mpi::comm {
namespace {

struct Row {
  CollectiveInfo info;
  std::unique_ptr<Collective> (*make)(const World&);
};

constexpr std::array kTable = {
    Row{{"ring", "sends the least: for long arrays and slow networks"}, make_ring},
    Row{{"mpi", "the MPI library's own choice: for short arrays and many ranks"}, make_mpi_all_reduce},
};

constexpr auto kInfos = [] {
  std::array<CollectiveInfo, kTable.size()> infos;
  for (std::size_t i = 0; i < kTable.size(); ++i) infos[i] = kTable[i].info;
  return infos;
}();

}  // namespace

std::span<const CollectiveInfo> collectives() { return kInfos; }

std::unique_ptr<Collective> make_collective(std::string_view name, const World& world) {
  std::string choices;
  for (const Row& row : kTable) {
    if (row.info.name == name) return row.make(world);
    choices += concat(choices.empty() ? "" : ", ", row.info.name);
  }
  throw Error(ErrorKind::usage, concat("there is no collective '", name, "'; choose one of: ", choices));
}

}  // namespace cifar_mpi::comm
