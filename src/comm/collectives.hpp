#pragma once

#include <memory>
#include <string_view>

#include "cifar_mpi/comm/collective.hpp"
#include "comm/nodes.hpp"

/// The factories of the table in collective.cpp: each way to sum has one file, one declaration and one row.
/// All of them communicate: every rank calls them with the same arguments.
namespace cifar_mpi::comm {

/// `make_collective` for nodes that a test simulates.
std::unique_ptr<Collective> make_collective(std::string_view name, const World& world, const Nodes& nodes,
                                            Wire wire = Wire::fp32);

/// Whether `make_collective` takes that wire for that collective.
bool can_have(const CollectiveInfo& info, Wire wire);

/// `allocate_message_memory` on every rank; a failure on one becomes every rank's error.
Buffer allocate_together(const World& world, std::size_t bytes);

/// Chooses by how the ranks are distributed over nodes, and by length: see `choose_collective`. Behaves like
/// the chosen one, whose name follows in brackets.
std::unique_ptr<Collective> make_auto(const World& world, const Nodes& nodes, Wire wire);

/// The ranks of a node keep their arrays in shared memory. Each adds one slice of all
/// arrays, in rank order, and writes the total into every array: nothing is packed, sent or received. For
/// ranks that share one node. `WindowOperation` explains their synchronization.
///
///   data   [n] f32 inside memory from `allocate`, replaced by the sum; any n, also n = 0
///   order  belongs on the comm lane; `start` stores one flag, `poll` works when all ranks have started
///   bits   the sum in rank order, ((r0+r1)+r2)+…, for any n and timing
///   memory a shared window per `allocate`; nothing per task or run
///
/// If shared memory is short on any rank, all of them use `ring` for that array, and `note` says so.
/// Throws AgreedError{usage} when the ranks are on several nodes.
std::unique_ptr<Collective> make_window(const World& world, const Nodes& nodes, Wire wire);

/// The window inside every node and rings between the nodes: with k ranks on the smallest node the array is
/// cut into k slices; rank i < k of a node adds slice i of all its arrays, sums that around the ring of the
/// i-th ranks of all nodes, and writes the total into every array of its node. With equal nodes every rank
/// sends its part; ranks beyond the k-th of a larger node only contribute their arrays. Any mix of ranks per
/// node; on one node it is `window`, with one rank on each it is `ring`.
///
///   data, order, memory   as for `window`; two parts of a slice per owner as receive buffers, per task
///   bits   depend on the ranks' distribution over nodes and on n alone
std::unique_ptr<Collective> make_two_level(const World& world, const Nodes& nodes, Wire wire);

/// Two trips around a ring of P ranks: first a reduce-scatter, after which each rank has the sum of one chunk, then an
/// all-gather. A rank sends 2·(P-1)/P of the array in 2·(P-1) messages (Patarasuk and Yuan 2009). For short arrays the
/// number of messages dominates and `doubling` wins. Long pieces are sent in chunks: see `RingOperation`.
///
///   data   [n] f32, host memory, replaced by the sum; any n, also n < P and n = 0
///   order  belongs on the comm lane; `start` posts the first messages, `poll` adds what has arrived and
///          sends it on
///   bits   depend on P and n alone, not on timing: every total is computed once and copied
///   memory three chunks as receive buffers (and with a 16-bit wire half the array for sending), allocated
///          when the task is made; nothing per run
std::unique_ptr<Collective> make_ring(const World& world, const Nodes& nodes, Wire wire);

/// Into how many messages the ring cuts each P-th of an array; `network`: they cross from node to node.
std::size_t ring_chunks(std::size_t piece_floats, bool network);

/// Recursive doubling: in stage s the rank exchanges its whole partial sum with the one 2^s away, so that
/// after log2(P) stages all have the total (Thakur, Rabenseifner, Gropp 2005). Few messages, but all of the
/// array in each: for short arrays.
///
/// The sum is a fixed binary tree over rank order. For P a power of two it is the balanced one, ((r0+r1)+(r2+r3))+…;
/// otherwise, with K the largest power of two below P, the first P-K pairs of ranks (2i, 2i+1) are added first and the
/// balanced tree covers those pairs and the remaining ranks: for P = 5 ((r0+r1)+r2)+(r3+r4). The pairs add two stages.
///
///   data   [n] f32, host memory, replaced by the sum; any n, also n = 0
///   order  belongs on the comm lane; `start` posts the first stage, `poll` adds and starts the next
///   bits   depend on P alone, neither on n nor on timing: both ends of an exchange add the same two numbers
///   memory a receive buffer of the array's size, allocated when the task is made; nothing per run
std::unique_ptr<Collective> make_doubling(const World& world, const Nodes& nodes, Wire wire);

/// MPI_Iallreduce in place and MPI_Test: the MPI library chooses the algorithm by length and number of ranks.
///
///   data   [n] f32, host memory, replaced by the sum; any n, also n = 0
///   order  belongs on the comm lane; `start` returns at once, progress is made in `poll`
///   bits   MPI only advises that all ranks get the same; the algorithms of Open MPI 4 and 5 give it, because
///          either one rank adds and the others copy, or two ranks add the same two values
///   memory the MPI library may allocate its own per run
std::unique_ptr<Collective> make_mpi_all_reduce(const World& world, const Nodes& nodes, Wire wire);

}  // namespace cifar_mpi::comm
