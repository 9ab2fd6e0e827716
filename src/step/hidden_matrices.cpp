#include "step/hidden_matrices.hpp"

#include <algorithm>
#include <iterator>
#include <span>
#include <stdexcept>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::step {
namespace {

bool is_muon(const Plan& plan) { return plan.config.optimizer.kind == optim::OptimizerKind::muon; }

bool is_hidden(const model::ParamTable& params, std::size_t p) {
  return params[p].role == model::ParamRole::trained &&
         model::rate_role(params, p) == model::RateRole::hidden_matrix;
}

/// The place of each logical element of a parameter in its span. Numbers go through the tower as two halves, each
/// exact in fp32, plus 1, because padding is 0.
std::vector<std::uint32_t> places_of(const lower::Tower& tower, std::size_t p, std::size_t values) {
  constexpr std::size_t kHalf = 1 << 16;
  const std::size_t floats = tower.layout().entries[p].floats;
  std::vector<float> logical(values), low(floats), high(floats);
  for (std::size_t i = 0; i < values; ++i) logical[i] = static_cast<float>(i % kHalf + 1);
  tower.from_logical(p, logical, low);
  for (std::size_t i = 0; i < values; ++i) logical[i] = static_cast<float>(i / kHalf);
  tower.from_logical(p, logical, high);
  std::vector<std::uint32_t> places(values);
  for (std::size_t at = 0; at < floats; ++at) {
    if (low[at] == 0.0f) continue;
    places[static_cast<std::size_t>(high[at]) * kHalf + static_cast<std::size_t>(low[at]) - 1] =
        static_cast<std::uint32_t>(at);
  }
  return places;
}

}  // namespace

void require_hidden_matrices(const evaluation::Network& network) {
  for (std::size_t p = 0; p < network.params.size(); ++p) {
    if (is_hidden(network.params, p)) return;
  }
  throw Error(ErrorKind::usage,
              concat("--optimizer muon: model ", network.net.name,
                     " has no trained weights between its first and its last layer, which are "
                     "what it is for; give --optimizer nesterov"));
}

void allocate_hidden(const Plan& plan, const Device& device, Blocks& blocks) {
  if (!is_muon(plan)) return;
  const model::ParamTable& params = plan.network.params;
  HiddenMatrices& hidden = blocks.hidden;
  std::vector<std::uint32_t> places;
  for (std::size_t p = 0; p < params.size(); ++p) {
    if (!is_hidden(params, p)) continue;
    const auto values = static_cast<std::size_t>(params[p].shape.count());
    const std::int64_t out = *std::prev(params[p].shape.end());
    const auto& entry = device.layout.entries[p];
    hidden.matrices.push_back(
        {params[p].name, entry.offset, entry.floats, params[p].shape.count() / out, out, nullptr});
    std::ranges::copy(places_of(*device.tower, p, values), std::back_inserter(places));
  }
  hidden.places = device.backend->allocate(places.size() * sizeof(std::uint32_t));
  device.backend->copy(hidden.places.data(), std::as_bytes(std::span(places)).data(), hidden.places.size());
  const std::uint32_t* next = hidden.places.as<const std::uint32_t>();
  for (engine::Matrix& matrix : hidden.matrices) {
    matrix.places = next;
    next += matrix.rest * matrix.out;
  }
  hidden.moves = device.backend->allocate(device.layout.trained_floats * sizeof(float));
  hidden.arena.emplace([&backend = *device.backend](std::size_t bytes) { return backend.allocate(bytes); });
}

model::ParamTable params_with_rates(const Plan& plan) {
  model::ParamTable params = plan.network.params;
  if (!is_muon(plan)) return params;
  const optim::OptimizerSpec& spec = plan.config.optimizer;
  for (std::size_t p = 0; p < params.size(); ++p) {
    const model::RateRole role = model::rate_role(params, p);
    if (params[p].role != model::ParamRole::trained || role == model::RateRole::hidden_matrix) continue;
    const double rate = role == model::RateRole::ends ? spec.ends_rate : spec.bias_rate;
    if (rate > 0.0) params[p].rate_factor = static_cast<float>(rate / plan.config.lr);
  }
  return params;
}

std::vector<engine::Task> matrix_tasks(const StepContext& context, const engine::UpdateBinding& update) {
  HiddenMatrices& hidden = context.blocks.hidden;
  std::vector<engine::Task> tasks;
  for (const engine::Matrix& matrix : hidden.matrices) {
    const std::size_t end = matrix.begin + matrix.floats;
    if (end <= update.begin || update.end <= matrix.begin) continue;
    if (matrix.begin < update.begin || update.end < end)
      throw std::logic_error(concat("an update has a part of ", matrix.name));
    hidden.arena->rewind();
    for (engine::Task& task : context.device.backend->matrix_tasks(update, matrix, *hidden.arena))
      tasks.push_back(std::move(task));
  }
  return tasks;
}

}  // namespace cifar_mpi::step
