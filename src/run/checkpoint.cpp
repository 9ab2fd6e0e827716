#include "cifar_mpi/run/checkpoint.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <span>
#include <string_view>

#include "cifar_mpi/base/hash.hpp"
#include "cifar_mpi/base/parse_number.hpp"
#include "cifar_mpi/base/text.hpp"
#include "hdf5/hdf5.hpp"

namespace cifar_mpi::run {
namespace {

constexpr const char* kFormat = "cifar_mpi checkpoint";
constexpr std::int64_t kVersion = 3;
constexpr std::int64_t kOldestVersion = 2;  ///< has no optimizer but sgd, which is the same in both
constexpr const char* kRunningMeaning =
    "means and variances that BatchNorm has seen, which evaluation uses with the weights of the same average";
constexpr std::string_view kSeparator = " = ";
constexpr const char* kBatches = "/progress/batches";
constexpr const char* kProvenance = "/provenance";

std::vector<std::string> as_lines(const RunFingerprint& items) {
  std::vector<std::string> lines;
  for (const auto& [name, value] : items) lines.push_back(concat(name, kSeparator, value));
  return lines;
}

RunFingerprint from_lines(const std::vector<std::string>& lines, const std::string& path) {
  RunFingerprint items;
  for (const std::string& line : lines) {
    // They are sent to the other ranks, one per line.
    if (line.find_first_of("\r\n") != std::string::npos)
      throw Error(ErrorKind::checkpoint, path, " is damaged: a setting in it has a line break");
    const std::size_t at = std::min(line.find(kSeparator), line.size());
    items.emplace_back(line.substr(0, at), line.substr(std::min(at + kSeparator.size(), line.size())));
  }
  return items;
}

/// The bytes of a number as the file holds it: 8, little-endian.
template <class T>
std::string_view bytes_of(const T& value) {
  static_assert(sizeof(T) == 8 && std::endian::native == std::endian::little);
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
std::string_view bytes_of(const std::string& value) { return value; }

/// Writes the compared groups to a file, or only hashes them, as `content_hash` defines. The texts are part
/// of the hash: if one changed, files with the old one would be refused as damaged.
class Content {
 public:
  explicit Content(hdf5::Writer* file) : file_(file) {}

  void group(const std::string& path) {
    if (file_ != nullptr) file_->group(path);
  }
  template <class T>
  void attribute(const std::string& object, const std::string& name, const T& value) {
    if (file_ != nullptr) file_->attribute(object, name, value);
    note(concat(object, '@', name), bytes_of(value));
  }
  void text(const std::string& object, const std::string& name, const std::string& value) {
    attribute(object, name, value);
  }
  void tensor(const std::string& object, const NamedTensor& tensor) {
    if (file_ != nullptr) {
      file_->write(object, hdf5::Dims(tensor.shape.begin(), tensor.shape.end()), tensor.values);
    }
    const auto bytes = std::as_bytes(std::span(tensor.values));
    note(object, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    attribute(object, "dims", tensor.dims);
  }
  void lines(const std::string& object, const std::vector<std::string>& values) {
    if (file_ != nullptr) file_->write_strings(object, values);
    std::string all;
    for (const std::string& value : values) all.append(value).append("\n");
    note(object, all);
  }

  std::uint64_t hash() const {
    std::vector<std::uint64_t> list;
    for (const auto& [key, value] : hashes_) {
      list.push_back(hash_bytes(std::as_bytes(std::span(key))));
      list.push_back(value);
    }
    return hash_bytes(std::as_bytes(std::span(list)));
  }

 private:
  void note(const std::string& key, std::string_view value) {
    hashes_[key] = hash_bytes(std::as_bytes(std::span(value)));
  }

  hdf5::Writer* file_;
  std::map<std::string, std::uint64_t> hashes_;
};

/// Writes either the running statistics, if any, or the other tensors.
void put_tensors(Content& content, const char* group, const char* meaning,
                 const std::vector<NamedTensor>& tensors, bool running) {
  const auto wanted = [&](const NamedTensor& tensor) { return tensor.running == running; };
  if (running && std::ranges::none_of(tensors, wanted)) return;
  content.group(group);
  // In forward order for the reader; the table has the order in which backward finishes.
  for (auto tensor = tensors.rbegin(); tensor != tensors.rend(); ++tensor) {
    if (wanted(*tensor)) content.tensor(concat(group, '/', tensor->name), *tensor);
  }
  content.text(group, "meaning", meaning);
}

void put_progress(Content& content, const Progress& progress) {
  const std::string group = "/progress";
  content.group(group);
  content.attribute(group, "step", progress.step);
  content.attribute(group, "epoch", progress.epoch);
  content.attribute(group, "samples_seen", progress.samples_seen);
  content.attribute(group, "seed", progress.seed);
  if (!progress.batches.empty()) {
    std::vector<std::string> batches;
    for (const std::uint64_t count : progress.batches) batches.push_back(std::to_string(count));
    content.lines(kBatches, batches);
    content.text(kBatches, "meaning", "batches that each worker has computed; its samples go on from there");
  }
  content.lines("/progress/identity", as_lines(progress.identity));
  content.text("/progress/identity", "meaning", "what makes a run this run; must be equal on resume");
  content.lines("/progress/resolved", as_lines(progress.resolved));
  content.text("/progress/resolved", "meaning", "chosen at start, affects bits; taken over on resume");
}

std::vector<optim::StateRow> rows_of(const Checkpoint& checkpoint) {
  return optim::state_rows(checkpoint.optimizer.kind, checkpoint.outer_momentum, checkpoint.slow);
}

/// All groups but /provenance; their hash.
std::uint64_t put_content(hdf5::Writer* file, const Checkpoint& checkpoint) {
  Content content(file);
  const optim::OptimizerKind optimizer = checkpoint.optimizer.kind;
  for (const optim::StateRow& row : rows_of(checkpoint)) {
    const std::vector<NamedTensor>& tensors = checkpoint.state[row.role];
    put_tensors(content, row.group, row.meaning, tensors, false);
    if (row.running != nullptr) put_tensors(content, row.running, kRunningMeaning, tensors, true);
  }
  content.group("/optimizer");
  content.text("/optimizer", "kind", std::string(to_string(optimizer)));
  content.attribute("/optimizer", "step", checkpoint.progress.step);
  for (const auto& [name, value] : optim::numbers_of(checkpoint.optimizer)) {
    content.attribute("/optimizer", name, value);
  }
  content.text("/optimizer", "meaning", std::string(optim::formula(optimizer)));
  put_progress(content, checkpoint.progress);
  return content.hash();
}

std::string hash_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

/// Texts that every file has, and those it has unless they are empty.
using Text = std::pair<const char*, std::string Provenance::*>;
constexpr Text kTexts[] = {{"learning_rate_rule", &Provenance::learning_rate_rule},
                           {"precision", &Provenance::precision},
                           {"backend", &Provenance::backend},
                           {"kernels", &Provenance::kernels},
                           {"git_revision", &Provenance::git_revision},
                           {"time", &Provenance::time}};
constexpr Text kTextsIfAny[] = {{"self_check", &Provenance::self_check},
                                {"initialized_from", &Provenance::initialized_from},
                                {"changes", &Provenance::changes}};

void write_provenance(hdf5::Writer& file, const Provenance& from) {
  const char* const group = kProvenance;
  file.group(group);
  file.attribute(group, "ranks", static_cast<std::int64_t>(from.ranks));
  file.attribute(group, "global_batch", from.global_batch);
  file.attribute(group, "learning_rate", from.learning_rate);
  for (const auto& [name, text] : kTexts) file.attribute(group, name, from.*text);
  if (from.test_accuracy) file.attribute(group, "test_accuracy", *from.test_accuracy);
  file.attribute(group, "views", static_cast<std::int64_t>(from.views));
  for (const auto& [name, text] : kTextsIfAny)
    if (!(from.*text).empty()) file.attribute(group, name, from.*text);
  file.write_strings("/provenance/configuration", {from.configuration});
}

/// 0: unknown, as in older files, which may compare with any.
int read_views(const hdf5::Reader& file) {
  if (!file.has_attribute(kProvenance, "views")) return 0;
  return static_cast<int>(std::clamp<std::int64_t>(file.attribute<std::int64_t>(kProvenance, "views"), 0,
                                                   std::numeric_limits<int>::max()));
}

/// Appends the tensors of a group.
void read_tensors(const hdf5::Reader& file, const std::string& group, bool running,
                  std::vector<NamedTensor>& tensors) {
  for (const std::string& layer : file.members(group)) {
    for (const std::string& part : file.members(concat(group, '/', layer))) {
      const std::string object = concat(group, '/', layer, '/', part);
      NamedTensor tensor;
      tensor.running = running;
      tensor.name = concat(layer, '/', part);
      const hdf5::Dims dims = file.dims(object);
      if (dims.size() > 4)
        throw Error(ErrorKind::checkpoint, file.path(), ": ", object, " has more than 4 dimensions");
      for (const std::uint64_t d : dims) tensor.shape.append(static_cast<std::int64_t>(d));
      tensor.dims = file.attribute<std::string>(object, "dims");
      tensor.values = file.read<float>(object);
      tensors.push_back(std::move(tensor));
    }
  }
}

void require_format(const hdf5::Reader& file) {
  if (!file.has_format(kFormat)) {
    throw Error(ErrorKind::checkpoint, file.path(), " is an HDF5 file, but not a cifar_mpi checkpoint");
  }
  const auto version = file.attribute<std::int64_t>("/", "version");
  if (version < kOldestVersion || version > kVersion) {
    throw Error(ErrorKind::checkpoint, file.path(), " has checkpoint version ", version,
                "; this program reads ", kOldestVersion, " to ", kVersion);
  }
}

/// A whole number that an attribute holds as a float.
int read_count(const hdf5::Reader& file, const char* group, const char* name) {
  const auto value = file.attribute<double>(group, name);
  if (!(value >= 0.0 && value <= std::numeric_limits<int>::max()) || value != std::floor(value)) {
    throw Error(ErrorKind::checkpoint, file.path(), " is damaged: ", name, " of ", group, " is ", value,
                ", which is not a number of steps");
  }
  return static_cast<int>(value);
}

optim::OptimizerSpec read_optimizer(const hdf5::Reader& file) {
  const char* const group = "/optimizer";
  const auto name = file.attribute<std::string>(group, "kind");
  const auto kind = find_name<optim::OptimizerKind>(name);
  if (!kind) {
    throw Error(ErrorKind::checkpoint, file.path(), " was trained with the optimizer ", name,
                ", which this program does not have");
  }
  optim::OptimizerSpec spec;
  spec.kind = *kind;
  for (auto [number, value] :
       {std::pair{"momentum", &spec.momentum}, std::pair{"beta1", &spec.beta1},
        std::pair{"beta2", &spec.beta2}, std::pair{"eps", &spec.eps},
        std::pair{"muon-momentum", &spec.muon_momentum}, std::pair{"bias-lr", &spec.bias_rate},
        std::pair{"ends-lr", &spec.ends_rate}}) {
    if (file.has_attribute(group, number)) *value = file.attribute<double>(group, number);
  }
  constexpr const char* kNormalize = "muon-normalize";
  if (file.has_attribute(group, kNormalize)) spec.normalize_every = read_count(file, group, kNormalize);
  return spec;
}

std::vector<std::uint64_t> read_batches(const hdf5::Reader& file) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 53;  // the largest number that ranks exchange exactly
  std::vector<std::uint64_t> batches;
  if (!file.has(kBatches)) return batches;
  for (const std::string& line : file.read_strings(kBatches)) {
    const auto count = parse_number<std::uint64_t>(line);
    if (!count || *count > kMost) {
      throw Error(ErrorKind::checkpoint, file.path(), " is damaged: ", kBatches, " holds \"", line,
                  "\", which is not a number of batches");
    }
    batches.push_back(*count);
  }
  return batches;
}

/// Requires the parts that every run has, because the hash also matches a file written without them.
void require_complete(const Checkpoint& checkpoint, const std::string& path) {
  const auto require = [&](bool present, const char* object) {
    if (!present) throw Error(ErrorKind::checkpoint, path, " is damaged: its ", object, " is empty");
  };
  for (const optim::StateRow& row : rows_of(checkpoint)) {
    require(!checkpoint.state[row.role].empty(), row.group);
  }
  require(!checkpoint.progress.identity.empty(), "/progress/identity");
}

}  // namespace

NamedTensor zero_tensor(const model::Param& param) {
  return {param.name, param.shape, param.dims,
          std::vector<float>(static_cast<std::size_t>(param.shape.count())),
          param.role == model::ParamRole::running};
}

StateTensors initial_state(const std::vector<optim::StateRow>& rows,
                           const std::vector<NamedTensor>& initial) {
  StateTensors state;
  for (const optim::StateRow& row : rows) {
    if (!row.from_zero) {
      state[row.role] = initial;
      continue;
    }
    for (const NamedTensor& tensor : initial) {
      if (tensor.running) continue;
      state[row.role].push_back(
          {tensor.name, tensor.shape, tensor.dims, std::vector<float>(tensor.values.size()), false});
    }
  }
  return state;
}

std::uint64_t content_hash(const Checkpoint& checkpoint) { return put_content(nullptr, checkpoint); }

void write_checkpoint(const DirectoryEntry& target, const Checkpoint& checkpoint) {
  hdf5::Writer file(kFormat, kVersion);
  file.attribute("/", "step", checkpoint.progress.step);
  file.attribute("/", "content_hash", hash_text(put_content(&file, checkpoint)));
  write_provenance(file, checkpoint.provenance);
  file.save(target);
}

void require_checkpoint(const InputFile& named) {
  bool is_one = false;
  try {
    const hdf5::Reader file(named, ErrorKind::checkpoint);
    is_one = file.has_format(kFormat);
    require_format(file);
  } catch (const Error& error) {
    constexpr const char* kRemedy = "; name a run directory that has a checkpoint, or the file of one";
    throw Error(error.kind(), error.what(), is_one ? "" : kRemedy);
  }
}

Checkpoint read_checkpoint(const InputFile& opened) {
  const hdf5::Reader file(opened, ErrorKind::checkpoint);
  const std::string& path = file.path();
  require_format(file);
  Checkpoint checkpoint;
  checkpoint.optimizer = read_optimizer(file);
  checkpoint.outer_momentum = file.has("/outer_momentum");
  checkpoint.slow = file.has("/slow");
  for (const optim::StateRow& row : rows_of(checkpoint)) {
    std::vector<NamedTensor>& tensors = checkpoint.state[row.role];
    read_tensors(file, row.group, false, tensors);
    if (row.running != nullptr && file.has(row.running)) read_tensors(file, row.running, true, tensors);
  }
  Progress& progress = checkpoint.progress;
  progress.step = file.attribute<std::uint64_t>("/progress", "step");
  progress.epoch = file.attribute<double>("/progress", "epoch");
  progress.samples_seen = file.attribute<std::uint64_t>("/progress", "samples_seen");
  progress.seed = file.attribute<std::uint64_t>("/progress", "seed");
  progress.batches = read_batches(file);
  progress.identity = from_lines(file.read_strings("/progress/identity"), path);
  progress.resolved = from_lines(file.read_strings("/progress/resolved"), path);
  Provenance& from = checkpoint.provenance;
  from.ranks = static_cast<int>(std::clamp<std::int64_t>(file.attribute<std::int64_t>(kProvenance, "ranks"),
                                                         0, std::numeric_limits<int>::max()));
  from.global_batch = file.attribute<std::uint64_t>(kProvenance, "global_batch");
  from.learning_rate = file.attribute<double>(kProvenance, "learning_rate");
  for (const auto& [name, text] : kTexts) from.*text = file.attribute<std::string>(kProvenance, name);
  if (file.has_attribute(kProvenance, "test_accuracy")) {
    from.test_accuracy = file.attribute<double>(kProvenance, "test_accuracy");
  }
  from.views = read_views(file);
  for (const auto& [name, text] : kTextsIfAny)
    if (file.has_attribute(kProvenance, name)) from.*text = file.attribute<std::string>(kProvenance, name);
  const std::vector<std::string> configuration = file.read_strings("/provenance/configuration");
  if (!configuration.empty()) from.configuration = configuration.front();
  const auto written = file.attribute<std::string>("/", "content_hash");
  if (const std::string found = hash_text(content_hash(checkpoint)); found != written) {
    throw Error(ErrorKind::checkpoint, path, " is damaged: its content has the hash ", found, " instead of ",
                written);
  }
  require_complete(checkpoint, path);
  return checkpoint;
}

std::optional<double> recorded_test_accuracy(const InputFile& opened, int views) try {
  const hdf5::Reader file(opened, ErrorKind::checkpoint);
  if (!file.has_attribute(kProvenance, "test_accuracy")) return std::nullopt;
  if (const int recorded = read_views(file); views > 0 && recorded > 0 && recorded != views)
    return std::nullopt;
  return file.attribute<double>(kProvenance, "test_accuracy");
} catch (const Error&) {
  return std::nullopt;
}

std::vector<NamedTensor> match_tensors(std::vector<NamedTensor> tensors, const model::ParamTable& params,
                                       const std::string& path, bool with_running) {
  std::map<std::string, NamedTensor> by_name;
  for (NamedTensor& tensor : tensors) {
    std::string name = tensor.name;
    by_name.emplace(std::move(name), std::move(tensor));
  }
  std::vector<NamedTensor> matched;
  for (const model::Param& param : params) {
    const bool running = param.role == model::ParamRole::running;
    if (running && !with_running) continue;
    auto found = by_name.extract(param.name);
    if (found.empty() || found.mapped().running != running)
      throw Error(ErrorKind::checkpoint, path, " lacks ", param.name, "; it is of another model");
    if (found.mapped().shape != param.shape) {
      throw Error(ErrorKind::checkpoint, path, ": ", param.name, " is ", to_string(found.mapped().shape),
                  " instead of ", to_string(param.shape), "; it is of another model or dataset");
    }
    matched.push_back(std::move(found.mapped()));
  }
  if (!by_name.empty()) {
    throw Error(ErrorKind::checkpoint, path, " holds ", by_name.begin()->first,
                ", which this model does not have; it is of another model");
  }
  return matched;
}

}  // namespace cifar_mpi::run
