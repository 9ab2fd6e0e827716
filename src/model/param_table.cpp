#include "cifar_mpi/model/param_table.hpp"

#include <algorithm>
#include <cassert>

#include "cifar_mpi/base/random.hpp"

namespace cifar_mpi::model {
namespace {

/// Appends biases, then weights of one layer; the table is turned round at the end.
template <class L>
void append_parameters(const L& layer, std::size_t operation, const Shape& weights, const char* dims,
                       ParamTable& table) {
  const auto next = static_cast<std::uint32_t>(table.size());
  const ParamRole role = layer.frozen ? ParamRole::frozen : ParamRole::trained;
  table.push_back({.name = layer.name + "/biases",
                   .shape = {weights[weights.rank() - 1]},
                   .dims = "[out]",
                   .operation = operation,
                   .part = ParamPart::biases,
                   .role = role,
                   .constant = layer.bias,
                   .rate_factor = layer.rate_factor,
                   .seed_index = next + 1});
  table.push_back({.name = layer.name + "/weights",
                   .shape = weights,
                   .dims = dims,
                   .operation = operation,
                   .part = ParamPart::weights,
                   .role = role,
                   .stddev = layer.weight_stddev,
                   .weight_decay = layer.weight_decay,
                   .rate_factor = layer.rate_factor,
                   .seed_index = next});
}

bool is_trained(const Param& param) { return param.role == ParamRole::trained; }

}  // namespace

ParamTable make_param_table(const NetSpec& net) {
  ParamTable table;
  for (std::size_t i = 0; i < net.operations.size(); ++i) {
    const Extent in = net.input_of(i);
    std::visit(Overloaded{[&](const Conv2d& layer) {
                            append_parameters(layer, i,
                                              {layer.kernel, layer.kernel, in.channels, layer.out_channels},
                                              "[height, width, in, out]", table);
                          },
                          [&](const Linear& layer) {
                            append_parameters(layer, i, {in.count(), layer.outputs}, "[in, out]", table);
                          },
                          [](const Relu&) {}, [](const MaxPool&) {}, [](const LocalResponseNorm&) {},
                          [](const Add&) {}, [](const SoftmaxCrossEntropy&) {}},
               net.operations[i].layer);
  }
  std::reverse(table.begin(), table.end());
  std::stable_partition(table.begin(), table.end(), is_trained);
  return table;
}

std::vector<std::size_t> params_of(const ParamTable& table, std::size_t operation) {
  std::vector<std::size_t> found;
  for (std::size_t p = 0; p < table.size(); ++p) {
    if (table[p].operation == operation) found.push_back(p);
  }
  return found;  // weights stand before biases
}

std::size_t trained_params(const ParamTable& table) {
  return static_cast<std::size_t>(std::count_if(table.begin(), table.end(), is_trained));
}

std::int64_t param_count(const ParamTable& table) {
  std::int64_t count = 0;
  for (const Param& param : table) count += param.shape.count();
  return count;
}

void fill_initial(const Param& param, std::uint64_t seed, std::span<float> values) {
  assert(static_cast<std::int64_t>(values.size()) == param.shape.count());
  if (param.stddev == 0.0f) {
    std::fill(values.begin(), values.end(), param.constant);
    return;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = param.stddev * truncated_normal(seed, param.seed_index, i);
  }
}

}  // namespace cifar_mpi::model
