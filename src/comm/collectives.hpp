#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "cifar_mpi/comm/collective.hpp"
#include "comm/nodes.hpp"

/// The factories behind the table in collective.cpp: one file, one declaration and one row for each way to
/// sum. All of them communicate: every rank calls them with the same arguments.
namespace cifar_mpi::comm {

/// `make_collective` for nodes that a test made up.
std::unique_ptr<Collective> make_collective(std::string_view name, const World& world, const Nodes& nodes);

/// `allocate_host` on every rank; what fails on one becomes every rank's error.
Buffer allocate_together(const World& world, std::size_t bytes);

/// Two trips around a ring of P ranks: first each rank collects the total of one P-th of the array, then the
/// totals travel once more. A rank sends 2·(P-1)/P of the array in 2·(P-1) messages (Patarasuk and Yuan
/// 2009). For short arrays the message count rules and `doubling` wins.
///
///   data   [n] f32, host memory, replaced by the sum; any n, also n < P and n = 0
///   order  belongs on the comm lane; `start` posts the first messages, `poll` adds what has arrived and
///          sends it on
///   bits   depend on P and n alone, not on timing: every total is computed once and copied
///   memory two P-ths of the array for what arrives, taken when the task is made; nothing per run
std::unique_ptr<Collective> make_ring(const World& world, const Nodes& nodes);

/// MPI_Iallreduce in place and MPI_Test: the MPI library chooses the algorithm by length and number of ranks.
///
///   data   [n] f32, host memory, replaced by the sum; any n, also n = 0
///   order  belongs on the comm lane; `start` returns at once, progress is made in `poll`
///   bits   MPI only advises that all ranks get the same; the algorithms of Open MPI 4 and 5 give it, because
///          either one rank adds and the others copy, or two ranks add the same two values
///   memory the MPI library may take some of its own per run; here nothing is
std::unique_ptr<Collective> make_mpi_all_reduce(const World& world, const Nodes& nodes);

}  // namespace cifar_mpi::comm
