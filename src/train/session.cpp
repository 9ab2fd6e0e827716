#include "cifar_mpi/train/session.hpp"

#include <cstring>
#include <filesystem>
#include <fstream>

#include "cifar_mpi/base/build_info.hpp"
#include "cifar_mpi/base/text.hpp"
#include "train/state.hpp"

namespace cifar_mpi::train {
namespace {

const std::string* find(const Identity& items, std::string_view key) {
  for (const auto& [name, value] : items) {
    if (name == key) return &value;
  }
  return nullptr;
}

/// The checkpoint to go on from: rank 0 looks, nothing when the run is new.
std::optional<Checkpoint> find_start(const SessionState& state) {
  const TrainConfig& config = state.config;
  if (config.resume != "auto" && config.resume != "never") return read_checkpoint(config.resume);
  const std::vector<CheckpointFile> files = list_checkpoints(config.run_dir);
  if (files.empty()) return std::nullopt;
  if (config.resume == "never") {
    throw Error(
        ErrorKind::checkpoint,
        concat(
            config.run_dir, " already holds a run at step ", files.back().step,
            ", which --resume never will not overwrite; remove the directory or choose another --run-dir"));
  }
  std::string first_problem;
  for (auto file = files.rbegin(); file != files.rend(); ++file) {
    try {
      return read_checkpoint(file->path);
    } catch (const Error& error) {
      if (first_problem.empty()) first_problem = error.what();
      state.log.warn(concat("skipping a damaged checkpoint: ", error.what()));
    }
  }
  throw Error(ErrorKind::checkpoint,
              concat(config.run_dir, " holds no checkpoint that can be read; the newest: ", first_problem));
}

/// Creates the run directory and proves that files can be written there, before hours of work depend on it.
void open_run_directory(const TrainConfig& config) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(fs::path(config.run_dir) / "checkpoints", error);
  const fs::path file = fs::path(config.run_dir) / "config.toml";
  std::ofstream out;
  if (!error) {
    out.open(file, std::ios::trunc);
    out << config.text;
    out.close();
  }
  if (error || !out) {
    throw Error(ErrorKind::io, concat("cannot write to the run directory ", config.run_dir, ": ",
                                      error ? error.message() : concat("writing ", file.string(), " failed"),
                                      "; choose another with --run-dir"));
  }
}

/// Takes over what the first process of this run resolved, unless the user now says otherwise.
void adopt(TrainConfig& config, const Identity& resolved, int ranks) {
  if (const auto* value = find(resolved, "precision");
      value && config.precision == engine::Precision::automatic) {
    config.precision = *value == "bf16"   ? engine::Precision::bf16
                       : *value == "tf32" ? engine::Precision::tf32
                                          : engine::Precision::fp32;
  }
  const auto* then_ranks = find(resolved, "ranks");
  const auto* threads = find(resolved, "threads");
  if (threads && then_ranks && *then_ranks == std::to_string(ranks) && config.threads == 0) {
    config.threads = std::stoi(*threads);
  }
}

/// Rank 0's tensors on every rank.
void broadcast(const comm::World& world, std::vector<NamedTensor>& tensors) {
  for (NamedTensor& tensor : tensors) world.broadcast(std::as_writable_bytes(std::span(tensor.values)));
}

/// Where the run starts: initial values, or the checkpoint's, checked on rank 0 and sent to all.
struct Start {
  std::vector<NamedTensor> model;
  std::vector<NamedTensor> ema;
  bool resumed = false;
};

Start find_start_everywhere(SessionState& state) {
  const Identity wanted = identity(state.config, state.sizes, state.world.size(), state.info);
  Start start;
  start.model = initial_tensors(state.network.params, state.config.seed);
  start.ema = start.model;
  std::string resolved;
  double facts[2] = {0.0, 0.0};  // resumed, step: exact as doubles up to 2^53
  state.world.together([&] {
    if (state.world.rank() != 0) return;
    std::optional<Checkpoint> checkpoint = find_start(state);
    if (checkpoint) {
      const std::string& name = state.config.resume == "auto" ? state.config.run_dir : state.config.resume;
      require_same_run(checkpoint->progress.identity, wanted, name);
      start.model = match_tensors(std::move(checkpoint->model), state.network.params, name);
      start.ema = match_tensors(std::move(checkpoint->ema), state.network.params, name);
      facts[0] = 1.0;
      facts[1] = static_cast<double>(checkpoint->progress.step);
      for (const auto& [key, value] : checkpoint->progress.resolved)
        resolved += concat(key, '=', value, '\n');
    }
    open_run_directory(state.config);
  });
  state.world.broadcast(std::as_writable_bytes(std::span(facts)));
  start.resumed = facts[0] != 0.0;
  state.progress.step = static_cast<std::uint64_t>(facts[1]);
  state.progress.seed = state.config.seed;
  state.progress.identity = wanted;
  if (!start.resumed) return start;

  broadcast(state.world, start.model);
  broadcast(state.world, start.ema);
  state.world.broadcast(resolved);
  Identity items;
  std::istringstream lines(resolved);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find('=');
    items.emplace_back(line.substr(0, at), line.substr(at + 1));
  }
  adopt(state.config, items, state.world.size());
  return start;
}

/// All ranks must have planned the same kernels: the flat blocks are summed as they lie in memory.
void require_equal_plans(const SessionState& state) {
  const std::string mine = state.tower->plan_text();
  std::string first = mine;
  state.world.broadcast(first);
  state.world.together([&] {
    if (first != mine) {
      throw Error(ErrorKind::device, concat("rank ", state.world.rank(), " on ", state.world.host(),
                                            " plans other kernels than rank 0; run on machines of one kind"));
    }
  });
}

void describe_run(const SessionState& state, const Start& start) {
  const TrainConfig& config = state.config;
  const data::DatasetInfo& info = state.info;
  const Log& log = state.log;
  log.info(concat("cifar_mpi ", version(), ": ", state.world.size(), " rank",
                  state.world.size() == 1 ? "" : "s", " on ", state.backend->description()));
  log.info(concat("data: ", config.data, ", ", info.train_count, " training and ", info.test_count,
                  " test images of ", to_string(info.image), ", ", info.classes(), " classes, shuffle ",
                  to_string(config.shuffle), ", augment ", to_string(config.augment)));
  log.info(concat("model: ", config.model, ", ", model::param_count(state.network.params), " parameters, ",
                  engine::to_string(config.precision), "; batch ", state.sizes.batch,
                  " per rank, global batch ", state.sizes.global_batch, "; all-reduce ",
                  state.collective->name(), "; seed ", config.seed));
  log.info(concat(
      "learning rate: ", optim::Schedule(schedule_spec(config, state.sizes, info.train_count)).describe(),
      "; EMA ", config.ema_decay, "; weight decay ", config.weight_decay));
  if (const std::string note = state.collective->note(); !note.empty()) log.warn(note);
  if (const int unused = state.world.unused_cores(); unused > 0) {
    log.info(concat("note: ", unused,
                    " cores of this node are in no rank's affinity mask; mpirun --bind-to none frees them"));
  }
  if (start.resumed) {
    log.info(concat("resuming at step ", state.progress.step, " of ", state.sizes.total_steps));
  } else {
    log.info(
        concat("starting: ", state.sizes.total_steps, " steps, ",
               format("%.1f", static_cast<double>(state.sizes.total_steps) / state.sizes.steps_per_epoch),
               " epochs; run directory ", config.run_dir));
  }
}

}  // namespace

Identity resolved_settings(const SessionState& state) {
  return {{"precision", std::string(engine::to_string(state.config.precision))},
          {"threads", std::to_string(state.config.threads)},
          {"ranks", std::to_string(state.world.size())},
          {"all-reduce", std::string(state.collective->name())},
          {"wire", std::string(comm::to_string(state.config.wire))},
          {"bucket MiB", format("%g", state.config.bucket_mib)}};
}

std::unique_ptr<SessionState> set_up(TrainConfig config, const comm::World& world, const Log& log,
                                     const BackendFactory& make_backend,
                                     const std::atomic<int>& stop_request) {
  auto owner = std::make_unique<SessionState>(std::move(config), world, log, stop_request);
  SessionState& state = *owner;
  world.together([&] {
    check(state.config);
    state.dataset.emplace(state.config.data);
    state.info = state.dataset->info();
    state.sizes = resolve_sizes(state.config, world.size(), state.info);
    state.network = make_network(state.config.model, state.info, state.config.augment, state.config.data);
    for (model::Param& param : state.network.params) {
      if (param.weight_decay > 0.0f) param.weight_decay = static_cast<float>(state.config.weight_decay);
    }
    // Builds the schedule once, so that its own checks are part of this phase.
    optim::Schedule(schedule_spec(state.config, state.sizes, state.info.train_count));
  });
  const Start start = find_start_everywhere(state);
  resolve_threads(state);
  world.together([&] {
    plan_device(state, make_backend);
    const data::SampleOrder order(state.config.shuffle, state.config.seed, state.info.train_count,
                                  world.rank(), world.size(), state.sizes.batch);
    state.samples = ResidentData(*state.backend, *state.dataset, data::Split::train, order.held());
  });
  require_equal_plans(state);
  open_collective(state);
  const bool on_device = dynamic_cast<comm::CollectiveSource*>(state.backend.get()) != nullptr;
  const bool overlap = comm::resolve_overlap(state.config.overlap, world, on_device);
  world.together([&] {
    allocate_blocks(state);
    state.step = plan_step(state, *state.collective, overlap);
    import_block(*state.backend, *state.tower, start.model, state.params);
    import_block(*state.backend, *state.tower, start.ema, state.ema);
    state.backend->copy(state.step_counter.data(), reinterpret_cast<const std::byte*>(&state.progress.step),
                        sizeof state.progress.step);
    state.evaluator.emplace(*state.backend, *state.tower, *state.arena, world, *state.dataset,
                            state.network.augment, state.sizes.batch / state.sizes.parts,
                            state.ema.as<const float>());
  });
  state.progress.resolved = resolved_settings(state);
  describe_run(state, start);
  return owner;
}

Session::Session(TrainConfig config, const comm::World& world, const Log& log,
                 const BackendFactory& make_backend, const std::atomic<int>& stop_request)
    : state_(set_up(std::move(config), world, log, make_backend, stop_request)) {}

Session::~Session() = default;

void Session::show_to(Watchdog& watchdog) {
  state_->heart = &watchdog.heart();
  watchdog.name_tasks(state_->step->program());
  state_->step->show_in(state_->heart->pulse);
  state_->evaluator->show_in(state_->heart->pulse);
}

void Session::run() { run_loop(*state_); }

}  // namespace cifar_mpi::train
