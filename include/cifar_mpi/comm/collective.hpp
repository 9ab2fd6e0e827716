#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/base/names.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/engine/program.hpp"

namespace cifar_mpi::comm {

/// The number format of messages between ranks. Every rank adds in fp32.
///
/// bf16 halves the bytes. Every value is rounded to the nearest bf16 (8 significant bits, ties to even)
/// before it is sent, and every rank keeps what the others receive, so that all end with identical bits,
/// which do not depend on timing. The R roundings of a value on its way into the sum of P ranks:
///
///   ring         R = P          the partial sum before each of its P-1 hops, and the total
///   two-level    R = N          the same over N nodes; inside a node nothing is rounded
///   doubling     R = log2 P     both partial sums before each exchange; when P is no power of two
///                               R = floor(log2 P) + 2, because pairs are added first and the total is sent
///                               on to half of each pair
///   window, mpi  none           the one sends nothing, the other leaves its messages to the MPI library
///
/// Each rounding multiplies by 1+d with |d| <= u = 2^-8, each of at most P-1 fp32 additions by 1+e with
/// |e| <= 2^-24, and a value passes through at most R and P-1 of them. So, except for overflow and for values
/// below 2^-126 (at most 2^-134 each time),
///
///   |sum - exact| <= ((1+u)^R · (1+2^-24)^(P-1) - 1) · (|x_0| + … + |x_P-1|),
///
/// about R/256 of the magnitudes.
enum class Wire : std::uint8_t { fp32, bf16 };
constexpr auto names_of(Wire) {
  return std::to_array<Name<Wire>>({{"fp32", Wire::fp32}, {"bf16", Wire::bf16}});
}

/// A way to sum fp32 arrays over all ranks. Chosen by name at start; adding one is a new file and a line in
/// the table.
class Collective {
 public:
  virtual ~Collective() = default;

  /// For messages. Begins with the name in the table; the resolved choice follows: "auto (window)", or
  /// "window as ring" after `allocate` has found too little shared memory.
  virtual std::string_view name() const = 0;
  /// The resolved choice: "window". Collectives with equal texts sum in the same order.
  virtual std::string_view resolved() const { return name(); }
  /// A sentence for the user if something differs from the request, known after `allocate`; else empty. The
  /// same on all ranks.
  virtual std::string note() const { return {}; }
  /// The number of ranks in the sum. With one there is nothing to sum, and the tasks are omitted.
  virtual int ranks() const = 0;
  /// Zeroed memory, 64-byte aligned, that arrays to be summed must lie in. Every rank must ask for the same
  /// size in the same order, outside World::together, and release it in one order, before the collective is
  /// destroyed. A failure on one rank is thrown on all (AgreedError).
  virtual Buffer allocate(std::size_t bytes) = 0;
  /// A task for the comm lane that replaces `data` by the sum over all ranks. Its first `fp32_prefix` floats (the
  /// control block) are always sent as fp32. Every rank must place the same tasks in the same order, and one task may
  /// be in flight at a time. All ranks end with identical bits. Nothing is allocated per run. `data` may be empty. The
  /// task throws Error{comm}; `data` is then unspecified. The task refers to this collective, which must outlive it.
  /// Throws Error{usage} when `data` is too long for one task, Error{device} without memory.
  virtual engine::Task all_reduce(std::string task_name, std::span<float> data, std::size_t fp32_prefix) = 0;
};

/// Which messages of a collective can have another wire than fp32.
enum class Compresses : std::uint8_t { nothing, between_nodes, everything };

/// A row of the table of collectives: the properties of a collective before it is made.
struct CollectiveInfo {
  std::string_view name;     ///< as `make_collective` takes it
  std::string_view purpose;  ///< one sentence on when to use it
  Compresses compresses = Compresses::nothing;
  bool one_node = false;  ///< only if all ranks share a node
  /// Adds in the balanced tree over rank order for any length: with the same tree over a rank's micro-shards,
  /// sums do not depend on the number of ranks (--reproducible).
  bool fixed_tree = false;
};
std::span<const CollectiveInfo> collectives();

/// The row of that name, or null.
const CollectiveInfo* find_collective(std::span<const CollectiveInfo> infos, std::string_view name);
/// The name of the first that adds in the fixed tree; every table has one.
std::string_view fixed_tree_collective();

/// Throws AgreedError{usage} naming the choices if the name is unknown or its messages do not support this
/// wire. With `auto` or `two-level` on a single node there are no messages to compress; the wire is then fp32
/// and the note says so. `world` must outlive the result. Making one communicates: every rank calls it,
/// outside World::together; a failure on one rank is thrown on all.
std::unique_ptr<Collective> make_collective(std::string_view name, const World& world,
                                            Wire wire = Wire::fp32);

/// The result of comparing the kernels of the ranks.
struct KernelAgreement {
  bool again = false;  ///< the network must be planned again: other ranks need slower kernels
  std::vector<std::string>
      slower;  ///< a line for each kernel that is not the first choice; the same on all ranks
};

/// Collectives for arrays in the memory of one backend.
struct CollectiveSource {
  /// Like the function of the same name; the world and the backend must outlive the result.
  std::function<std::unique_ptr<Collective>(std::string_view name, const World& world, Wire wire)> make;
  bool device = false;  ///< the arrays are in a device's memory and cross its links
  /// Fails on all of these ranks together if two of them share a device and must not, and lists the device of
  /// each. `make` calls it itself. Null if there is nothing to compare.
  std::function<void(const World& world)> compare_devices = {};
  /// Compares the kernels of the last plan over these ranks, which all have a plan. Null where every rank has the same
  /// anyway.
  std::function<KernelAgreement(const World& world)> agree_on_kernels = {};
};

/// A backend, and the collectives for its memory.
struct Platform {
  std::unique_ptr<engine::Backend> backend;
  CollectiveSource collectives;
};
/// Makes the platform of the device that the application has chosen. Throws Error{device}.
using PlatformFactory = std::function<Platform(const engine::BackendOptions&)>;

/// A backend of ordinary memory, with the collectives above.
Platform on_host(std::unique_ptr<engine::Backend> backend);

}  // namespace cifar_mpi::comm
