#include "step/hidden_matrices.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <span>
#include <stdexcept>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/comm/all_reduce_update.hpp"

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

/// Whether the task changes the weights or the momentum of the matrix, which every rank keeps.
bool changes_state(const engine::Task& task, const engine::UpdateBinding& update,
                   const engine::Matrix& matrix) {
  return std::ranges::any_of(task.writes, [&](const engine::Bytes& written) {
    return written.overlaps(engine::bytes_of(update.params + matrix.begin, matrix.floats)) ||
           written.overlaps(engine::bytes_of(update.states[0] + matrix.begin, matrix.floats));
  });
}

/// What a rank runs in place of a task of a matrix that another rank computes: nothing, or, where the task writes moves, a
/// copy of zeros. So one list of tasks describes a timeline of all ranks.
engine::Task task_of_others(const StepContext& context, const engine::Task& task,
                            const engine::Matrix& matrix) {
  std::byte* const moves = reinterpret_cast<std::byte*>(context.blocks.hidden.moves.data() + matrix.begin);
  const engine::Bytes summed{moves, matrix.floats * sizeof(float)};
  if (std::ranges::any_of(task.writes, [&](const auto& written) { return written.overlaps(summed); }))
    return context.device.backend->copy_task(task.name, {{moves, context.blocks.zeros.data(), summed.size}});
  engine::Task idle;
  idle.name = task.name;
  idle.start = [](engine::Lane&) {};
  return idle;
}

}  // namespace

void require_hidden_matrices(const evaluation::Network& network) {
  for (std::size_t p = 0; p < network.params.size(); ++p) {
    if (is_hidden(network.params, p)) return;
  }
  throw Error(ErrorKind::usage, "--optimizer muon: model ", network.net.name,
              " has no trained weights between its first and its last layer, which are what it is for; give "
              "--optimizer nesterov");
}

bool shares_matrices(const Plan& plan, const Device& device) {
  if (!is_muon(plan) || plan.config.update != comm::UpdateKind::all_reduce) return false;
  return comm::resolve_share(plan.config.share_matrices, plan.world, device.collectives.device);
}

std::vector<int> owners_of(const std::vector<engine::Matrix>& matrices, int ranks) {
  // Of an iteration's products, over 2: with n the smaller side, n²·(2·larger + n).
  const auto work = [&](std::size_t m) {
    const double rest = static_cast<double>(matrices[m].rest), out = static_cast<double>(matrices[m].out);
    const double n = std::min(rest, out);
    return n * n * (2.0 * std::max(rest, out) + n);
  };
  std::vector<std::size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), work);
  std::vector<double> load(static_cast<std::size_t>(ranks));
  std::vector<int> owners(matrices.size());
  for (const std::size_t m : order) {
    const auto least = std::ranges::min_element(load);
    *least += work(m);
    owners[m] = static_cast<int>(least - load.begin());
  }
  return owners;
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
  device.backend->copy(hidden.places.data(), places.data(), hidden.places.size());
  const std::uint32_t* next = hidden.places.as<const std::uint32_t>();
  for (engine::Matrix& matrix : hidden.matrices) {
    matrix.places = next;
    next += matrix.rest * matrix.out;
  }
  const std::span<float> sums = blocks.update->rank_sums();
  const std::size_t floats = device.layout.trained_floats;
  if (sums.size() > (plan.config.sync_batch_norm ? device.layout.running_floats : 0)) {
    hidden.moves = sums.first(floats);
    hidden.owners = owners_of(hidden.matrices, plan.world.size());
  } else {
    hidden.own_moves = device.backend->allocate(floats * sizeof(float));
    hidden.moves = hidden.own_moves.span<float>();
  }
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
  const int rank = context.plan.world.rank(), ranks = context.plan.world.size();
  std::vector<engine::Task> tasks;
  std::size_t first = update.end, last = update.begin;  // of the moves
  for (std::size_t m = 0; m < hidden.matrices.size(); ++m) {
    const engine::Matrix& matrix = hidden.matrices[m];
    const std::size_t end = matrix.begin + matrix.floats;
    if (end <= update.begin || update.end <= matrix.begin) continue;
    if (matrix.begin < update.begin || update.end < end)
      throw std::logic_error(concat("an update has a part of ", matrix.name));
    const bool mine = hidden.owners.empty() || hidden.owners[m] == rank;
    hidden.arena->rewind();
    for (engine::Task& task : context.device.backend->matrix_tasks(update, matrix, *hidden.arena)) {
      tasks.push_back(mine || changes_state(task, update, matrix) ? std::move(task)
                                                                  : task_of_others(context, task, matrix));
    }
    first = std::min(first, matrix.begin);
    last = std::max(last, end);
  }
  const bool sums = !hidden.owners.empty() && !context.update.rank_sums().empty();
  if (sums && first < last)
    tasks.push_back(engine::sum_over_ranks(concat("muon moves ", first, "..", last),
                                           {hidden.moves.data() + first, ranks}, last - first));
  return tasks;
}

}  // namespace cifar_mpi::step
