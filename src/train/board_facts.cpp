#include "train/board_facts.hpp"

#include <algorithm>
#include <span>
#include <variant>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/model/layer.hpp"
#include "cifar_mpi/optim/step_math.hpp"

namespace cifar_mpi::train {
namespace {

/// Σ w² over the span of a parameter; its padding is zero.
double square_sum(const SessionState& state, const engine::ParamLayout::Entry& entry) {
  constexpr std::size_t kPiece = std::size_t{1} << 16;  // floats; a copy of so many stays in the cache
  constexpr std::size_t kLanes = 16;                    // layouts are multiples of it
  const float* const weights = state.state[optim::StateRole::weights].as<const float>() + entry.offset;
  std::vector<float> piece(std::min(kPiece, entry.floats));
  double lanes[kLanes] = {};
  for (std::size_t at = 0; at < entry.floats; at += piece.size()) {
    const std::span<float> part = std::span(piece).first(std::min(piece.size(), entry.floats - at));
    state.backend->copy(reinterpret_cast<std::byte*>(part.data()),
                        reinterpret_cast<const std::byte*>(weights + at), part.size_bytes());
    for (std::size_t i = 0; i < part.size(); i += kLanes) {
      for (std::size_t j = 0; j < kLanes; ++j) {
        const double w = static_cast<double>(part[i + j]);
        lanes[j] += w * w;
      }
    }
  }
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

RunFingerprint hparams(const SessionState& state) {
  RunFingerprint chosen;
  for (const auto& [item, value] : state.progress.identity) {
    if (item == "model") chosen.emplace_back(item, value);
    if (item.starts_with("--")) chosen.emplace_back(item.substr(2), value);
  }
  for (const auto& setting : state.progress.resolved) {
    if (setting.first == "precision" || setting.first == "ranks") chosen.push_back(setting);
  }
  return chosen;
}

std::vector<report::WeightLoss> weight_losses(const SessionState& state) {
  std::vector<report::WeightLoss> losses;
  if (!optim::decays_by_loss(state.config.optimizer.kind)) return losses;
  const model::ParamTable& params = state.network.params;
  std::size_t operation = params.size();
  for (std::size_t p = trained_params(params); p-- > 0;) {  // the table stands in the order of backward
    if (params[p].weight_decay == 0.0f) continue;
    if (losses.empty() || params[p].operation != operation) {
      operation = params[p].operation;
      losses.push_back({state.network.net.operations[operation].name, 0.0});
    }
    losses.back().value +=
        0.5 * static_cast<double>(params[p].weight_decay) * square_sum(state, state.layout.entries[p]);
  }
  return losses;
}

std::string unseen_outputs(const SessionState& state) {
  constexpr std::size_t kMost = 8;  // named
  const std::vector<std::string> seen = state.tower->observed();
  std::string names;
  std::size_t count = 0;
  for (const model::Operation& operation : state.network.net.operations) {
    if (std::holds_alternative<model::Relu>(operation.layer) ||
        std::holds_alternative<model::SoftmaxCrossEntropy>(operation.layer) ||
        std::find(seen.begin(), seen.end(), operation.name) != seen.end())
      continue;
    if (++count <= kMost) names += concat(count == 1 ? "" : ", ", operation.name);
  }
  if (count == 0) return {};
  return concat("no histogram of the outputs of ", names,
                count > kMost ? concat(" and ", count - kMost, " more") : std::string(),
                ": a kernel hands them on to the next layer, they are in no memory as a whole");
}

double communicated_seconds(const SessionState& state) {
  const std::vector<double> seconds = state.step->task_seconds();
  double sum = -1.0;
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    if (state.step->program().tasks()[i].kind != engine::TaskKind::collective) continue;
    sum = std::max(sum, 0.0) + seconds[i];
  }
  return sum;
}

}  // namespace cifar_mpi::train
