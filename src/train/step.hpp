#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/comm/update.hpp"
#include "cifar_mpi/lower/tower.hpp"
#include "cifar_mpi/train/evaluator.hpp"
#include "train/plan.hpp"
#include "train/state_table.hpp"

/// From a plan to the programs of its steps: the device, the memory on it, and the tasks.
namespace cifar_mpi::train {

/// The device of a rank, the network as planned for it, and the samples in its memory.
struct Device {
  std::unique_ptr<engine::Backend> backend;
  comm::CollectiveSource collectives;   ///< for memory of `backend`
  std::unique_ptr<lower::Tower> tower;  ///< null on a server, as is the arena: it computes nothing
  std::optional<engine::Arena> arena;
  engine::ParamLayout layout;  ///< of all flat blocks: the tower's, or on a server that of the workers
  ResidentData samples;
};

/// The weight matrices that --optimizer muon orthogonalizes, with the memory of that; empty with another optimizer.
struct HiddenMatrices {
  std::vector<engine::Matrix> matrices;
  Buffer places;                       ///< Matrix::places of all of them
  Buffer moves;                        ///< UpdateBinding::moves
  std::optional<engine::Arena> arena;  ///< scratch, which the matrices share
};

/// The memory that tasks share, except the arena.
struct Blocks {
  std::atomic<int> request_word{0};      ///< what the control task reads; set by the loop
  std::unique_ptr<comm::Update> update;  ///< with the gradient block
  StateTable state;
  std::vector<Buffer>
      partials;           ///< sums of 1, 2, 4, … parts of the batch, each as large as the gradient block
  Buffer step_counter;    ///< std::uint64_t, one for each step of a replay
  Buffer batch_counter;   ///< std::uint64_t: the batches this worker has computed, with partial aggregation
  Buffer weights_before;  ///< local steps: what the last averaging left
  Buffer round_sums;      ///< local steps: the sums of the control blocks since then
  Buffer facts;           ///< RankFacts
  Buffer decay_sums;
  HiddenMatrices hidden;
  Buffer gradient_norm;  ///< double, where gradients are clipped or there are summaries
  /// ValueCounts: of the layers that the tower observes, of all parameters, of the gradients of the trained ones;
  /// as the next, where there are summaries.
  Buffer value_counts;
  Buffer kept_images;  ///< [kept_images(plan), height, width, channels] fp32
  std::vector<engine::StepRecord> records;
};

/// What the programs of steps are made from. `update` is the one of `blocks`, or one of the same spans that stands in for it.
struct StepContext {
  const Plan& plan;
  Device& device;
  Blocks& blocks;
  comm::Update& update;
};

/// Makes the backend and plans the network for it; resolves the precision in the plan. Needs sizes
/// and network. A server has a backend of the host, and plans nothing (see roles.hpp).
void plan_device(Plan& plan, Device& device, const comm::PlatformFactory& make_platform);
/// The halves of it: the backend; and what is planned on it, which may be done again.
void open_device(const Plan& plan, Device& device, const comm::PlatformFactory& make_platform);
void plan_network(Plan& plan, Device& device);

/// Plans the network again until all ranks that compute have the same kernels: the first that run on all of them. Returns a
/// line for each that is not the first choice. Collective over all ranks.
std::vector<std::string> agree_on_kernels(Plan& plan, Device& device);

/// Makes the way to update with its gradient block. Communicates, so it must not stand in
/// a phase that can fail on one rank alone. Needs the planned network.
void open_update(const Plan& plan, const Device& device, Blocks& blocks);

/// Allocates the other blocks, for an update that is there.
void allocate_blocks(const Plan& plan, const Device& device, Blocks& blocks);

engine::ControlLayout control_layout(const Plan& plan, const Device& device);

/// Builds and finalizes the training program.
std::unique_ptr<engine::Runner> plan_step(const StepContext& context, comm::Concurrency concurrent);

/// Likewise the one of the steps between two averagings, report::kLocalSteps.
std::unique_ptr<engine::Runner> plan_local_steps(const StepContext& context, comm::Concurrency concurrent);

/// Likewise the one that counts the values of parameters and gradients into `value_counts` and finds the gradient's
/// norm, between steps.
std::unique_ptr<engine::Runner> plan_histograms(const StepContext& context);

/// Sets the counters of a replay that begins after so many steps.
void write_step(const Device& device, Blocks& blocks, std::uint64_t done);

}  // namespace cifar_mpi::train
