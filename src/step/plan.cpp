#include "cifar_mpi/step/plan.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "cifar_mpi/base/text.hpp"
#include "step/hidden_matrices.hpp"

namespace cifar_mpi::step {
namespace {

/// The same on all ranks; servers have a backend of the host anyway.
bool computes_on_cpu(const Plan& plan, const engine::Backend& backend) {
  return !plan.world.any(!backend.description().starts_with("cpu"));
}

/// The minimum over all ranks, so that all plan the same kernels.
int fair_threads(const comm::World& world) { return std::ranges::min(world.gather(world.fair_threads())); }

/// The network for images of another size. Throws Error{usage} if it has other parameters there.
model::NetSpec smaller_network(const Plan& plan, int pixels) {
  const Extent input{pixels, pixels, plan.network.net.input.channels};
  const std::string here = concat("--image-size: model ", plan.config.model,
                                  " cannot be trained with images of ", pixels, " pixels: ");
  const char* const advice = "; give --image-size full, or other sizes";
  model::NetSpec net;
  try {
    net = model::make_model(plan.config.model, input, plan.network.net.classes);
  } catch (const Error& error) {
    throw Error(ErrorKind::usage, here, error.what(), advice);
  }
  const model::ParamTable params = model::make_param_table(net);
  for (std::size_t p = 0; p < plan.network.params.size(); ++p) {
    const model::Param& full = plan.network.params[p];
    if (p < params.size() && params[p].name == full.name && params[p].shape == full.shape) continue;
    throw Error(ErrorKind::usage, here, "the parameters of ", full.name, " depend on the size", advice);
  }
  return net;
}

void require_batch_norm(const model::NetSpec& net) {
  for (const model::Operation& operation : net.operations) {
    if (std::holds_alternative<model::BatchNorm>(operation.layer)) return;
  }
  throw Error(ErrorKind::usage, "--sync-batch-norm has no effect: model ", net.name,
              " has no BatchNorm; leave it out");
}

/// The steps after which parameters no longer train and programs leave out their gradients.
std::vector<std::uint64_t> freezes(const Plan& plan) {
  std::vector<std::uint64_t> steps;
  if (plan.config.update != comm::UpdateKind::all_reduce || plan.config.clip_norm > 0.0) return steps;
  for (const model::Param& param : plan.network.params) {
    if (param.trains() && param.steps > 0) steps.push_back(param.steps);
  }
  return steps;
}

}  // namespace

void resolve_threads(Plan& plan) {
  if (plan.config.threads > 0) return;
  if (plan.config.reproducible) {
    plan.config.threads = 1;  // the result depends on it, and 1 works for any number of ranks
    return;
  }
  plan.config.threads = fair_threads(plan.world);
}

std::string other_work_text(const Plan& plan, const engine::Backend& backend) {
  if (!computes_on_cpu(plan, backend)) return {};
  const comm::World& world = plan.world;
  const std::vector<double> lost = world.gather(world.cores_lost(plan.config.threads));
  const auto most = std::ranges::max_element(lost);
  if (*most == 0.0) return {};
  return fmt::format(
      "since the start other processes have used about {:.1f} cores of rank {} on {} ({}), so a step takes "
      "longer; end them, or start fewer ranks or threads",
      *most, most - lost.begin(), world.hosts()[static_cast<std::size_t>(most - lost.begin())],
      world.cores_text());
}

void describe_cores(const Plan& plan, const engine::Backend& backend) {
  if (!computes_on_cpu(plan, backend)) return;
  const int threads = plan.config.threads, fair = fair_threads(plan.world);
  const std::string other_work = other_work_text(plan, backend), cores = plan.world.cores_text();
  const std::vector<std::string> places = plan.world.place_lines();
  plan.log.info(
      concat("threads: ", threads, " per rank (", cores, places.size() == 1 ? "; " + places[0] : "", ")"));
  if (plan.progress.step >= plan.sizes.total_steps) return;  // no step takes longer
  if (threads > fair) {
    plan.log.warn(concat(threads, " threads per rank share fewer cores, so a step takes longer; --threads ",
                         fair, " uses each core once"));
  } else if (!other_work.empty()) {
    plan.log.warn(other_work);
  }
}

void plan_for(Plan& plan, const data::DatasetInfo& info) {
  check(plan.config);
  plan.info = info;
  plan.sizes = config::resolve_sizes(plan.config, plan.world.size(), info);
  if (plan.config.lookahead > 0)
    static_cast<void>(config::lookahead_rule(plan.config, plan.sizes, info.train_count));  // may refuse
  plan.network = evaluation::make_network(plan.config.model, info,
                                          config::augment_spec(plan.config, info.image), plan.config.data);
  if (plan.config.optimizer.kind == optim::OptimizerKind::muon) require_hidden_matrices(plan.network);
  if (plan.config.sync_batch_norm) require_batch_norm(plan.network.net);
  for (model::Param& param : plan.network.params) {
    if (param.weight_decay > 0.0f) param.weight_decay = static_cast<float>(plan.config.weight_decay);
  }
  for (const config::ImageSize& size : plan.config.image_sizes) {
    if (size.pixels == plan.network.net.input.height) continue;
    model::NetSpec net = smaller_network(plan, size.pixels);  // refuses also sizes after the last step
    const bool reached = std::ranges::any_of(plan.sizes.image_stages, [&](const config::ImageStage& stage) {
      return stage.pixels == size.pixels;
    });
    if (reached) plan.smaller.emplace(size.pixels, std::move(net));
  }
}

engine::BackendOptions backend_options(const Plan& plan) {
  const comm::World& computing = plan.computing();
  engine::BackendOptions options{
      plan.config.threads,    plan.world.oversubscribed(), computing.node_rank(), computing.node_size(),
      plan.config.share_gpus, plan.config.nccl_algorithm,  plan.config.nccl_nvls};
  options.serves = plan.serves();
  options.conv_threads = plan.conv_threads;
  return options;
}

data::SampleOrder sample_order(const Plan& plan) {
  return {plan.config.shuffle, plan.config.seed,   plan.info.train_count,
          plan.world.rank(),   plan.sizes.workers, plan.sizes.batch};
}

std::uint64_t eval_every(const Plan& plan) {
  if (plan.config.eval_every <= 0.0) return plan.sizes.total_steps;
  return std::max<std::uint64_t>(
      1, static_cast<std::uint64_t>(std::llround(plan.config.eval_every * plan.sizes.steps_per_epoch)));
}

std::vector<std::uint64_t> boundaries(const Plan& plan, const engine::Replay& replay) {
  const config::TrainConfig& config = plan.config;
  std::vector<std::uint64_t> steps{eval_every(plan)};
  for (const std::int64_t every : {config.checkpoint_every, config.check_every, config.summary_every}) {
    if (every > 0) steps.push_back(static_cast<std::uint64_t>(every));
  }
  if (replay.steps() > 1) std::erase_if(steps, [&](std::uint64_t every) { return every <= replay.steps(); });
  return steps;
}

std::uint64_t program_end(const Plan& plan, std::uint64_t done) {
  std::uint64_t end = plan.sizes.total_steps;
  const auto note = [&](std::uint64_t from) {
    if (from > done) end = std::min(end, from);
  };
  if (plan.config.update == comm::UpdateKind::local) note(plan.sizes.local_from);
  for (const config::ImageStage& stage : plan.sizes.image_stages) note(stage.from);
  for (const std::uint64_t steps : freezes(plan)) note(steps);
  return end;
}

StepKind step_kind(const Plan& plan, std::uint64_t done) {
  StepKind kind;
  for (const config::ImageStage& stage : plan.sizes.image_stages) {
    if (stage.from <= done) kind.image_size = stage.pixels;
  }
  if (kind.image_size == plan.network.net.input.height) kind.image_size = 0;
  for (const std::uint64_t steps : freezes(plan)) {
    if (steps <= done) kind.frozen_at = std::max(kind.frozen_at, steps);
  }
  return kind;
}

const model::NetSpec& network_for(const Plan& plan, const StepKind& kind) {
  return kind.image_size == 0 ? plan.network.net : plan.smaller.at(kind.image_size);
}

model::Flops training_flops(const Plan& plan, const StepKind& kind) {
  return model::training_flops(network_for(plan, kind), kind.frozen_at);
}

model::Flops training_flops(const Plan& plan) {
  model::Flops sum;
  for (std::uint64_t begin = 0, end = 0; begin < plan.sizes.total_steps; begin = end) {
    end = program_end(plan, begin);
    const model::Flops one = training_flops(plan, step_kind(plan, begin));
    const double images = static_cast<double>(end - begin) * static_cast<double>(plan.sizes.global_batch);
    sum.nominal += one.nominal * images;
    sum.in_image += one.in_image * images;
  }
  return sum;
}

bool is_unbroken(const Plan& plan, const engine::Replay& steps) {
  const config::TrainConfig& config = plan.config;
  const engine::Replay inner{steps.begin, steps.end - 1};
  const auto due = [&](auto every) { return inner.crosses(static_cast<std::uint64_t>(every)); };
  return inner.end < program_end(plan, inner.begin) && !due(eval_every(plan)) &&
         !due(plan.sizes.total_steps) && !due(config.checkpoint_every) && !due(config.check_every) &&
         !due(config.log_every);
}

run::Retention retention_of(const config::TrainConfig& config) {
  return {config.keep, config.keep_every, config.keep_best, config.views};
}

bool has_outer_momentum(const config::TrainConfig& config) {
  return config.update == comm::UpdateKind::local && config.local.outer == optim::OuterKind::nesterov;
}

std::vector<optim::StateRow> state_rows(const config::TrainConfig& config) {
  return optim::state_rows(config.optimizer.kind, has_outer_momentum(config), config.lookahead > 0);
}

int kept_images(const Plan& plan) { return std::min(plan.shown_images, plan.sizes.batch / plan.sizes.parts); }

}  // namespace cifar_mpi::step
