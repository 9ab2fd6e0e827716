#pragma once

namespace cifar_mpi::test {

/// Allocations of this test program so far. Linking this file replaces operator new and delete of the program
/// by ones that count.
long allocations();

}  // namespace cifar_mpi::test
