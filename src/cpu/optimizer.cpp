#include "cpu/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "cpu/simd.hpp"

namespace cifar_mpi::cpu {
namespace {

/// Floats of a chunk: what one thread takes at a time, and what one partial sum covers. A constant, because
/// it affects bits.
constexpr std::size_t kChunk = 8192;
/// Chunks whose sums are held on the stack until they are added in order.
constexpr int kChunks = 256;
/// Independent partial sums inside a chunk; layouts are multiples of 16 floats.
constexpr std::size_t kLanes = 16;

/// Floats [begin, end) of the blocks, all of one parameter.
struct Chunk {
  std::size_t begin = 0;
  std::size_t end = 0;
  float decay = 0.0f;
  float rate_factor = 1.0f;
};

struct Blocks {
  float* params = nullptr;
  const float* grads = nullptr;
  float* ema = nullptr;
};

/// decay · Σ ½w².
struct DecaySum {
  [[gnu::always_inline]] static double run(const Chunk& chunk, const float* params) {
    double lanes[kLanes] = {};
    for (std::size_t i = chunk.begin; i < chunk.end; i += kLanes) {
      for (std::size_t j = 0; j < kLanes; ++j) {
        const double w = static_cast<double>(params[i + j]);
        lanes[j] += w * w;
      }
    }
    double sum = 0.0;
    for (const double lane : lanes) sum += lane;
    return 0.5 * static_cast<double>(chunk.decay) * sum;
  }
};

struct Update {
  [[gnu::always_inline]] static void run(const Chunk& chunk, const Blocks& blocks,
                                         const optim::UpdateRates& rates) {
    float* __restrict params = blocks.params;
    const float* __restrict grads = blocks.grads;
    float* __restrict ema = blocks.ema;
    const float rate = rates.learning_rate * chunk.rate_factor;
    const float share = rates.ema_share, decay = chunk.decay;
    for (std::size_t i = chunk.begin; i < chunk.end; ++i) {
      const float w = optim::updated_weight(params[i], grads[i], decay, rate);
      params[i] = w;
      ema[i] = optim::updated_ema(ema[i], w, share);
    }
  }
};

std::vector<Chunk> chunks_of(std::size_t begin, std::size_t end, const model::ParamTable& params,
                             const engine::ParamLayout& layout) {
  if (layout.entries.size() != params.size()) {
    throw std::logic_error(concat("update: ", params.size(), " parameters, but ", layout.entries.size(),
                                  " entries in the layout"));
  }
  std::vector<Chunk> chunks;
  std::size_t covered = begin;
  for (std::size_t p = 0; p < params.size(); ++p) {
    const std::size_t first = layout.entries[p].offset, last = first + layout.entries[p].floats;
    if (last <= begin || first >= end) continue;
    if (first != covered || last > end || first % kLanes != 0 || last % kLanes != 0) {
      throw std::logic_error(concat("update: [", begin, ", ", end, ") is not made of whole parameters; ",
                                    params[p].name, " lies at [", first, ", ", last, ")"));
    }
    covered = last;
    for (std::size_t i = first; i < last; i += kChunk) {
      chunks.push_back({i, std::min(i + kChunk, last), params[p].weight_decay, params[p].rate_factor});
    }
  }
  if (covered != end)
    throw std::logic_error(concat("update: [", covered, ", ", end, ") belongs to no parameter"));
  return chunks;
}

}  // namespace

engine::Task plan_update(const engine::UpdateBinding& binding, const model::ParamTable& params,
                         const engine::ParamLayout& layout) {
  const std::size_t floats = binding.end - binding.begin;
  const engine::Bytes weights = engine::bytes_of(binding.params + binding.begin, floats);
  const engine::Bytes ema = engine::bytes_of(binding.ema + binding.begin, floats);
  engine::Task task;
  task.name = concat("update ", binding.begin, "..", binding.end);
  task.reads = {weights, ema, engine::bytes_of(binding.grads + binding.begin, floats),
                engine::bytes_of(binding.control + engine::ControlLayout::loss_sum, 1),
                engine::bytes_of(binding.step, 1)};
  task.writes = {weights, ema, engine::bytes_of(binding.decay_sum, 1)};
  const auto sum_chunk = best_version<DecaySum>();
  const auto update_chunk = best_version<Update>();
  task.start = [binding, sum_chunk, update_chunk,
                chunks = chunks_of(binding.begin, binding.end, params, layout),
                rule = optim::Schedule(binding.schedule).rule()](engine::Lane&) {
    const bool apply = std::isfinite(binding.control[engine::ControlLayout::loss_sum]);
    const optim::UpdateRates rates =
        optim::update_rates(rule, binding.ema_decay, *binding.step, optim::HostMath{});
    const Blocks blocks{binding.params, binding.grads, binding.ema};
    double total = 0.0;
    for (std::size_t group = 0; group < chunks.size(); group += kChunks) {
      const int count = static_cast<int>(std::min<std::size_t>(kChunks, chunks.size() - group));
      double sums[kChunks];
#pragma omp parallel for schedule(static)
      for (int k = 0; k < count; ++k) {
        const Chunk& chunk = chunks[group + static_cast<std::size_t>(k)];
        sums[k] = chunk.decay != 0.0f ? sum_chunk(chunk, binding.params) : 0.0;
        if (apply) update_chunk(chunk, blocks, rates);
      }
      for (int k = 0; k < count; ++k) total += sums[k];
    }
    *binding.decay_sum = total;
  };
  return task;
}

}  // namespace cifar_mpi::cpu
