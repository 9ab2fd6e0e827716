#include "cifar_mpi/train/checkpoint.hpp"

#include <algorithm>
#include <filesystem>
#include <map>

#include "cifar_mpi/base/text.hpp"
#include "hdf5/hdf5.hpp"

namespace cifar_mpi::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "cifar_mpi checkpoint";
constexpr std::int64_t kVersion = 1;
constexpr std::string_view kSeparator = " = ";

std::vector<std::string> as_lines(const Identity& items) {
  std::vector<std::string> lines;
  for (const auto& [name, value] : items) lines.push_back(concat(name, kSeparator, value));
  return lines;
}

Identity from_lines(const std::vector<std::string>& lines) {
  Identity items;
  for (const std::string& line : lines) {
    const std::size_t at = std::min(line.find(kSeparator), line.size());
    items.emplace_back(line.substr(0, at), line.substr(std::min(at + kSeparator.size(), line.size())));
  }
  return items;
}

void write_tensors(hdf5::Writer& file, const std::string& group, const std::vector<NamedTensor>& tensors) {
  file.group(group);
  // In forward order for the reader; the table stands in the order in which backward finishes.
  for (auto tensor = tensors.rbegin(); tensor != tensors.rend(); ++tensor) {
    const std::string object = concat(group, '/', tensor->name);
    file.write(object, hdf5::Dims(tensor->shape.begin(), tensor->shape.end()), tensor->values);
    file.attribute(object, "dims", tensor->dims);
  }
}

void write_progress(hdf5::Writer& file, const Progress& progress) {
  file.group("/progress");
  file.attribute("/progress", "step", progress.step);
  file.attribute("/progress", "epoch", progress.epoch);
  file.attribute("/progress", "samples_seen", progress.samples_seen);
  file.attribute("/progress", "seed", progress.seed);
  file.write_strings("/progress/identity", as_lines(progress.identity));
  file.attribute("/progress/identity", "meaning", "what makes a run this run; must be equal on resume");
  file.write_strings("/progress/resolved", as_lines(progress.resolved));
  file.attribute("/progress/resolved", "meaning", "chosen at start, affects bits; taken over on resume");
}

void write_provenance(hdf5::Writer& file, const Provenance& from) {
  const char* group = "/provenance";
  file.group(group);
  file.attribute(group, "ranks", static_cast<std::int64_t>(from.ranks));
  file.attribute(group, "global_batch", from.global_batch);
  file.attribute(group, "learning_rate", from.learning_rate);
  file.attribute(group, "learning_rate_rule", from.learning_rate_rule);
  file.attribute(group, "precision", from.precision);
  file.attribute(group, "backend", from.backend);
  file.attribute(group, "kernels", from.kernels);
  file.attribute(group, "git_revision", from.git_revision);
  file.attribute(group, "time", from.time);
  if (from.test_accuracy) file.attribute(group, "test_accuracy", *from.test_accuracy);
  file.write_strings("/provenance/configuration", {from.configuration});
}

std::vector<NamedTensor> read_tensors(const hdf5::Reader& file, const std::string& group) {
  std::vector<NamedTensor> tensors;
  for (const std::string& layer : file.members(group)) {
    for (const std::string& part : file.members(concat(group, '/', layer))) {
      const std::string object = concat(group, '/', layer, '/', part);
      NamedTensor tensor;
      tensor.name = concat(layer, '/', part);
      const hdf5::Dims dims = file.dims(object);
      if (dims.size() > 4)
        throw Error(ErrorKind::checkpoint, concat(file.path(), ": ", object, " has more than 4 dimensions"));
      for (const std::uint64_t d : dims) tensor.shape.append(static_cast<std::int64_t>(d));
      tensor.dims = file.attribute<std::string>(object, "dims");
      tensor.values = file.read<float>(object);
      tensors.push_back(std::move(tensor));
    }
  }
  return tensors;
}

void require_format(const hdf5::Reader& file) {
  if (!file.has_attribute("/", "format") || file.attribute<std::string>("/", "format") != kFormat) {
    throw Error(ErrorKind::checkpoint,
                concat(file.path(), " is an HDF5 file, but not a cifar_mpi checkpoint"));
  }
  const auto version = file.attribute<std::int64_t>("/", "version");
  if (version != kVersion) {
    throw Error(ErrorKind::checkpoint,
                concat(file.path(), " has checkpoint version ", version, "; this program reads ", kVersion));
  }
}

}  // namespace

void write_checkpoint(const std::string& path, const Checkpoint& checkpoint) {
  hdf5::Writer file;
  file.attribute("/", "format", kFormat);
  file.attribute("/", "version", kVersion);
  file.attribute("/", "step", checkpoint.progress.step);
  write_tensors(file, "/model", checkpoint.model);
  file.attribute("/model", "meaning", "weights after `step` updates");
  write_tensors(file, "/ema", checkpoint.ema);
  file.attribute("/ema", "meaning", "exponential moving averages of /model; what evaluation uses");
  file.group("/optimizer");
  file.attribute("/optimizer", "kind", "sgd");
  file.attribute("/optimizer", "step", checkpoint.progress.step);
  file.attribute("/optimizer", "meaning", "plain stochastic gradient descent keeps no state but the step");
  write_progress(file, checkpoint.progress);
  write_provenance(file, checkpoint.provenance);
  file.save(path);
}

Checkpoint read_checkpoint(const std::string& path) {
  const hdf5::Reader file(path, ErrorKind::checkpoint);
  require_format(file);
  Checkpoint checkpoint;
  checkpoint.model = read_tensors(file, "/model");
  checkpoint.ema = read_tensors(file, "/ema");
  Progress& progress = checkpoint.progress;
  progress.step = file.attribute<std::uint64_t>("/progress", "step");
  progress.epoch = file.attribute<double>("/progress", "epoch");
  progress.samples_seen = file.attribute<std::uint64_t>("/progress", "samples_seen");
  progress.seed = file.attribute<std::uint64_t>("/progress", "seed");
  progress.identity = from_lines(file.read_strings("/progress/identity"));
  progress.resolved = from_lines(file.read_strings("/progress/resolved"));
  Provenance& from = checkpoint.provenance;
  from.ranks = static_cast<int>(file.attribute<std::int64_t>("/provenance", "ranks"));
  from.global_batch = file.attribute<std::uint64_t>("/provenance", "global_batch");
  from.learning_rate = file.attribute<double>("/provenance", "learning_rate");
  from.learning_rate_rule = file.attribute<std::string>("/provenance", "learning_rate_rule");
  from.precision = file.attribute<std::string>("/provenance", "precision");
  from.backend = file.attribute<std::string>("/provenance", "backend");
  from.kernels = file.attribute<std::string>("/provenance", "kernels");
  from.git_revision = file.attribute<std::string>("/provenance", "git_revision");
  from.time = file.attribute<std::string>("/provenance", "time");
  if (file.has_attribute("/provenance", "test_accuracy")) {
    from.test_accuracy = file.attribute<double>("/provenance", "test_accuracy");
  }
  const std::vector<std::string> configuration = file.read_strings("/provenance/configuration");
  if (!configuration.empty()) from.configuration = configuration.front();
  return checkpoint;
}

std::vector<NamedTensor> match_tensors(std::vector<NamedTensor> tensors, const model::ParamTable& params,
                                       const std::string& path) {
  std::map<std::string, NamedTensor> by_name;
  for (NamedTensor& tensor : tensors) {
    std::string name = tensor.name;
    by_name.emplace(std::move(name), std::move(tensor));
  }
  std::vector<NamedTensor> matched;
  for (const model::Param& param : params) {
    auto found = by_name.extract(param.name);
    if (found.empty())
      throw Error(ErrorKind::checkpoint, concat(path, " lacks ", param.name, "; it is of another model"));
    if (found.mapped().shape != param.shape) {
      throw Error(ErrorKind::checkpoint,
                  concat(path, ": ", param.name, " is ", to_string(found.mapped().shape), " instead of ",
                         to_string(param.shape), "; it is of another model or dataset"));
    }
    matched.push_back(std::move(found.mapped()));
  }
  if (!by_name.empty()) {
    throw Error(ErrorKind::checkpoint, concat(path, " holds ", by_name.begin()->first,
                                              ", which this model does not have; it is of another model"));
  }
  return matched;
}

void require_same_run(const Identity& found, const Identity& wanted, const std::string& path) {
  const std::map<std::string, std::string> then(found.begin(), found.end());
  for (const auto& [name, value] : wanted) {
    const auto item = then.find(name);
    if (item != then.end() && item->second == value) continue;
    throw Error(ErrorKind::checkpoint,
                concat(path, " holds a run of another configuration: its ", name, " is ",
                       item == then.end() ? "not recorded" : item->second, ", this one's is ", value,
                       "; choose another --run-dir, or give the same options to resume"));
  }
}

std::string checkpoint_path(const std::string& run_dir, std::uint64_t step) {
  return concat(run_dir, "/checkpoints/step_", format("%09llu", static_cast<unsigned long long>(step)),
                ".h5");
}

std::vector<CheckpointFile> list_checkpoints(const std::string& run_dir) {
  std::vector<CheckpointFile> files;
  std::error_code error;
  for (fs::directory_iterator at(fs::path(run_dir) / "checkpoints", error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    unsigned long long step = 0;
    int used = 0;
    // %n is reached only when the ending matched too, so temporary files do not count.
    if (std::sscanf(name.c_str(), "step_%llu.h5%n", &step, &used) != 1 ||
        used != static_cast<int>(name.size()))
      continue;
    files.push_back({step, at->path().string()});
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return files;
}

void retire_checkpoints(const std::string& run_dir, int keep) {
  const std::vector<CheckpointFile> files = list_checkpoints(run_dir);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < files.size(); ++i) {
    std::error_code ignored;
    fs::remove(files[i].path, ignored);
  }
}

}  // namespace cifar_mpi::train
