#pragma once

#include <functional>
#include <optional>

#include "cifar_mpi/comm/heartbeat.hpp"
#include "cifar_mpi/comm/update.hpp"
#include "cifar_mpi/lower/tower.hpp"
#include "cifar_mpi/run/run_directory.hpp"
#include "cifar_mpi/train/evaluator.hpp"
#include "cifar_mpi/train/network.hpp"
#include "cifar_mpi/train/session.hpp"
#include "train/state_table.hpp"

namespace cifar_mpi::train {

/// What a run owns on one rank. Members stand in the order in which they are made; they go in the reverse
/// order: programs, then memory, then the device.
struct SessionState {
  SessionState(TrainConfig chosen, const comm::World& the_world, const Log& the_log, std::atomic<int>& asked)
      : config(std::move(chosen)), world(the_world), log(the_log), requests(asked) {}

  /// Whether this rank holds weights for others and computes no gradients.
  bool serves() const { return world.rank() >= sizes.workers; }
  /// Whether a worker may find that steps were made without it: a replay then ends with the last of them.
  bool skips() const { return sizes.aggregated < sizes.workers; }
  /// This rank's part of so many samples: a server has none.
  data::Shard part_of(std::uint64_t count) const {
    if (serves()) return {};
    return data::shard_of(count, static_cast<std::uint64_t>(world.rank()),
                          static_cast<std::uint64_t>(sizes.workers));
  }

  TrainConfig config;
  const Directory* run = nullptr;  ///< the opened run directory of a run; rank 0 alone writes there
  const comm::World& world;
  Log log;
  std::atomic<int>& requests;
  std::atomic<int> request_word{
      0};  ///< what the control task reads: set by the loop, on request or by itself
  comm::Heartbeat unwatched;
  comm::Heartbeat* heart = &unwatched;
  std::function<void()> show_step = [] {};  ///< to the watchdog, whenever `step` is another

  /// Those of `world` that compute, where others serve; null on a server, and where all compute.
  std::unique_ptr<comm::World> workers;

  std::optional<data::DatasetFile> dataset;  ///< open during set-up only
  data::DatasetInfo info;
  Sizes sizes;
  Network network;
  run::Progress progress;           ///< where the run starts; `step` moves on in the loop
  std::string initialized_from;     ///< of Provenance
  std::string self_check;           ///< likewise
  bool adopted_precision = false;   ///< `config` has the checkpoint's, the user left it automatic
  bool adopted_conv = false;        ///< likewise
  bool adopted_all_reduce = false;  ///< likewise
  int conv_threads = 0;             ///< of BackendOptions, from the first start of the run; 0: this is it

  std::unique_ptr<engine::Backend> backend;
  comm::CollectiveSource collectives;  ///< for memory of `backend`
  std::unique_ptr<comm::Update> update;
  std::unique_ptr<lower::Tower> tower;  ///< null on a server, as is the arena: it computes nothing
  std::optional<engine::Arena> arena;
  engine::ParamLayout layout;  ///< of all flat blocks: the tower's, or on a server that of the workers
  ResidentData samples;
  StateTable state;
  std::vector<Buffer> partials;  ///< sums of 1, 2, 4, … parts of the batch, each of the size of `gradients`
  Buffer gradients;              ///< the control block, then the gradients
  Buffer step_counter;           ///< std::uint64_t, one for each step of a replay
  Buffer batch_counter;   ///< std::uint64_t: how many batches this worker has computed, where it skips()
  Buffer weights_before;  ///< local steps: what the last averaging left
  Buffer round_sums;      ///< local steps: the sums of the control blocks since then
  Buffer facts;           ///< RankFacts
  Buffer decay_sums;
  Buffer gradient_norm;  ///< double, where gradients are clipped or there are summaries
  /// ValueCounts: of the layers that the tower observes, of all parameters, of the gradients of the trained ones;
  /// as the next, where there are summaries.
  Buffer value_counts;
  Buffer kept_images;    ///< [kept_images(state), height, width, channels] fp32
  int shown_images = 8;  ///< of the first part of a batch a summary shows so many at most
  std::vector<engine::StepRecord> records;

  std::unique_ptr<engine::Runner> step;  ///< from the step on that the run starts with
  std::unique_ptr<engine::Runner>
      local_steps;                       ///< where gradients are exchanged first: from sizes.local_from on
  std::unique_ptr<engine::Runner> look;  ///< counts parameters and gradients between steps; rank 0's, or null
  std::optional<Evaluator> evaluator;
};

/// The threads of every rank when the user leaves them open: the smallest fair share, so that all ranks plan
/// the same kernels. Collective.
void resolve_threads(SessionState& state);
/// Whether other processes took cores that the ranks' threads need, in a sentence, of the rank that lost most; empty: none did.
/// Collective.
std::string other_work_text(const SessionState& state);
/// Says on the CPU how many threads there are and what they were chosen from, and warns where there are more than cores, or other
/// processes on these. Collective.
void describe_cores(const SessionState& state);

/// Ranks of a host share its GPUs, those that serve apart.
engine::BackendOptions backend_options(const SessionState& state);

/// Makes the backend and plans the network for it; resolves the precision in `config`. Needs sizes
/// and network. A server has a backend of the host, and plans nothing (see roles.hpp).
void plan_device(SessionState& state, const comm::PlatformFactory& make_platform);
/// The halves of it: the backend; and what is planned on it, which may be done again.
void open_device(SessionState& state, const comm::PlatformFactory& make_platform);
void plan_network(SessionState& state);

/// Plans the network again until all ranks that compute have the same kernels: the first that run on all of them. Returns a
/// line for each that is not the first choice. Collective over all ranks.
std::vector<std::string> agree_on_kernels(SessionState& state);

/// Makes the way to update and the gradient block, which is its memory. Communicates, so it must not stand in
/// a phase that can fail on one rank alone. Needs the plan.
void open_update(SessionState& state);

/// Allocates the other blocks; needs the plan and the gradient block.
void allocate_blocks(SessionState& state);

engine::ControlLayout control_layout(const SessionState& state);

/// The samples of this rank's steps; of a rank that computes.
data::SampleOrder sample_order(const SessionState& state);

/// Steps between evaluations.
std::uint64_t eval_every(const SessionState& state);

/// Which checkpoints the run keeps.
run::Retention retention_of(const TrainConfig& config);

/// Whether averagings have a momentum, a row of the table.
bool has_outer_momentum(const TrainConfig& config);

/// How many images of the first part of a batch a summary shows.
int kept_images(const SessionState& state);

/// Builds and finalizes the training program on these blocks. `update` is the state's, or one of the same spans
/// that stands in for it.
std::unique_ptr<engine::Runner> plan_step(SessionState& state, comm::Update& update,
                                          comm::Concurrency concurrent);

/// Likewise the one of the steps between two averagings, report::kLocalSteps.
std::unique_ptr<engine::Runner> plan_local_steps(SessionState& state, comm::Update& update,
                                                 comm::Concurrency concurrent);

/// Sets the counters of a replay that begins after so many steps.
void write_step(SessionState& state, std::uint64_t done);

/// Likewise the one that counts the values of parameters and gradients into `value_counts` and finds the gradient's
/// norm, between steps.
std::unique_ptr<engine::Runner> plan_look(SessionState& state);

/// Everything Session's constructor does; see there.
std::unique_ptr<SessionState> set_up(TrainConfig config, const Directory& run, const comm::World& world,
                                     const Log& log, const comm::PlatformFactory& make_platform,
                                     std::atomic<int>& requests, const SelfCheck* check = nullptr);

/// The loop over steps, from state.progress.step to the end. `last_end` as Session::run has it.
void run_loop(SessionState& state, const std::string& last_end = {});

}  // namespace cifar_mpi::train
