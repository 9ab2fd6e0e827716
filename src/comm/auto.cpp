#include <string>
#include <utility>

#include "cifar_mpi/base/text.hpp"
#include "comm/collectives.hpp"

namespace cifar_mpi::comm {
namespace {

/// The largest array for recursive doubling on a network. With messages of a + n/b seconds and 4 ranks it
/// takes 2a + 2n/b against the ring's 6a + 1.5n/b and wins below n = 8ab; with 8 ranks below 8.8ab; with 2
/// always. 8ab is about 190 KB on 10 Gbit/s Ethernet (20 us, 1.2 GB/s) and on 100 Gbit/s InfiniBand (2 us, 12
/// GB/s). A third of that, because each rank also adds more of the array than on the ring.
constexpr std::size_t kShort = 64 << 10;

class Auto final : public Collective {
 public:
  Auto(const World& world, const Nodes& nodes, Wire wire) : choice_(choose_collective(nodes)) {
    if (choice_.short_bytes > 0) for_short_ = make_collective(choice_.for_short, world, nodes, wire);
    for_the_rest_ = make_collective(choice_.for_the_rest, world, nodes, wire);
    rename();
  }

  std::string_view name() const override { return name_; }
  std::string_view resolved() const override { return resolved_; }
  std::string note() const override { return for_the_rest_->note(); }
  int ranks() const override { return for_the_rest_->ranks(); }
  Buffer allocate(std::size_t bytes) override {
    Buffer buffer = for_the_rest_->allocate(bytes);
    rename();
    return buffer;
  }
  engine::Task all_reduce(std::string task_name, std::span<float> data, std::size_t fp32_prefix) override {
    const bool is_short = for_short_ && data.size_bytes() <= choice_.short_bytes;
    Collective& chosen = is_short ? *for_short_ : *for_the_rest_;
    return chosen.all_reduce(std::move(task_name), data, fp32_prefix);
  }

 private:
  void rename() {
    const std::string first =
        for_short_ ? concat(for_short_->name(), " to ", choice_.short_bytes >> 10, " KiB, then ")
                   : std::string();
    resolved_ = concat(first, for_the_rest_->name());
    name_ = concat("auto (", resolved_, ")");
  }

  AutoChoice choice_;
  std::unique_ptr<Collective> for_short_;
  std::unique_ptr<Collective> for_the_rest_;
  std::string resolved_;
  std::string name_;
};

}  // namespace

AutoChoice choose_collective(const Nodes& nodes) {
  if (nodes.of_rank.size() == 1) return {0, {}, "ring"};  // sums nothing and needs no shared memory
  if (nodes.count() == 1) return {0, {}, "window"};
  return {kShort, "doubling", nodes.most_ranks() == 1 ? "ring" : "two-level"};
}

/// Chooses by how the ranks are distributed over nodes, and by length: see `choose_collective`. Behaves like
/// the chosen one, whose name follows in brackets.
std::unique_ptr<Collective> make_auto(const World& world, const Nodes& nodes, Wire wire) {
  return std::make_unique<Auto>(world, nodes, wire);
}

}  // namespace cifar_mpi::comm
