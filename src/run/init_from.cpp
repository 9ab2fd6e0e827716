#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "run/resume.hpp"

namespace cifar_mpi::run {
namespace {

using TensorsByName = std::map<std::string, NamedTensor, std::less<>>;

/// The network of the checkpoint, if it is recorded.
std::string advice(const RunFingerprint& identity) {
  const std::string* const model = find_item(identity, "model");
  const std::string* const input = find_item(identity, "network input");
  return concat("; give the --model and --input-size of that checkpoint",
                model ? " (" + *model : std::string(), model && input ? ", " + *input : std::string(),
                model ? ")" : "", ", or choose another");
}

/// Compares the tensors of a run's network with those of the file. They may differ in the number of classes;
/// throws for any other difference.
class Comparison {
 public:
  Comparison(const std::string& path, const RunFingerprint& identity) : path_(path), identity_(identity) {}

  bool same_classes(const model::Param& param, const TensorsByName& tensors, bool of_classifier) const {
    const auto found = tensors.find(param.name);
    const bool running = param.role == model::ParamRole::running;
    if (found == tensors.end() || found->second.running != running)
      refuse(param.name, "missing", to_string(param.shape));
    const Shape& there = found->second.shape;
    if (there == param.shape) return true;
    const int last = param.shape.rank() - 1;
    const bool only_classes = of_classifier && there.rank() == param.shape.rank() &&
                              std::equal(there.begin(), there.begin() + last, param.shape.begin());
    if (!only_classes) refuse(param.name, to_string(there), to_string(param.shape));
    return false;
  }

  [[noreturn]] void refuse(const std::string& name, const std::string& there, const std::string& here) const {
    throw Error(ErrorKind::checkpoint, "cannot start from a network of other shapes: ", name, " of ", path_,
                " is ", there, ", this run's is ", here, advice(identity_));
  }

 private:
  const std::string& path_;
  const RunFingerprint& identity_;
};

std::vector<std::size_t> in_forward_order(const model::ParamTable& params) {
  std::vector<std::size_t> order(params.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, [&](std::size_t a, std::size_t b) { return params[a].seed_index < params[b].seed_index; });
  return order;
}

std::string describe(const std::string& path, const Checkpoint& source) {
  std::string text = concat(std::filesystem::path(path).filename().string(), ", step ", source.progress.step);
  if (source.provenance.test_accuracy)
    text += fmt::format(", test accuracy {:.2f} %", 100.0 * *source.provenance.test_accuracy);
  return text + fmt::format(", content hash {:016x}", content_hash(source));
}

}  // namespace

std::string initialize_from(const std::string& asked, const model::ParamTable& params,
                            std::string_view classifier, std::vector<NamedTensor>& initial, const Log& log) {
  auto [path, source] = read_asked_checkpoint(asked, log);
  std::string told = describe(path, source);
  TensorsByName tensors;
  for (NamedTensor& tensor : source.state[optim::StateRole::average]) {
    std::string name = tensor.name;
    tensors.emplace(std::move(name), std::move(tensor));
  }

  const Comparison comparison(path, source.progress.identity);
  const auto in_classifier = [&](const model::Param& param) {
    return !classifier.empty() && param.name.starts_with(concat(classifier, '/'));
  };
  bool new_classifier = false;
  for (const std::size_t p : in_forward_order(params)) {
    if (!comparison.same_classes(params[p], tensors, in_classifier(params[p]))) new_classifier = true;
  }
  for (const auto& [name, tensor] : tensors) {
    const bool known =
        std::ranges::any_of(params, [&](const model::Param& param) { return param.name == name; });
    if (!known) comparison.refuse(name, to_string(tensor.shape), "missing");
  }

  for (std::size_t p = 0; p < params.size(); ++p) {
    if (new_classifier && in_classifier(params[p])) continue;
    initial[p].values = std::move(tensors.find(params[p].name)->second.values);
  }
  if (new_classifier) told += concat("; ", classifier, " is new, for another number of classes");
  return told;
}

}  // namespace cifar_mpi::run
