#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "comm/collectives.hpp"
#include "comm/staging_buffer.hpp"
#include "comm/world_access.hpp"

namespace cifar_mpi::comm {

/// The task that starts and polls `run`, which must outlive it and has `start()` and `poll()`.
template <class Run>
engine::Task task_of(std::string task_name, std::span<float> data, Run& run) {
  const engine::Bytes bytes = engine::bytes_of(data.data(), data.size());
  return {std::move(task_name),
          {bytes},
          {bytes},
          [&run](engine::Lane&) { run.start(); },
          [&run] { return run.poll(); }};
}

/// A collective of ordinary memory and a communicator of its own: one `Run(neighbours, image)` per task.
template <class Run>
class MessageCollective final : public Collective {
 public:
  MessageCollective(std::string_view name, const World& world, const Nodes& nodes, Wire wire)
      : world_(world),
        name_(wire == Wire::fp32 ? std::string(name) : concat(name, " in ", to_string(wire))),
        wire_(wire),
        comm_(WorldAccess::duplicate(world)),
        neighbours_(neighbours_in(comm_.get(), nodes.count() > 1)) {}

  std::string_view name() const override { return name_; }
  int ranks() const override { return neighbours_.ranks; }
  Buffer allocate(std::size_t bytes) override { return allocate_together(world_, bytes); }
  engine::Task all_reduce(std::string task_name, std::span<float> data, std::size_t fp32_prefix) override {
    runs_.push_back(std::make_unique<Run>(neighbours_, StagingBuffer(wire_, data, fp32_prefix)));
    return task_of(std::move(task_name), data, *runs_.back());
  }

 private:
  const World& world_;
  std::string name_;
  Wire wire_;
  Communicator comm_;
  Neighbours neighbours_;
  std::vector<std::unique_ptr<Run>> runs_;  ///< tasks point into it; destroyed before the communicator
};

}  // namespace cifar_mpi::comm
