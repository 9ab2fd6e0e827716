#include "cifar_mpi/model/param_table.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <functional>

#include "cifar_mpi/base/random.hpp"
#include "cifar_mpi/base/random_normals.hpp"

namespace cifar_mpi::model {
namespace {

bool is_trained(const Param& param) { return param.role == ParamRole::trained; }

/// Filters [k, k, in, out]: output o < in copies channel o at the middle of the window, if there are copies; the others are
/// uniform in ±1/√(k·k·in).
void fill_filters(const Param& param, std::uint64_t seed, bool copies, std::span<float> values) {
  const auto kernel = static_cast<std::size_t>(param.shape[0]),
             inputs = static_cast<std::size_t>(param.shape[2]),
             outputs = static_cast<std::size_t>(param.shape[3]);
  const std::size_t middle = (kernel - 1) / 2 * (kernel + 1);
  const float bound = 1.0f / std::sqrt(static_cast<float>(kernel * kernel * inputs));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t out = i % outputs, in = i / outputs % inputs, tap = i / outputs / inputs;
    const float uniform = uniform01(random4(seed, RandomPurpose::initial_value, i, param.seed_index)[0]);
    values[i] = bound * (2.0f * uniform - 1.0f);
    if (copies && out < inputs) values[i] = out == in && tap == middle ? 1.0f : 0.0f;
  }
}

}  // namespace

ParamTable make_param_table(const NetSpec& net) {
  ParamTable table;
  std::uint32_t seed_index = 0;
  for (const Operation& operation : net.operations) {
    for (const Param& param : operation.params) {
      table.push_back(param);
      table.back().seed_index = seed_index++;
    }
  }
  // Operations in reverse, each one's parameters in their own order.
  std::ranges::stable_sort(table, std::ranges::greater(), &Param::operation);
  std::ranges::stable_sort(table, {}, &Param::role);
  return table;
}

std::vector<std::size_t> params_of(const ParamTable& table, std::size_t operation) {
  std::vector<std::size_t> found;
  for (std::size_t p = 0; p < table.size(); ++p) {
    if (table[p].operation == operation) found.push_back(p);
  }
  std::ranges::stable_sort(
      found, [&](std::size_t a, std::size_t b) { return table[a].seed_index < table[b].seed_index; });
  return found;
}

std::size_t trained_params(const ParamTable& table) {
  return static_cast<std::size_t>(std::ranges::count_if(table, is_trained));
}

RateRole rate_role(const ParamTable& table, std::size_t p) {
  if (table[p].part != ParamPart::weights) return RateRole::vector;
  const auto has_weights_at = [&](auto beyond) {
    return std::ranges::any_of(table, [&](const Param& other) {
      return other.part == ParamPart::weights && beyond(other.operation, table[p].operation);
    });
  };
  const bool hidden = has_weights_at(std::less<>()) && has_weights_at(std::greater<>());
  return hidden ? RateRole::hidden_matrix : RateRole::ends;
}

std::int64_t param_count(const ParamTable& table) {
  std::int64_t count = 0;
  for (const Param& param : table) count += param.role == ParamRole::running ? 0 : param.shape.count();
  return count;
}

void fill_initial(const Param& param, std::uint64_t seed, std::span<float> values) {
  assert(static_cast<std::int64_t>(values.size()) == param.shape.count());
  if (param.init != ParamInit::normal) {
    fill_filters(param, seed, param.init == ParamInit::identity, values);
    return;
  }
  if (param.stddev == 0.0f) {
    std::ranges::fill(values, param.constant);
    return;
  }
  truncated_normals(seed, param.seed_index, values);
  for (float& value : values) value *= param.stddev;
}

}  // namespace cifar_mpi::model
