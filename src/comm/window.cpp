#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "comm/collectives.hpp"
#include "comm/message_collective.hpp"
#include "comm/window_operation.hpp"
#include "comm/world_access.hpp"

namespace cifar_mpi::comm {
namespace {

/// Exchanges the ranks' errors; returns the agreed one, or none.
std::string agreed_text(const World& world, const std::optional<Error>& mine) {
  try {
    world.agree(mine);
    return {};
  } catch (const AgreedError& error) {
    world.agree(std::nullopt);  // does not return
    return error.what();
  }
}

class Window final : public Collective {
 public:
  Window(std::string_view name, const World& world, const Nodes& nodes, Wire wire,
         std::function<SharedMemory()> ask_free);

  std::string_view name() const override { return name_; }
  std::string note() const override { return note_; }
  int ranks() const override { return world_.size(); }
  Buffer allocate(std::size_t bytes) override;
  engine::Task all_reduce(std::string task_name, std::span<float> data, std::size_t fp32_prefix) override;

 private:
  std::optional<Error> too_little(std::size_t bytes) const;
  std::unique_ptr<WindowBlock> make_block(std::size_t bytes);
  Collective& instead(const std::string& reason);
  WindowBlock* block_of(std::span<const float> data) const;

  const World& world_;
  const Nodes nodes_;
  const Wire wire_;  ///< between nodes
  const std::function<SharedMemory()> ask_free_;
  std::string name_;
  std::string note_;
  Communicator node_;
  Communicator across_;  ///< empty on a rank that owns no slice
  WindowPlace neighbours_;
  std::vector<std::unique_ptr<WindowBlock>> blocks_;
  std::unique_ptr<Collective> instead_;                 ///< for arrays without shared memory
  std::vector<std::unique_ptr<WindowOperation>> runs_;  ///< tasks point into it; destroyed before the rest
};

Window::Window(std::string_view name, const World& world, const Nodes& nodes, Wire wire,
               std::function<SharedMemory()> ask_free)
    : world_(world), nodes_(nodes), wire_(wire), ask_free_(std::move(ask_free)), name_(name) {
  if (wire != Wire::fp32) name_ += concat(" in ", to_string(wire));
  const auto me = nodes.of_rank.begin() + world.rank();
  node_ = WorldAccess::split(world, *me);
  neighbours_.owners = nodes.fewest_ranks();
  const int slice = static_cast<int>(std::count(nodes.of_rank.begin(), me, *me));
  const bool owner = slice < neighbours_.owners;
  across_ = WorldAccess::split(world, owner ? slice : -1);
  // The owners of a slice are in rank order: nodes are numbered by their first rank for slice 0, by a later
  // rank for the others. Any fixed order works.
  if (owner) neighbours_.across = neighbours_in(across_.get(), true);
}

/// A text that says what is missing for `bytes` more per rank; empty if there is enough.
std::optional<Error> Window::too_little(std::size_t bytes) const {
  const int on_node = nodes_.ranks_on(nodes_.of_rank[static_cast<std::size_t>(world_.rank())]);
  const std::uint64_t needed = shared_memory_needed(on_node, NodeMemory::footprint(bytes));
  const SharedMemory found = ask_free_();
  if (found.free_bytes >= needed) return std::nullopt;
  return Error(ErrorKind::device, "shared memory is short: ", on_node, " ranks on a node need ",
               (needed >> 20) + 1, " MiB of ", found.place, ", ", found.free_bytes >> 20, " MiB are free");
}

/// The block, or null if it failed on any rank; `note_` then says why.
std::unique_ptr<WindowBlock> Window::make_block(std::size_t bytes) {
  std::string reason = agreed_text(world_, too_little(bytes));
  if (!reason.empty()) return instead(reason), nullptr;
  std::unique_ptr<WindowBlock> block;
  std::optional<Error> mine;
  try {
    block = std::make_unique<WindowBlock>(node_.get(), bytes);
    if (!block->memory.occupy()) {
      mine.emplace(ErrorKind::device, "shared memory ran out while its pages were allocated");
    }
  } catch (const Error& error) {
    mine = error;
  }
  reason = agreed_text(world_, mine);
  if (!reason.empty()) return instead(reason), nullptr;
  return block;
}

/// The collective used instead; made at the first call.
Collective& Window::instead(const std::string& reason) {
  if (!instead_) {
    instead_ = make_collective("ring", world_, nodes_, wire_);
    note_ = concat(reason, "; ", name_,
                   " falls back to ring, which is slower; more shared memory (docker run --shm-size, or "
                   "remounting /dev/shm) avoids that");
    name_ += " as ring";
  }
  return *instead_;
}

Buffer Window::allocate(std::size_t bytes) {
  std::unique_ptr<WindowBlock> made = make_block(bytes);
  if (!made) return instead_->allocate(bytes);
  WindowBlock* const block = blocks_.emplace_back(std::move(made)).get();
  return {block->memory.data(block->memory.rank()), bytes,
          [this, block] { std::erase_if(blocks_, [&](const auto& owned) { return owned.get() == block; }); }};
}

WindowBlock* Window::block_of(std::span<const float> data) const {
  const engine::Bytes bytes = engine::bytes_of(data.data(), data.size());
  for (const auto& block : blocks_) {
    const std::byte* const begin = block->memory.data(block->memory.rank());
    if (bytes.begin >= begin && bytes.end() <= begin + block->memory.bytes()) return block.get();
  }
  return nullptr;
}

engine::Task Window::all_reduce(std::string task_name, std::span<float> data, std::size_t fp32_prefix) {
  const engine::Bytes bytes = engine::bytes_of(data.data(), data.size());
  if (data.empty())
    return {std::move(task_name), {bytes}, {bytes}, [](engine::Lane&) {}, [] { return true; }};
  WindowBlock* const block = block_of(data);
  if (block == nullptr) {
    if (instead_) return instead_->all_reduce(std::move(task_name), data, fp32_prefix);
    throw std::logic_error(concat("'", task_name, "' sums an array outside the memory of its collective"));
  }
  runs_.push_back(std::make_unique<WindowOperation>(neighbours_, *block, data, wire_, fp32_prefix));
  return task_of(std::move(task_name), data, *runs_.back());
}

}  // namespace

std::unique_ptr<Collective> make_node_window(std::string_view name, const World& world, const Nodes& nodes,
                                             Wire wire, std::function<SharedMemory()> ask_free) {
  return std::make_unique<Window>(name, world, nodes, wire, std::move(ask_free));
}

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
std::unique_ptr<Collective> make_window(const World& world, const Nodes& nodes, Wire) {
  if (nodes.count() > 1) {
    const Error error(ErrorKind::usage, concat("--all-reduce window sums inside one node and this run has ",
                                               nodes.count(), "; choose two-level, or leave it to auto"));
    world.agree(error);
  }
  return make_node_window("window", world, nodes, Wire::fp32, shared_memory);
}

/// The window inside every node and rings between the nodes: with k ranks on the smallest node the array is
/// cut into k slices; rank i < k of a node adds slice i of all its arrays, sums that around the ring of the
/// i-th ranks of all nodes, and writes the total into every array of its node. With equal nodes every rank
/// sends its part; ranks beyond the k-th of a larger node only contribute their arrays. Any mix of ranks per
/// node; on one node it is `window`, with one rank on each it is `ring`.
///
///   data, order, memory   as for `window`; two parts of a slice per owner as receive buffers, per task
///   bits   depend on the ranks' distribution over nodes and on n alone
std::unique_ptr<Collective> make_two_level(const World& world, const Nodes& nodes, Wire wire) {
  return make_node_window("two-level", world, nodes, wire, shared_memory);
}

}  // namespace cifar_mpi::comm
