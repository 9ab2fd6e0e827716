#include "train/check_step.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "cifar_mpi/base/random.hpp"
#include "cifar_mpi/comm/all_reduce_update.hpp"
#include "train/no_exchange.hpp"

namespace cifar_mpi::train {
namespace {

std::atomic<int> nothing_asked{0};

/// The run's kernels at a rate that is the same in every step and moves every weight a little.
TrainConfig check_config(TrainConfig config) {
  const TrainConfig plain;
  config.lr = 0.01;
  config.schedule = plain.schedule;
  config.lr_decay_factor = plain.lr_decay_factor;
  config.epochs_per_decay = plain.epochs_per_decay;
  config.decay_at = plain.decay_at;
  config.initial_lr_share = plain.initial_lr_share;
  config.final_lr_share = plain.final_lr_share;
  config.lr_scaling = plain.lr_scaling;
  config.warmup_epochs = plain.warmup_epochs;
  config.aggregation = plain.aggregation;
  config.shuffle = data::Shuffle::shard;
  config.summary_every = 1;  // for the images
  return config;
}

/// Weights of the size that keeps activations in size; scales around 1, variances above 0, and no zeros, as some
/// initial values are.
std::vector<run::NamedTensor> draw_weights(const model::ParamTable& params, std::uint64_t draw, double off) {
  std::vector<run::NamedTensor> tensors = initial_tensors(params, draw);
  for (std::size_t p = 0; p < params.size(); ++p) {
    const Shape& shape = params[p].shape;
    const std::int64_t inputs = shape.rank() == 1 ? 16 : shape.count() / shape[shape.rank() - 1];
    const float scale = 1.0f / std::sqrt(static_cast<float>(inputs));
    std::vector<float>& values = tensors[p].values;
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = scale * truncated_normal(draw, params[p].seed_index, i);
      if (params[p].part == model::ParamPart::scale) values[i] += 1.0f;
      if (params[p].part == model::ParamPart::variance) values[i] = 0.5f + std::abs(values[i]);
      const bool up = (random4(draw, RandomPurpose::synthetic, i, params[p].seed_index)[0] & 1) != 0;
      values[i] *= static_cast<float>(1.0 + (up ? off : -off));
    }
  }
  return tensors;
}

template <class T>
std::vector<T> read(engine::Backend& backend, const Buffer& from) {
  std::vector<T> values(from.size() / sizeof(T));
  backend.copy(reinterpret_cast<std::byte*>(values.data()), from.data(), values.size() * sizeof(T));
  return values;
}

}  // namespace

CheckStep::CheckStep(const TrainConfig& config, const data::DatasetInfo& info, const comm::World& world,
                     const comm::PlatformFactory& make_platform)
    : state(check_config(config), world, Log(world.rank()), nothing_asked), update_(config.update) {
  state.info = info;
  state.sizes.workers = world.size();
  augment_ = augment_spec(config, info.image);
  std::fill_n(augment_.mean, data::kMostChannels, 120.0f);  // of any images
  std::fill_n(augment_.deviation, data::kMostChannels, 60.0f);
  state.network = make_network(config.model, info, augment_, "generated images");
  for (model::Param& param : state.network.params) {
    if (param.weight_decay > 0.0f) param.weight_decay = static_cast<float>(config.weight_decay);
  }
  open_device(state, make_platform);
}

void CheckStep::release() {
  state.step.reset();
  for (Buffer* block :
       {&state.step_counter, &state.facts, &state.decay_sums, &state.gradient_norm, &state.value_counts,
        &state.kept_images, &state.weights_before, &state.round_sums, &state.gradients})
    *block = {};
  state.partials.clear();
  state.state = {};
  state.samples = {};
  state.arena.reset();
  state.update.reset();
  state.tower.reset();
}

void CheckStep::plan_network_for(engine::Precision precision, const Sizes& sizes) {
  release();
  state.config.precision = precision;
  state.sizes = sizes;
  state.sizes.workers = state.sizes.aggregated = state.world.size();
  state.sizes.total_steps = 100;
  state.sizes.steps_per_epoch = 1.0;
  state.sizes.local_from = 0;
  state.info.train_count =
      static_cast<std::uint64_t>(sizes.batch) * static_cast<std::uint64_t>(state.world.size());
  state.shown_images = sizes.batch / sizes.parts;
  plan_network(state);
}

void CheckStep::plan(engine::Precision precision, int batch, int parts) {
  state.config.update = comm::UpdateKind::all_reduce;  // of one rank
  Sizes alone;
  alone.parts = parts;
  alone.batch = batch;
  alone.global_batch = static_cast<std::uint64_t>(batch);
  plan_network_for(precision, alone);
  state.update =
      std::make_unique<comm::AllReduceUpdate>(std::make_unique<NoExchange>(*state.backend), state.layout,
                                              comm::AllReduceSettings{state.config.bucket_mib});
  state.gradients = state.update->allocate(control_layout(state).floats());
  allocate_blocks(state);
}

std::vector<std::string> CheckStep::plan_run(engine::Precision precision, const Sizes& sizes) {
  state.config.update = update_;
  state.world.together([&] { plan_network_for(precision, sizes); });
  std::vector<std::string> slower = agree_on_kernels(state);
  open_update(state);
  state.world.together([&] { allocate_blocks(state); });
  return slower;
}

void CheckStep::fill(std::uint64_t draw, int count, double off) {
  const int batch = state.sizes.batch;
  const data::SampleOrder order(data::Shuffle::shard, state.config.seed, state.info.train_count,
                                state.world.rank(), state.world.size(), batch);
  data::Samples few, unused;
  data::make_synthetic(state.info.image, state.info.classes(), static_cast<std::uint64_t>(count), draw, few,
                       unused);
  const auto bytes = static_cast<std::size_t>(state.info.image.count());
  samples_.images.resize(static_cast<std::size_t>(batch) * bytes);
  samples_.labels.resize(static_cast<std::size_t>(batch));
  for (std::size_t i = 0; i < samples_.labels.size(); ++i) {
    const std::size_t from = i % static_cast<std::size_t>(count), to = order.at(0, i).local;
    std::copy_n(few.images.data() + from * bytes, bytes, samples_.images.data() + to * bytes);
    samples_.labels[to] = few.labels[from];
  }
  state.samples = ResidentData(*state.backend, samples_);
  begin_ = run::initial_state(optim::state_rows(state.config.optimizer.kind),
                              draw_weights(state.network.params, draw, off));
}

void CheckStep::rewind() {
  // No task writes the padding of gradients, and an all-reduce in place would double in every step what a check left there.
  const std::vector<std::byte> zeros(state.gradients.size());
  state.backend->copy(state.gradients.data(), zeros.data(), zeros.size());
  state.state.write(*state.backend, *state.tower, begin_);
  write_step(state, 0);
}

void CheckStep::resume(std::uint64_t step) {
  const run::StateTensors tensors = state.state.read(*state.backend, *state.tower, state.network.params);
  state.state.write(*state.backend, *state.tower, tensors);
  write_step(state, step);
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
  state.network.augment = augment;
  state.config.runner = kind;
  return plan_step(state, *state.update, {.branches = state.config.side_lane});
}

std::unique_ptr<engine::Runner> CheckStep::run_runner(engine::RunnerKind kind) {
  state.network.augment = augment_;
  state.config.runner = kind;
  const comm::Concurrency concurrent{.branches = state.config.side_lane};
  return update_ == comm::UpdateKind::local ? plan_local_steps(state, *state.update, concurrent)
                                            : plan_step(state, *state.update, concurrent);
}

std::vector<std::vector<float>> CheckStep::gradients() const {
  const engine::ControlLayout control = control_layout(state);
  const engine::ParamLayout& layout = state.layout;
  const std::vector<float> block = read<float>(*state.backend, state.gradients);
  std::vector<std::vector<float>> all;
  for (std::size_t p = 0; p < layout.entries.size(); ++p) {
    const engine::ParamLayout::Entry& entry = layout.entries[p];
    std::vector<float> values;
    if (state.network.params[p].role != model::ParamRole::frozen) {
      const std::size_t at = entry.offset >= layout.running_begin()
                                 ? control.statistics() + entry.offset - layout.running_begin()
                                 : control.floats() + entry.offset;
      values.resize(static_cast<std::size_t>(state.network.params[p].shape.count()));
      state.tower->to_logical(p, {block.data() + at, entry.floats}, values);
    }
    all.push_back(std::move(values));
  }
  return all;
}

double CheckStep::loss() const { return state.records.front().cross_entropy; }

std::vector<std::vector<float>> CheckStep::rows() const {
  std::vector<std::vector<float>> all;
  for (const optim::StateRow& row : state.state.rows())
    all.push_back(read<float>(*state.backend, state.state[row.role]));
  return all;
}

std::vector<float> CheckStep::images() const { return read<float>(*state.backend, state.kept_images); }

std::vector<float> CheckStep::wanted_images() const {
  const data::SampleOrder order(data::Shuffle::shard, state.config.seed, state.info.train_count,
                                state.world.rank(), state.world.size(), state.sizes.batch);
  const auto bytes = static_cast<std::size_t>(state.info.image.count());
  const auto values = static_cast<std::size_t>(augment_.output().count());
  std::vector<float> all(static_cast<std::size_t>(kept_images(state)) * values);
  for (std::size_t i = 0; i * values < all.size(); ++i) {
    const data::SampleRef sample = order.at(0, i);
    data::augment_reference(augment_,
                            data::draw_augment(augment_, state.config.seed, sample.epoch, sample.id), 0.0,
                            std::span(samples_.images).subspan(sample.local * bytes, bytes),
                            std::span(all).subspan(i * values, values));
  }
  return all;
}

}  // namespace cifar_mpi::train
