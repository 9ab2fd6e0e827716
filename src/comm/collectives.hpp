#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "cifar_mpi/comm/collective.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "comm/shared_memory.hpp"

/// What the collectives have in common. Each has a factory in its own file, which states what it guarantees, and a row
/// of the table in collective.cpp.
namespace cifar_mpi::comm {

/// Which ranks share a node, and so memory. Tests simulate it: four ranks of one machine then behave as 2 + 2 or 3 + 1.
struct Nodes {
  std::vector<int> of_rank;  ///< the node of each rank; nodes are numbered by their lowest rank, from 0

  int count() const;
  int ranks_on(int node) const;
  int fewest_ranks() const;  ///< on any node
  int most_ranks() const;    ///< on any node
};

/// The nodes as MPI sees them. Communicates: every rank calls it.
Nodes nodes_of(const World& world);

/// `make_collective` for nodes that a test simulates. Communicates: every rank calls it with the same arguments.
std::unique_ptr<Collective> make_collective(std::string_view name, const World& world, const Nodes& nodes,
                                            Wire wire = Wire::fp32);

/// Whether `make_collective` takes that wire for that collective.
bool can_have(const CollectiveInfo& info, Wire wire);

/// `allocate_message_memory` on every rank; a failure on one becomes every rank's error.
Buffer allocate_together(const World& world, std::size_t bytes);

/// The choice of a collective by length.
struct AutoChoice {
  std::size_t short_bytes = 0;    ///< arrays of at most this many bytes are short
  std::string_view for_short;     ///< unused when `short_bytes` is 0
  std::string_view for_the_rest;  ///< `allocate` returns its memory
};

/// A fixed rule, so that runs with the same distribution of ranks sum in the same way.
AutoChoice choose_collective(const Nodes& nodes);

/// `make_window` or `make_two_level` under `name`, with another function for the free shared memory.
std::unique_ptr<Collective> make_node_window(std::string_view name, const World& world, const Nodes& nodes,
                                             Wire wire, std::function<SharedMemory()> ask_free);

/// Into how many messages the ring cuts each P-th of an array; `network`: they cross from node to node.
std::size_t ring_chunks(std::size_t piece_floats, bool network);

/// A rank's part in a round of `doubling`: one message in each direction, or in one only, and the use of the received message.
struct DoublingStage {
  enum class Arrival { none, added, replaces };

  int peer = 0;
  bool sends = false;
  Arrival arrival = Arrival::none;
};

/// Round 0 adds the arrays of pairs of ranks, and the last round returns the total to them; between them each round is an exchange.
int doubling_rounds(int ranks);

/// Returns none if the rank neither sends nor receives in that round.
std::optional<DoublingStage> doubling_stage(int rank, int ranks, int round);

}  // namespace cifar_mpi::comm
