#include "cifar_mpi/comm/collective.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "cifar_mpi/base/text.hpp"
#include "comm/collectives.hpp"
#include "comm/mpi_check.hpp"

namespace cifar_mpi::comm {

/// All of them communicate: every rank calls them with the same arguments. The guarantees stand at their definitions.
using Factory = std::unique_ptr<Collective>(const World& world, const Nodes& nodes, Wire wire);
Factory make_auto, make_window, make_two_level, make_ring, make_doubling, make_mpi_all_reduce;

namespace {

struct Row {
  CollectiveInfo info;
  Factory* make;
};

constexpr std::array kTable = {
    Row{{.name = "auto",
         .purpose = "one of the others, by nodes, ranks per node and length",
         .compresses = Compresses::between_nodes},
        make_auto},
    Row{{.name = "window", .purpose = "through memory that the ranks share: for one node", .one_node = true},
        make_window},
    Row{{.name = "two-level",
         .purpose = "the window inside each node and rings between them: for several ranks on several nodes",
         .compresses = Compresses::between_nodes},
        make_two_level},
    Row{{.name = "ring",
         .purpose = "sends the least: for one rank per node and long arrays",
         .compresses = Compresses::everything},
        make_ring},
    Row{{.name = "doubling",
         .purpose = "fewest messages, and a sum in a fixed tree over the ranks: for short arrays",
         .compresses = Compresses::everything,
         .fixed_tree = true},
        make_doubling},
    Row{{.name = "mpi", .purpose = "the MPI library's own choice: for comparison"}, make_mpi_all_reduce},
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

template <class Suits>
std::string choices(Suits suits) {
  std::string names;
  for (const Row& row : kTable) {
    if (suits(row.info)) names += concat(names.empty() ? "" : ", ", row.info.name);
  }
  return names;
}

Error no_such_row(std::string_view name) {
  return {ErrorKind::usage, "there is no collective '", name,
          "'; choose one of: ", choices([](const CollectiveInfo&) { return true; })};
}

Error no_such_wire(std::string_view name, Wire wire) {
  return {ErrorKind::usage,
          "--wire ",
          to_string(wire),
          " is not for --all-reduce ",
          name,
          ", which has no messages of its own to compress; choose one of: ",
          choices([&](const CollectiveInfo& info) { return can_have(info, wire); })};
}

/// A collective with an additional note.
class WithNote final : public Collective {
 public:
  WithNote(std::unique_ptr<Collective> inner, std::string note)
      : inner_(std::move(inner)), note_(std::move(note)) {}

  std::string_view name() const override { return inner_->name(); }
  std::string note() const override {
    const std::string others = inner_->note();
    return others.empty() ? note_ : concat(note_, ". ", others);
  }
  std::string_view resolved() const override { return inner_->resolved(); }
  int ranks() const override { return inner_->ranks(); }
  Buffer allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  engine::Task all_reduce(std::string task_name, std::span<float> data, std::size_t fp32_prefix) override {
    return inner_->all_reduce(std::move(task_name), data, fp32_prefix);
  }

 private:
  std::unique_ptr<Collective> inner_;
  std::string note_;
};

}  // namespace

std::span<const CollectiveInfo> collectives() { return kInfos; }

const CollectiveInfo* find_collective(std::span<const CollectiveInfo> infos, std::string_view name) {
  const auto found = std::ranges::find(infos, name, &CollectiveInfo::name);
  return found == infos.end() ? nullptr : &*found;
}

std::string_view fixed_tree_collective() {
  return std::ranges::find_if(kInfos, &CollectiveInfo::fixed_tree)->name;
}

bool can_have(const CollectiveInfo& info, Wire wire) {
  return wire == Wire::fp32 || info.compresses != Compresses::nothing;
}

std::unique_ptr<Collective> make_collective(std::string_view name, const World& world, Wire wire) {
  return make_collective(name, world, nodes_of(world), wire);
}

std::unique_ptr<Collective> make_collective(std::string_view name, const World& world, const Nodes& nodes,
                                            Wire wire) {
  const Row* const row = find_row(name);
  std::optional<Error> problem;
  if (row == nullptr) problem = no_such_row(name);
  if (row != nullptr && !can_have(row->info, wire)) problem = no_such_wire(name, wire);
  world.agree(problem);
  if (wire == Wire::fp32 || row->info.compresses == Compresses::everything || nodes.count() > 1)
    return row->make(world, nodes, wire);
  return std::make_unique<WithNote>(
      row->make(world, nodes, Wire::fp32),
      concat("--wire ", to_string(wire), " has no effect: no gradient leaves this node, and ", name,
             " sums in shared memory; ring and doubling would compress inside the node, too"));
}

Platform on_host(std::unique_ptr<engine::Backend> backend) {
  return {std::move(backend),
          {[](std::string_view name, const World& world, Wire wire) {
             return make_collective(name, world, wire);
           },
           false}};
}

Buffer allocate_together(const World& world, std::size_t bytes) {
  Buffer buffer;
  world.together([&] { buffer = allocate_message_memory(bytes); });
  return buffer;
}

}  // namespace cifar_mpi::comm
