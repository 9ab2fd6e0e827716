#include "cifar_mpi/train/evaluate_checkpoint.hpp"

#include <filesystem>
#include <optional>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/train/network.hpp"
#include "cifar_mpi/train/run_directory.hpp"

namespace cifar_mpi::train {
namespace {

std::string recorded(const Checkpoint& checkpoint, std::string_view key, const std::string& path) {
  for (const auto& [name, value] : checkpoint.progress.identity) {
    if (name == key) return value;
  }
  throw Error(ErrorKind::checkpoint,
              concat(path, " does not say its ", key, "; is it a cifar_mpi checkpoint?"));
}

/// The checkpoint's model on this dataset; throws when the two do not belong together.
Network network_of(const Checkpoint& checkpoint, const std::string& path, const data::DatasetInfo& info,
                   const std::string& data) {
  const std::string image = recorded(checkpoint, "dataset image", path);
  const std::string classes = recorded(checkpoint, "dataset classes", path);
  if (image != to_string(info.image) || classes != std::to_string(info.classes())) {
    throw Error(
        ErrorKind::checkpoint,
        concat(path, " was trained on ", image, " images of ", classes, " classes, but ", data, " has ",
               to_string(info.image), " images of ", info.classes(), "; name its dataset with --data"));
  }
  return make_network(recorded(checkpoint, "model", path), info, data::Augment::none, data);
}

}  // namespace

std::string resolve_checkpoint(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return path;
  const std::vector<CheckpointFile> files = list_checkpoints(path);
  if (files.empty()) {
    throw Error(ErrorKind::checkpoint, concat(path, " holds no checkpoint (", path,
                                              "/checkpoints/step_*.h5); "
                                              "has the run written one yet?"));
  }
  return files.back().path;
}

Evaluation evaluate_checkpoint(const EvaluationConfig& config, const std::string& path,
                               const comm::World& world, const BackendFactory& make_backend) {
  Evaluation result;
  Network network;
  std::optional<data::DatasetFile> file;
  std::vector<NamedTensor> tensors;
  world.together([&] {
    Checkpoint checkpoint = read_checkpoint(path);
    file.emplace(config.data);
    network = network_of(checkpoint, path, file->info(), config.data);
    tensors = match_tensors(std::move(config.weights == Weights::ema ? checkpoint.ema : checkpoint.model),
                            network.params, path);
    result.step = checkpoint.progress.step;
    result.label_names = file->info().label_names;
  });

  std::unique_ptr<engine::Backend> backend;
  std::unique_ptr<engine::Tower> tower;
  std::optional<engine::Arena> arena;
  Buffer params;
  std::optional<Evaluator> evaluator;
  world.together([&] {
    backend =
        make_backend({config.threads > 0 ? config.threads : world.fair_threads(), world.oversubscribed(),
                      world.node_rank(), world.node_size(), true});  // ranks that exchange nothing may share
    tower =
        backend->plan({&network.net, &network.params, config.batch_size, backend->resolve(config.precision)});
    arena.emplace([&](std::size_t bytes) { return backend->allocate(bytes); });
    params = backend->allocate(tower->layout().floats * sizeof(float));
    import_block(*backend, *tower, tensors, params);
    evaluator.emplace(*backend, *tower, *arena, world, *file, network.augment, config.batch_size,
                      params.as<const float>());
  });
  result.accuracy = evaluator->run();
  return result;
}

}  // namespace cifar_mpi::train
