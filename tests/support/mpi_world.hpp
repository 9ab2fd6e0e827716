#pragma once

#include "cifar_mpi/comm/world.hpp"

namespace cifar_mpi::test {

/// The World that the main of the MPI tests made; every rank runs every test, in the same order.
const comm::World& test_world();

}  // namespace cifar_mpi::test
