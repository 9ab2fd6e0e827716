#pragma once

#include <functional>
#include <memory>

#include "comm/collectives.hpp"
#include "comm/shared_memory.hpp"

namespace cifar_mpi::comm {

/// `make_window` or `make_two_level` (see there) under `name`, with another function for the free shared memory.
std::unique_ptr<Collective> make_node_window(std::string_view name, const World& world, const Nodes& nodes,
                                             Wire wire, std::function<SharedMemory()> ask_free);

}  // namespace cifar_mpi::comm
