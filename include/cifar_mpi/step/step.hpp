#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cifar_mpi/comm/update.hpp"
#include "cifar_mpi/evaluation/evaluator.hpp"
#include "cifar_mpi/lower/tower.hpp"
#include "cifar_mpi/step/plan.hpp"
#include "cifar_mpi/step/state_table.hpp"

/// From a plan to the programs of its steps: the device, the memory on it, and the tasks.
namespace cifar_mpi::step {

/// A rank's device, the network planned for it, and the samples in its memory.
struct Device {
  std::unique_ptr<engine::Backend> backend;
  comm::CollectiveSource collectives;   ///< for memory of `backend`
  std::unique_ptr<lower::Tower> tower;  ///< null on a server, which computes nothing; the same for the arena
  std::map<int, std::unique_ptr<lower::Tower>> smaller;  ///< of Plan::smaller, in the layout of `tower`
  std::optional<engine::Arena> arena;
  engine::ParamLayout layout;  ///< of all flat blocks: the tower's; on a server the workers'
  evaluation::ResidentData samples;

  /// For training images of this side; 0: the network's input.
  const lower::Tower& tower_for(int image_size) const {
    return image_size == 0 ? *tower : *smaller.at(image_size);
  }
  /// The kernel choices of all towers, one per line; those of `smaller` begin with the size of the images.
  std::string plan_text() const;
};

/// The weight matrices that --optimizer muon orthogonalizes, and their memory; empty with another optimizer.
struct HiddenMatrices {
  std::vector<engine::Matrix> matrices;
  Buffer places;  ///< Matrix::places of all of them
  /// UpdateBinding::moves: in `own_moves`, or, if the matrices are shared (step/hidden_matrices.hpp), first in
  /// Update::rank_sums.
  std::span<float> moves;
  Buffer own_moves;
  std::vector<int> owners;             ///< the rank that computes each matrix, if they are shared; else empty
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
  Buffer weights_before;  ///< local steps: the weights after the last averaging
  Buffer round_sums;      ///< local steps: the sums of the control blocks since then
  Buffer facts;           ///< RankFacts
  Buffer decay_sums;
  HiddenMatrices hidden;
  Buffer
      zeros;  ///< the source of tasks that clear the moves of a matrix or the gradients of frozen parameters
  Buffer gradient_norm;  ///< double, where gradients are clipped or there are summaries
  /// ValueCounts: of the layers that a tower observes, with space for those of each, and from param_counts on of all
  /// parameters and of the gradients of trained ones; with summaries only, as the next.
  Buffer value_counts;
  Buffer
      kept_images;  ///< [kept_images(plan), height, width, channels] fp32, of the input of the program's tower
  std::vector<engine::StepRecord> records;
};

/// The parts from which step programs are built. `update` is that of `blocks`, or a substitute with the same
/// spans.
struct StepContext {
  const Plan& plan;
  Device& device;
  Blocks& blocks;
  comm::Update& update;
};

/// Makes the backend and plans the network for it; resolves the precision in the plan. Needs sizes and
/// network. A server has a host backend and plans nothing (see share_kernels).
void plan_device(Plan& plan, Device& device, const comm::PlatformFactory& make_platform);
/// The two halves of plan_device: the backend, and the planning, which may be repeated.
void open_device(const Plan& plan, Device& device, const comm::PlatformFactory& make_platform);
void plan_network(Plan& plan, Device& device);

/// Plans the network again until all ranks that compute have the same kernels: the first that run on all of
/// them. Returns a line for each kernel that is not the first choice. Collective over all ranks.
std::vector<std::string> agree_on_kernels(Plan& plan, Device& device);

/// Makes the way to update with its gradient block. Communicates, so it must not be called in a phase that
/// can fail on one rank alone. Needs the planned network.
void open_update(const Plan& plan, const Device& device, Blocks& blocks);

/// Allocates the other blocks. Needs the update.
void allocate_blocks(const Plan& plan, const Device& device, Blocks& blocks);

engine::ControlLayout control_layout(const Plan& plan, const Device& device);

/// Builds and finalizes the training program of such steps.
std::unique_ptr<engine::Runner> plan_step(const StepContext& context, comm::Concurrency concurrent,
                                          const StepKind& kind = {});

/// The same for the steps between two averagings, report::kLocalSteps.
std::unique_ptr<engine::Runner> plan_local_steps(const StepContext& context, comm::Concurrency concurrent);

/// The same for the program that counts the values of parameters and gradients into `value_counts` and
/// computes the gradient's norm, between steps.
std::unique_ptr<engine::Runner> plan_histograms(const StepContext& context);

/// Where plan_histograms stores its counts in `value_counts`.
engine::ValueCounts* param_counts(const Plan& plan, const Blocks& blocks);

/// Sets the counters for a replay that begins after so many steps.
void write_step(const Device& device, Blocks& blocks, std::uint64_t done);

// What workers and servers agree on. All of these are collective; call them outside World::together.

/// Gives the workers a world of their own if there are servers; servers take no part in choosing devices.
void part_workers(Plan& plan);

/// All workers must have planned the same kernels, because flat blocks are summed in their memory layout. Servers
/// plan nothing; they take the precision and the layout of the blocks from the first worker.
void share_kernels(Plan& plan, Device& device);

/// Servers begin with the state of the first worker, in the layout of its kernels.
void share_state(const Plan& plan, const Device& device, const StateTable& state);

/// Call between steps, with nothing in flight. Then every rank has the rows of the state that steps change,
/// including those that only servers change, and knows how many batches each worker has computed.
void complete_state(Plan& plan, const Device& device, Blocks& blocks);

}  // namespace cifar_mpi::step
