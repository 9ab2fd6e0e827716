#include "cifar_mpi/comm/collective.hpp"

#include <array>
#include <cstddef>

#include "cifar_mpi/base/text.hpp"
#include "comm/collectives.hpp"

namespace cifar_mpi::comm {
namespace {

struct Row {
  CollectiveInfo info;
  std::unique_ptr<Collective> (*make)(const World&, const Nodes&);
};

constexpr std::array kTable = {
    Row{{"auto", "one of the others, by nodes, ranks per node and length"}, make_auto},
    Row{{"window", "through memory that the ranks share: for one node"}, make_window},
    Row{{"two-level",
         "the window inside each node and rings between them: for several ranks on several nodes"},
        make_two_level},
    Row{{"ring", "sends the least: for one rank per node and long arrays"}, make_ring},
    Row{{"doubling", "fewest messages, and a sum in a fixed tree over the ranks: for short arrays"},
        make_doubling},
    Row{{"mpi", "the MPI library's own choice: for comparison"}, make_mpi_all_reduce},
};

constexpr auto kInfos = [] {
  std::array<CollectiveInfo, kTable.size()> infos;
  for (std::size_t i = 0; i < kTable.size(); ++i) infos[i] = kTable[i].info;
  return infos;
}();

const Row* find_row(std::string_view name) {
  for (const Row& row : kTable) {
    if (row.info.name == name) return &row;
  }
  return nullptr;
}

Error no_such_row(std::string_view name) {
  std::string choices;
  for (const Row& row : kTable) choices += concat(choices.empty() ? "" : ", ", row.info.name);
  return {ErrorKind::usage, concat("there is no collective '", name, "'; choose one of: ", choices)};
}

}  // namespace

std::span<const CollectiveInfo> collectives() { return kInfos; }

std::unique_ptr<Collective> make_collective(std::string_view name, const World& world) {
  return make_collective(name, world, nodes_of(world));
}

std::unique_ptr<Collective> make_collective(std::string_view name, const World& world, const Nodes& nodes) {
  const Row* const row = find_row(name);
  world.agree(row == nullptr ? std::optional(no_such_row(name)) : std::nullopt);
  return row->make(world, nodes);
}

Buffer allocate_together(const World& world, std::size_t bytes) {
  Buffer buffer;
  world.together([&] { buffer = allocate_host(bytes); });
  return buffer;
}

}  // namespace cifar_mpi::comm
