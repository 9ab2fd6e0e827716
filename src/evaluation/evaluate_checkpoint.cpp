#include "cifar_mpi/evaluation/evaluate_checkpoint.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "cifar_mpi/base/hash.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/config/config.hpp"
#include "run/resume.hpp"

namespace cifar_mpi::evaluation {
namespace {

std::string recorded(const RunFingerprint& identity, std::string_view key, const std::string& path) {
  if (const std::string* const value = find_item(identity, key)) return *value;
  throw Error(ErrorKind::checkpoint, path, " does not say its ", key, "; is it a cifar_mpi checkpoint?");
}

/// "32x32x3" as {32, 32, 3}; empty unless all its parts are positive numbers.
std::vector<int> extents_in(std::string_view text) {
  std::vector<int> extents;
  for (const char* at = text.data();; ++at) {
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(at, end, extents.emplace_back());
    if (error != std::errc() || extents.back() <= 0 || (stop != end && *stop != 'x')) return {};
    if (stop == end) return extents;
    at = stop;
  }
}

/// The preprocessing of evaluation for the checkpoint's network. Checkpoints that do not state a size mean
/// 24x24.
data::AugmentSpec augment_of(const RunFingerprint& identity, const Extent& image, const std::string& path,
                             std::vector<std::string>& assumed) {
  data::AugmentSpec augment;
  augment.kind = data::Augment::none;
  augment.source = image;
  if (const std::string* const input = find_item(identity, "network input")) {
    const std::vector<int> size = extents_in(*input);
    if (size.size() != 2)
      throw Error(ErrorKind::checkpoint, path, " is damaged: its network input is no size");
    augment.crop_height = size[0];
    augment.crop_width = size[1];
  } else {
    assumed.push_back(concat(path, " does not state the size that images are cut to; assuming ",
                             augment.crop_height, "x", augment.crop_width));
  }
  const std::string* const normalize = find_item(identity, "--normalize");
  if (normalize != nullptr && *normalize == to_string(data::Normalize::dataset)) {
    augment.normalize = data::Normalize::dataset;
  }
  return augment;
}

/// Throws unless the checkpoint was trained on images and classes like those of `data`.
void require_same_shape(const run::Checkpoint& checkpoint, const std::string& path,
                        const data::DatasetInfo& info, const std::string& data) {
  const std::string image = recorded(checkpoint.progress.identity, "dataset image", path);
  const std::string classes = recorded(checkpoint.progress.identity, "dataset classes", path);
  if (image != to_string(info.image) || classes != std::to_string(info.classes())) {
    throw Error(ErrorKind::checkpoint, path, " was trained on ", image, " images of ", classes,
                " classes, but ", data, " has ", to_string(info.image), " images of ", info.classes(),
                "; name its dataset with --data");
  }
}

/// Whether the classes have the names they had in training.
bool has_same_classes(const run::Checkpoint& checkpoint, const data::DatasetInfo& info,
                      const std::string& path) {
  const char* const item = "dataset label names";
  return recorded(checkpoint.progress.identity, item, path) ==
         *find_item(config::run_fingerprint({}, {}, info), item);
}

/// Differences between `info` and the checkpoint's training dataset that do not prevent an evaluation.
std::vector<std::string> doubts(const run::Checkpoint& checkpoint, const data::DatasetInfo& info,
                                const std::string& path, const std::string& data) {
  const RunFingerprint here = config::run_fingerprint({}, {}, info);
  std::vector<std::string> texts;
  for (const char* item : {"dataset label names", "dataset training samples"}) {
    const std::string then = recorded(checkpoint.progress.identity, item, path),
                      now = recorded(here, item, data);
    if (then == now) continue;
    texts.push_back(concat(path, " was trained on another dataset than ", data, ": its ", item, " are ", then,
                           ", those of this file ", now));
  }
  return texts;
}

/// The settings that must be equal on all ranks.
RunFingerprint fingerprint_of(const run::Checkpoint& checkpoint) {
  std::uint64_t hash = 0;
  for (const optim::StateRow& row : optim::state_rows(checkpoint.optimizer.kind)) {
    for (const run::NamedTensor& tensor : checkpoint.state[row.role]) {
      hash = hash_pair(hash, hash_bytes(std::as_bytes(std::span(tensor.values))));
    }
  }
  return {{"the checkpoint's step", std::to_string(checkpoint.progress.step)},
          {"the hash of the checkpoint", fmt::format("{:016x}", hash)}};
}

/// The names in a list "cat, dog".
std::vector<std::string> label_names_of(const RunFingerprint& identity, std::size_t classes) {
  std::vector<std::string> names;
  if (const std::string* const list = find_item(identity, "dataset label names")) {
    for (std::size_t at = 0, end = 0; end != std::string::npos; at = end + 2) {
      end = list->find(", ", at);
      names.push_back(list->substr(at, end - at));
    }
  }
  if (names.size() == classes) return names;
  names.clear();
  for (std::size_t i = 0; i < classes; ++i) names.push_back(concat("class ", i));
  return names;
}

/// A network with its weights on this rank's device.
struct LoadedNetwork {
  std::unique_ptr<engine::Backend> backend;
  std::optional<lower::Tower> tower;
  std::optional<engine::Arena> arena;
  Buffer params;
  engine::Precision precision;

  LoadedNetwork(const EvaluationConfig& config, const Network& network,
                const std::vector<run::NamedTensor>& tensors, const comm::World& world,
                const comm::PlatformFactory& make_platform) {
    backend = make_platform({config.threads > 0 ? config.threads : world.fair_threads(),
                             world.oversubscribed(), world.node_rank(), world.node_size(), true})
                  .backend;  // ranks that exchange nothing may share
    precision = backend->resolve(config.precision);
    tower.emplace(*backend, engine::TowerSpec{&network.net, &network.params, config.batch_size, precision});
    arena.emplace([this](std::size_t bytes) { return backend->allocate(bytes); });
    params = backend->allocate(tower->layout().floats * sizeof(float));
    import_block(*backend, *tower, tensors, params);
  }
};

EvaluatorSpec evaluator_spec(const EvaluationConfig& config, const Network& network,
                             const LoadedNetwork& loaded) {
  EvaluatorSpec spec;
  spec.params = loaded.params.as<const float>();
  spec.augment = network.augment;
  spec.views = config.views;
  spec.batch = config.batch_size;
  return spec;
}

std::vector<run::NamedTensor> take_tensors(const EvaluationConfig& config, run::Checkpoint& checkpoint,
                                           const Network& network, const std::string& path) {
  const auto role = config.weights == Weights::ema ? optim::StateRole::average : optim::StateRole::weights;
  return run::match_tensors(std::move(checkpoint.state[role]), network.params, path);
}

}  // namespace

void RecordedNetwork::require_moments(const std::string& path) const {
  if (knows_moments) return;
  throw Error(ErrorKind::checkpoint, path, " does not state the moments that its images are normalized by; ",
              "resume its run for a step to write a newer checkpoint");
}

void RecordedNetwork::require_views(int views, const std::string& path) const {
  if (views == 1 || never_mirrored.empty()) return;
  throw Error(ErrorKind::usage, "--views ", views, " shows mirrored images, but ", path, " was trained with ",
              never_mirrored, ", on none; give --views 1");
}

RecordedNetwork recorded_network(const run::Checkpoint& checkpoint, const std::string& path) {
  const RunFingerprint& identity = checkpoint.progress.identity;
  const std::vector<int> image = extents_in(recorded(identity, "dataset image", path));
  const std::vector<int> classes = extents_in(recorded(identity, "dataset classes", path));
  if (image.size() != 3 || classes.size() != 1)
    throw Error(ErrorKind::checkpoint, path, " is damaged: it does not say what its images are");
  data::DatasetInfo info;
  info.image = {image[0], image[1], image[2]};
  info.label_names.resize(static_cast<std::size_t>(std::min(classes[0], 256)));  // more are refused below
  RecordedNetwork result;
  result.network = make_network(recorded(identity, "model", path), info,
                                augment_of(identity, info.image, path, result.assumed), path);
  result.label_names = label_names_of(identity, info.label_names.size());
  for (const auto& [option, value] : {std::pair("--flip", "off"), std::pair("--augment", "none")}) {
    const std::string* const recorded_value = find_item(identity, option);
    if (recorded_value != nullptr && *recorded_value == value)
      result.never_mirrored = concat(option, " ", value);
  }
  result.knows_moments = take_moments(result.network.augment, checkpoint.progress.resolved, path) ||
                         result.network.augment.normalize != data::Normalize::dataset;
  return result;
}

std::uint64_t newest_checkpoint(const Directory& run, const Log& log) {
  const std::optional<run::FoundCheckpoint> found = run::newest_valid_checkpoint(run, log);
  if (found) return found->content.progress.step;
  throw Error(ErrorKind::checkpoint, run.path(), " holds no checkpoint (", run.path(),
              "/checkpoints/step_*.h5); name another run directory, or wait for its first checkpoint");
}

run::Checkpoint read_on_all_ranks(const InputFile& file, const comm::World& world, comm::Heartbeat& heart) {
  heart.activity = comm::Activity::starting;
  run::Checkpoint checkpoint;
  RunFingerprint mine;
  world.together([&] {
    checkpoint = run::read_checkpoint(file);
    mine = fingerprint_of(checkpoint);
  });
  world.require_equal(ErrorKind::usage, mine, "start all ranks with the same checkpoint");
  return checkpoint;
}

Evaluation evaluate_checkpoint(const EvaluationConfig& config, const InputFile& file,
                               const comm::World& world, const comm::PlatformFactory& make_platform,
                               comm::Heartbeat& heart) {
  return evaluate_checkpoint(config, read_on_all_ranks(file, world, heart), file.path(), world, make_platform,
                             heart);
}

Evaluation evaluate_checkpoint(const EvaluationConfig& config, run::Checkpoint checkpoint,
                               const std::string& path, const comm::World& world,
                               const comm::PlatformFactory& make_platform, comm::Heartbeat& heart) {
  heart.activity = comm::Activity::starting;
  Evaluation result;
  RecordedNetwork recorded;
  Network& network = recorded.network;
  std::optional<data::DatasetFile> file;
  std::vector<run::NamedTensor> tensors;
  world.together([&] {
    file.emplace(config.data);
    require_same_shape(checkpoint, path, file->info(), config.data);
    result.same_classes = has_same_classes(checkpoint, file->info(), path);
    if (!result.same_classes && !config.other_classes) {
      throw Error(ErrorKind::checkpoint, doubts(checkpoint, file->info(), path, config.data).front(),
                  "; name its dataset with --data, or give --other-classes to count labels by number");
    }
    recorded = recorded_network(checkpoint, path);
    recorded.require_views(config.views, path);
    tensors = take_tensors(config, checkpoint, network, path);
    result.step = checkpoint.progress.step;
    if (const std::string* const precision = find_item(checkpoint.progress.resolved, "precision"))
      result.run_precision = *precision;
    result.label_names = file->info().label_names;
    result.doubts = doubts(checkpoint, file->info(), path, config.data);
    result.doubts.insert(result.doubts.end(), recorded.assumed.begin(), recorded.assumed.end());
  });
  require_equal_data(world, *file, config.data);
  if (!recorded.knows_moments) find_dataset_moments(network.augment, *file, world);

  std::unique_ptr<LoadedNetwork> loaded;
  std::optional<Evaluator> evaluator;
  world.together([&] {
    loaded = std::make_unique<LoadedNetwork>(config, network, tensors, world, make_platform);
    const data::Shard part = data::shard_of(file->info().test_count, static_cast<std::uint64_t>(world.rank()),
                                            static_cast<std::uint64_t>(world.size()));
    evaluator.emplace(*loaded->backend, *loaded->tower, *loaded->arena, world, *file, part,
                      evaluator_spec(config, network, *loaded));
  });
  result.precision = to_string(loaded->precision);
  evaluator->show_in(heart.progress);
  heart.activity = comm::Activity::evaluating;
  result.accuracy = evaluator->run();
  result.time = evaluator->time();
  result.record = evaluator->record(result.accuracy);
  result.record.step = result.step;
  result.record.weights = config.weights == Weights::ema ? "ema" : "raw";
  if (config.keep_logits) result.logits = evaluator->logits();
  return result;
}

Evaluation classify_images(const EvaluationConfig& config, run::Checkpoint checkpoint,
                           const std::string& path, std::vector<std::uint8_t> images,
                           const comm::World& world, const comm::PlatformFactory& make_platform,
                           comm::Heartbeat& heart) {
  heart.activity = comm::Activity::starting;
  Evaluation result;
  RecordedNetwork recorded;
  std::unique_ptr<LoadedNetwork> loaded;
  std::optional<Evaluator> evaluator;
  world.together([&] {
    recorded = recorded_network(checkpoint, path);
    recorded.require_moments(path);
    recorded.require_views(config.views, path);
    const Network& network = recorded.network;
    result.step = checkpoint.progress.step;
    result.label_names = recorded.label_names;
    result.doubts = recorded.assumed;
    const auto count = images.size() / static_cast<std::size_t>(network.augment.source.count());
    const data::Samples unlabelled{std::move(images), std::vector<std::uint8_t>(count, 255)};
    loaded = std::make_unique<LoadedNetwork>(config, network, take_tensors(config, checkpoint, network, path),
                                             world, make_platform);
    evaluator.emplace(*loaded->backend, *loaded->tower, *loaded->arena, world, unlabelled,
                      recorded.label_names.size(), evaluator_spec(config, network, *loaded));
  });
  evaluator->show_in(heart.progress);
  heart.activity = comm::Activity::evaluating;
  evaluator->run();
  result.logits = evaluator->logits();
  return result;
}

}  // namespace cifar_mpi::evaluation
