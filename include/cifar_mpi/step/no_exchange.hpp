#pragma once

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "cifar_mpi/comm/collective.hpp"
#include "cifar_mpi/engine/backend.hpp"

namespace cifar_mpi::step {

/// Stands in for the collective where a rank takes a step by itself: sums nothing.
class NoExchange final : public comm::Collective {
 public:
  /// The block is in `memory` if that is given; it must outlive the block.
  explicit NoExchange(engine::Backend& backend, std::span<std::byte> memory = {})
      : backend_(backend), memory_(memory) {}
  std::string_view name() const override { return "none"; }
  int ranks() const override { return 1; }
  Buffer allocate(std::size_t bytes) override {
    if (memory_.empty()) return backend_.allocate(bytes);
    return {memory_.first(bytes).data(), bytes, {}};
  }
  engine::Task all_reduce(std::string, std::span<float>, std::size_t) override {
    throw std::logic_error("a world of one has no all-reduce");
  }

 private:
  engine::Backend& backend_;
  std::span<std::byte> memory_;
};

}  // namespace cifar_mpi::step
