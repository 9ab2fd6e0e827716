#include "comm/message_collective.hpp"
#include "comm/ring_operation.hpp"

namespace cifar_mpi::comm {

std::unique_ptr<Collective> make_ring(const World& world, const Nodes& nodes, Wire wire) {
  return std::make_unique<MessageCollective<RingOperation>>("ring", world, nodes, wire);
}

}  // namespace cifar_mpi::comm
