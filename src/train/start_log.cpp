#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "cifar_mpi/base/build_info.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/config/options.hpp"
#include "cifar_mpi/optim/optimizer.hpp"
#include "train/session_state.hpp"

namespace cifar_mpi::train {

std::string frozen_text(const step::Plan& plan, const step::StepKind& kind) {
  std::string names;
  for (const model::Param& param : plan.network.params) {
    if (param.trains() && !param.trains(kind.frozen_at)) names += concat(", ", param.name);
  }
  return names.empty() ? names : names + " frozen";
}

namespace {

run::StartedRun started_run(const step::Plan& plan, const step::Device& device) {
  return {plan.progress.resolved,   device.plan_text(),
          plan.config.reproducible, plan.config.shuffle,
          plan.info.train_count,    plan.sizes.global_batch,
          plan.sizes.workers,       plan.sizes.partial_aggregation(),
          plan.config.views,        plan.config.patience > 0 || plan.config.keep_best};
}

/// Everything beyond plain gradient descent on the given labels.
std::string optimizer_text(const config::TrainConfig& config) {
  std::string text;
  if (config.optimizer.kind != optim::OptimizerKind::sgd)
    text += concat("; optimizer ", optim::describe(config.optimizer));
  if (config.clip_norm > 0.0) text += concat("; gradients clipped to norm ", config.clip_norm);
  if (config.label_smoothing > 0.0) text += concat("; labels smoothed by ", config.label_smoothing);
  return text;
}

/// "128 per rank", "4 x 128 per rank".
std::string batch_text(const step::Plan& plan) {
  const char* const each = plan.sizes.workers < plan.world.size() ? " per worker" : " per rank";
  if (plan.config.accumulate == 1) return concat(plan.sizes.batch, each);
  return concat(plan.config.accumulate, " x ", plan.sizes.batch / plan.config.accumulate, each);
}

/// "all-reduce window", "update by server, rank 3".
std::string update_text(const step::Plan& plan, const comm::Update& update) {
  if (plan.world.size() == 1) return "no exchange of gradients";
  const bool sums = plan.config.update != comm::UpdateKind::server;
  return concat(sums ? "all-reduce " : "update by ", update.name());
}

std::string local_text(const step::Plan& plan) {
  const optim::LocalSteps& local = plan.config.local;
  std::string from;
  if (plan.sizes.local_from > 0)
    from = concat(" from step ", plan.sizes.local_from + 1,
                  " on, before it gradients are exchanged in every step");
  return concat("update: local, ", counted(local.steps, "step"), " of each rank between averagings, outer ",
                optim::describe(local), from,
                "; log, evaluation, checkpoints and stops wait for an averaging");
}

/// "operations: 0.2245 PFLOP in all, 0.1875 without taps outside the images"
std::string operations_text(const step::Plan& plan) {
  const model::Flops all = step::training_flops(plan);
  return fmt::format("operations: {:.4g} PFLOP in all, {:.4g} without taps outside the images",
                     1e-15 * all.nominal, 1e-15 * all.in_image);
}

/// "image size: 24x24 in steps 1 to 7 (369 MFLOP per image), 24x24 in steps 8 to 98 (341 MFLOP per image,
/// whitening/biases frozen), 28x28 …"
std::string image_size_text(const step::Plan& plan) {
  std::string text = "image size: ";
  for (std::uint64_t from = 0, end = 0; from < plan.sizes.total_steps; from = end) {
    end = step::program_end(plan, from);
    const step::StepKind kind = step::step_kind(plan, from);
    const Extent& input = step::network_for(plan, kind).input;
    text += concat(from == 0 ? "" : ", ", input.height, 'x', input.width, " in steps ", from + 1, " to ", end,
                   fmt::format(" ({:.0f} MFLOP per image", 1e-6 * step::training_flops(plan, kind).nominal),
                   frozen_text(plan, kind), ")");
  }
  text += "; evaluation sees whole images";
  if (plan.sizes.image_stages.size() == plan.config.image_sizes.size()) return text;
  return concat(text, "; the run ends before ",
                plan.config.image_sizes[plan.sizes.image_stages.size()].pixels, " pixels of --image-size ",
                config::describe(plan.config.image_sizes));
}

/// The effect of several ranks with the default batch, which is per rank.
std::string global_batch_text(const step::Plan& plan) {
  const config::Sizes& sizes = plan.sizes;
  const int one = sizes.batch;
  return concat("batch: ", sizes.aggregated, " ranks with ", one, " samples each make a global batch of ",
                sizes.global_batch, ", so an epoch has ", std::llround(sizes.steps_per_epoch),
                " steps; --global-batch ", one,
                " keeps the batch, the steps and the accuracy of one rank, --lr-scaling sqrt ",
                "--warmup-epochs 5 adapts the rate to the larger batch, which needs more epochs");
}

/// "3120 steps, 7.987 epochs": the length in epochs is that of the whole steps.
std::string length_text(const step::Plan& plan) {
  const auto steps = static_cast<double>(plan.sizes.total_steps);
  const double made = steps / plan.sizes.steps_per_epoch;
  std::string text = concat(counted(plan.sizes.total_steps, "step"), ", ", fmt::format("{:.4g}", made),
                            made == 1.0 ? " epoch" : " epochs");
  if (plan.config.steps == 0 && made < plan.config.epochs)
    text += concat(" (whole steps of --epochs ", config::exact(plan.config.epochs), ')');
  if (plan.config.update == comm::UpdateKind::server && plan.config.aggregation.asynchronous)
    text += concat("; with --aggregate async a step is one push of ", plan.sizes.batch,
                   " images, so all workers together take ", plan.sizes.total_steps * plan.sizes.global_batch,
                   " images");
  return text;
}

/// Images larger than the network's input are cut, which costs accuracy where their object fills them.
std::string cut_text(const step::Plan& plan) {
  const Extent &image = plan.info.image, &input = plan.network.net.input;
  if (image.height <= input.height && image.width <= input.width) return {};
  return concat("; the network sees a part of ", input.height, 'x', input.width,
                " (--input-size): random in training, the centre in evaluation");
}

constexpr double kHighForAdam = 0.02;

}  // namespace

void describe_run(const step::Plan& plan, const step::Device& device, const comm::Update& update,
                  const run::Start& start) {
  if (plan.serves()) return;
  const config::TrainConfig& config = plan.config;
  const data::DatasetInfo& info = plan.info;
  const Log& log = plan.log;
  log.info(concat("cifar_mpi ", version(), ": ", counted(plan.world.size(), "rank"), " on ",
                  device.backend->description()));
  log.info(concat("data: ", config.data, ", ", info.train_count, " training and ", info.test_count,
                  " test images of ", to_string(info.image), ", ", info.classes(), " classes, shuffle ",
                  to_string(config.shuffle), ", augment ", to_string(config.augment), cut_text(plan)));
  log.info(concat("model: ", config.model, ", ", model::param_count(plan.network.params), " parameters, ",
                  to_string(config.precision), "; batch ", batch_text(plan), ", global batch ",
                  plan.sizes.global_batch, "; ", update_text(plan, update), "; seed ", config.seed));
  log.info(concat("learning rate: ",
                  optim::Schedule(config::schedule_spec(config, plan.sizes, info.train_count)).describe(),
                  "; EMA ", config.ema_decay, "; weight decay ", config.weight_decay,
                  optimizer_text(config)));
  if (config.optimizer.kind == optim::OptimizerKind::adamw && config.lr > kHighForAdam) {
    log.warn(concat("--lr ", config.lr, " is high for --optimizer adamw, whose steps do not shrink with the ",
                    "gradient; 0.001 is usual"));
  }
  if (config.update == comm::UpdateKind::local) log.info(local_text(plan));
  if (!config.image_sizes.empty()) log.info(image_size_text(plan));
  log.info(operations_text(plan));
  if (const std::string note = update.note(); !note.empty()) log.warn(note);
  if (plan.sizes.partial_aggregation() && !config.aggregation.asynchronous &&
      config.shuffle == data::Shuffle::shard) {
    log.info(
        "note: with --aggregate below all workers, one that is always late never makes a step, and with "
        "--shuffle shard no other rank has its samples; --shuffle global distributes all samples again in "
        "each epoch");
  }
  if (const int unused = plan.world.unused_cores(); unused > 0) {
    log.info(concat("note: ", unused,
                    " cores of this node are in no rank's affinity mask; mpirun --bind-to none frees them"));
  }
  const std::string from =
      start.initialized_from.empty()
          ? std::string()
          : concat("; initialized from the averaged weights of ", start.initialized_from);
  if (!start.resumed) {
    if (plan.sizes.aggregated > 1 && config.global_batch == 0 && config.lr_scaling == optim::LrScaling::none)
      log.info(global_batch_text(plan));
    log.info(concat("starting: ", length_text(plan), "; run directory ", config.run_dir, from));
    return;
  }
  const bool done = plan.progress.step >= plan.sizes.total_steps;
  log.info(concat(
      "resuming at step ", plan.progress.step, " of ", plan.sizes.total_steps,
      done ? ", so no step is left to train" : "",
      done && !start.changed.empty() ? concat(" (changed, with no step to act on: ", start.changed, ")") : "",
      from, config.init_from.empty() ? "" : "; --init-from is not read again"));
  if (done) return;
  if (!start.changed.empty())
    log.info(
        concat("changed from step ", plan.progress.step + 1, " on: ", start.changed, " (--allow-change)"));
  for (const std::string& note : run::resume_notes(start, started_run(plan, device))) log.info(note);
}

void describe_kernels(const step::Plan& plan, const step::Device& device,
                      const std::vector<std::string>& slower) {
  if (plan.serves()) return;
  const std::string lines = device.plan_text();
  if (!plan.config.show_kernels) {
    plan.log.info(
        concat("kernels: ", std::ranges::count(lines, '\n'), " choices; --show-kernels lists them"));
  } else {
    plan.log.info("kernels:");
    std::istringstream in(lines);
    for (std::string line; std::getline(in, line);) plan.log.info(concat("  ", line));
  }
  for (const std::string& line : slower) plan.log.warn(concat("slower kernel: ", line));
}

}  // namespace cifar_mpi::train
