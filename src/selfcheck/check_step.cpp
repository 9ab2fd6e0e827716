#include "selfcheck/check_step.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "cifar_mpi/base/random.hpp"
#include "cifar_mpi/base/random_normals.hpp"
#include "cifar_mpi/comm/all_reduce_update.hpp"
#include "cifar_mpi/step/no_exchange.hpp"

namespace cifar_mpi::selfcheck {
namespace {

/// The run's kernels, at a constant rate that moves every weight a little.
config::TrainConfig check_config(config::TrainConfig config) {
  const config::TrainConfig plain;
  config.lr = 0.01;
  config.schedule = plain.schedule;
  config.lr_decay_factor = plain.lr_decay_factor;
  config.epochs_per_decay = plain.epochs_per_decay;
  config.decay_at = plain.decay_at;
  config.initial_lr_share = plain.initial_lr_share;
  config.final_lr_share = plain.final_lr_share;
  config.lr_scaling = plain.lr_scaling;
  config.warmup_epochs = plain.warmup_epochs;
  config.lookahead_steps = plain.lookahead_steps;
  config.tail_epochs = plain.tail_epochs;
  config.aggregation = plain.aggregation;
  config.shuffle = data::Shuffle::shard;
  config.summary_every = 1;        // for the images
  config.sync_batch_norm = false;  // each rank is compared with itself alone
  return config;
}

/// Weights of a size that keeps activations bounded; scales near 1, variances above 0, and no zeros, unlike
/// some initial values.
std::vector<run::NamedTensor> draw_weights(const model::ParamTable& params, std::uint64_t draw, double off) {
  std::vector<run::NamedTensor> tensors;
  for (const model::Param& param : params) {
    const Shape& shape = param.shape;
    const std::int64_t inputs = shape.rank() == 1 ? 16 : shape.count() / shape[shape.rank() - 1];
    const float scale = 1.0f / std::sqrt(static_cast<float>(inputs));
    std::vector<float> values(static_cast<std::size_t>(shape.count()));
    truncated_normals(draw, param.seed_index, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] *= scale;
      if (param.part == model::ParamPart::scale) values[i] += 1.0f;
      if (param.part == model::ParamPart::variance) values[i] = 0.5f + std::abs(values[i]);
      if (off == 0.0) continue;
      const bool up = (random4(draw, RandomPurpose::synthetic, i, param.seed_index)[0] & 1) != 0;
      values[i] *= static_cast<float>(1.0 + (up ? off : -off));
    }
    tensors.push_back(
        {param.name, param.shape, param.dims, std::move(values), param.role == model::ParamRole::running});
  }
  return tensors;
}

template <class T>
std::vector<T> read(engine::Backend& backend, std::span<T> from) {
  std::vector<T> values(from.size());
  backend.copy(values.data(), from.data(), from.size_bytes());
  return values;
}

}  // namespace

CheckStep::CheckStep(const config::TrainConfig& config, const data::DatasetInfo& info,
                     const comm::World& world, const comm::PlatformFactory& make_platform)
    : plan(check_config(config), world, Log(world.rank())), update_(config.update) {
  plan.info = info;
  augment_ = config::augment_spec(config, info.image);
  std::fill_n(augment_.mean, data::kMostChannels, 120.0f);  // of any images
  std::fill_n(augment_.deviation, data::kMostChannels, 60.0f);
  plan.network = evaluation::make_network(config.model, info, augment_, "generated images");
  for (model::Param& param : plan.network.params) {
    if (param.weight_decay > 0.0f) param.weight_decay = static_cast<float>(config.weight_decay);
  }
  step::open_device(plan, device, make_platform);
}

void CheckStep::plan_network_for(engine::Precision precision, const config::Sizes& sizes) {
  blocks.reset();
  left_in_flight = {};
  device.samples = {};
  device.arena.reset();
  device.tower.reset();
  plan.config.precision = precision;
  plan.sizes = sizes;
  plan.sizes.workers = plan.sizes.aggregated = plan.world.size();
  plan.sizes.total_steps = 100;
  plan.sizes.steps_per_epoch = 1.0;
  plan.sizes.local_from = 0;
  plan.info.train_count =
      static_cast<std::uint64_t>(sizes.batch) * static_cast<std::uint64_t>(plan.world.size());
  plan.shown_images = sizes.batch / sizes.parts;
  step::plan_network(plan, device);
  blocks.emplace();
}

void CheckStep::plan_alone(engine::Precision precision, int batch, int parts) {
  plan.config.update = comm::UpdateKind::all_reduce;  // of one rank
  config::Sizes alone;
  alone.parts = parts;
  alone.batch = batch;
  alone.global_batch = static_cast<std::uint64_t>(batch);
  plan_network_for(precision, alone);
  blocks->update =
      std::make_unique<comm::AllReduceUpdate>(std::make_unique<step::NoExchange>(*device.backend),
                                              device.layout, comm::AllReduceSettings{plan.config.bucket_mib});
  blocks->update->allocate(step::control_layout(plan, device).floats());
  step::allocate_blocks(plan, device, *blocks);
}

std::vector<std::string> CheckStep::plan_run(engine::Precision precision, const config::Sizes& sizes) {
  plan.config.update = update_;
  plan.world.together([&] { plan_network_for(precision, sizes); });
  std::vector<std::string> slower = step::agree_on_kernels(plan, device);
  step::open_update(plan, device, *blocks);
  plan.world.together([&] { step::allocate_blocks(plan, device, *blocks); });
  return slower;
}

void CheckStep::fill(std::uint64_t draw, int count, double off) {
  const int batch = plan.sizes.batch;
  const data::SampleOrder order(data::Shuffle::shard, plan.config.seed, plan.info.train_count,
                                plan.world.rank(), plan.world.size(), batch);
  data::Samples few, unused;
  data::make_synthetic(plan.info.image, plan.info.classes(), static_cast<std::uint64_t>(count), draw, few,
                       unused);
  const auto bytes = static_cast<std::size_t>(plan.info.image.count());
  samples_.images.resize(static_cast<std::size_t>(batch) * bytes);
  samples_.labels.resize(static_cast<std::size_t>(batch));
  for (std::size_t i = 0; i < samples_.labels.size(); ++i) {
    const std::size_t from = i % static_cast<std::size_t>(count), to = order.at(0, i).local;
    std::copy_n(few.images.data() + from * bytes, bytes, samples_.images.data() + to * bytes);
    samples_.labels[to] = few.labels[from];
  }
  device.samples = evaluation::ResidentData(*device.backend, samples_);
  begin_ = run::initial_state(step::state_rows(plan.config), draw_weights(plan.network.params, draw, off));
}

void CheckStep::rewind() {
  // No task writes the padding of gradients, so an in-place all-reduce would double in every step what a
  // check left there.
  const std::span<std::byte> gradients = std::as_writable_bytes(blocks->update->block().all());
  const std::vector<std::byte> zeros(gradients.size());
  device.backend->copy(gradients.data(), zeros.data(), zeros.size());
  blocks->state.write(*device.backend, *device.tower, begin_);
  step::write_step(device, *blocks, 0);
}

void CheckStep::resume(std::uint64_t step) {
  const run::StateTensors tensors = blocks->state.read(*device.backend, *device.tower, plan.network.params);
  blocks->state.write(*device.backend, *device.tower, tensors);
  step::write_step(device, *blocks, step);
}

std::unique_ptr<engine::Runner> CheckStep::runner(engine::RunnerKind kind, Input input) {
  data::AugmentSpec augment = augment_;
  if (input == Input::not_a_number) {
    augment.normalize = data::Normalize::dataset;
    std::fill_n(augment.mean, data::kMostChannels, std::numeric_limits<float>::quiet_NaN());
    std::fill_n(augment.deviation, data::kMostChannels, 1.0f);
  }
  if (input != Input::distorted) {
    augment.kind = data::Augment::none;
    augment.cutout = 0;
  }
  plan.network.augment = augment;
  plan.config.runner = kind;
  return step::plan_step(context(), {.branches = plan.config.side_lane});
}

std::unique_ptr<engine::Runner> CheckStep::run_runner(engine::RunnerKind kind) {
  plan.network.augment = augment_;
  plan.config.runner = kind;
  const comm::Concurrency concurrent{.branches = plan.config.side_lane};
  return update_ == comm::UpdateKind::local ? step::plan_local_steps(context(), concurrent)
                                            : step::plan_step(context(), concurrent);
}

std::vector<std::vector<float>> CheckStep::gradients() const {
  const engine::ControlLayout control = step::control_layout(plan, device);
  const engine::ParamLayout& layout = device.layout;
  const std::vector<float> block = read(*device.backend, blocks->update->block().all());
  std::vector<std::vector<float>> all;
  for (std::size_t p = 0; p < layout.entries.size(); ++p) {
    const engine::ParamLayout::Entry& entry = layout.entries[p];
    std::vector<float> values;
    if (plan.network.params[p].role != model::ParamRole::frozen) {
      const std::size_t at = entry.offset >= layout.running_begin()
                                 ? control.statistics() + entry.offset - layout.running_begin()
                                 : control.floats() + entry.offset;
      values.resize(static_cast<std::size_t>(plan.network.params[p].shape.count()));
      device.tower->to_logical(p, {block.data() + at, entry.floats}, values);
    }
    all.push_back(std::move(values));
  }
  return all;
}

double CheckStep::loss() const { return blocks->records.front().cross_entropy; }

std::vector<std::vector<float>> CheckStep::rows() const {
  std::vector<std::vector<float>> all;
  for (const optim::StateRow& row : blocks->state.rows())
    all.push_back(read(*device.backend, blocks->state[row.role].span<float>()));
  return all;
}

std::vector<float> CheckStep::images() const {
  return read(*device.backend, blocks->kept_images.span<float>());
}

std::vector<float> CheckStep::wanted_images() const {
  const data::SampleOrder order(data::Shuffle::shard, plan.config.seed, plan.info.train_count,
                                plan.world.rank(), plan.world.size(), plan.sizes.batch);
  const auto bytes = static_cast<std::size_t>(plan.info.image.count());
  const auto values = static_cast<std::size_t>(augment_.output().count());
  std::vector<float> all(static_cast<std::size_t>(step::kept_images(plan)) * values);
  for (std::size_t i = 0; i * values < all.size(); ++i) {
    const data::SampleRef sample = order.at(0, i);
    data::augment_reference(augment_, data::draw_augment(augment_, plan.config.seed, sample.epoch, sample.id),
                            0.0, std::span(samples_.images).subspan(sample.local * bytes, bytes),
                            std::span(all).subspan(i * values, values));
  }
  return all;
}

}  // namespace cifar_mpi::selfcheck
