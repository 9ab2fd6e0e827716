#include "cpu/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cifar_mpi/engine/step_tasks.hpp"
#include "cpu/parallel.hpp"
#include "cpu/simd.hpp"

namespace cifar_mpi::cpu {
namespace {

/// Floats of a chunk: the unit of work of a thread and of a partial sum. A constant, because it affects bits.
constexpr std::size_t kChunk = 8192;
/// Chunks whose sums are kept on the stack until they are added in order.
constexpr int kChunks = 256;
/// Independent partial sums inside a chunk; layouts are multiples of 16 floats.
constexpr std::size_t kLanes = 16;

struct Blocks {
  float* params = nullptr;
  const float* grads = nullptr;
  float* ema = nullptr;
  float* states[optim::kMostOptimizerRows] = {};
};

/// Σ x² of floats [begin, end).
struct SquareSum {
  [[gnu::always_inline]] static double run(const float* values, std::size_t begin, std::size_t end) {
    double lanes[kLanes] = {};
    for (std::size_t i = begin; i < end; i += kLanes) {
      for (std::size_t j = 0; j < kLanes; ++j) {
        const double x = static_cast<double>(values[i + j]);
        lanes[j] += x * x;
      }
    }
    double sum = 0.0;
    for (const double lane : lanes) sum += lane;
    return sum;
  }
};

/// Calls `sum_of(chunk)` for every chunk below `count`, on all threads; returns the sum of the results, in
/// order.
template <class SumOf>
double sum_chunks(std::size_t count, const SumOf& sum_of) {
  double total = 0.0;
  for (std::size_t group = 0; group < count; group += kChunks) {
    const int held = static_cast<int>(std::min<std::size_t>(kChunks, count - group));
    double sums[kChunks];
    parallel_for(held, [&](std::ptrdiff_t k) { sums[k] = sum_of(group + static_cast<std::size_t>(k)); });
    for (int k = 0; k < held; ++k) total += sums[k];
  }
  return total;
}

/// Without clipping there is no multiplication, because the compiler could fuse it and change bits.
template <class Rule, bool kClips>
struct Update {
  [[gnu::always_inline]] static void run(const engine::Segment& chunk, const Blocks& blocks,
                                         const optim::UpdateRates& given, float rate) {
    const optim::UpdateRates rates = given;  // a copy, which stores cannot alias
    float* __restrict params = blocks.params;
    const float* __restrict grads = blocks.grads;
    float* __restrict ema = blocks.ema;
    float* __restrict first = blocks.states[0];
    float* __restrict second = blocks.states[1];
    const float share = rates.ema_share, decay = chunk.decay;
    for (std::size_t i = chunk.begin; i < chunk.end; ++i) {
      float s = 0.0f, q = 0.0f;
      if constexpr (Rule::kStates > 0) s = first[i];
      if constexpr (Rule::kStates > 1) q = second[i];
      const float grad = kClips ? rates.clip * grads[i] : grads[i];
      const float w = Rule::apply(params[i], grad, decay, rate, rates, s, q, optim::HostMath{});
      params[i] = w;
      if constexpr (Rule::kStates > 0) first[i] = s;
      if constexpr (Rule::kStates > 1) second[i] = q;
      ema[i] = optim::updated_ema(ema[i], w, share);
    }
  }
};

using UpdateChunk = void (*)(const engine::Segment&, const Blocks&, const optim::UpdateRates&, float rate);

UpdateChunk version_of(optim::OptimizerKind kind, bool clips) {
  return optim::with_rule(kind, [&]<class Rule>(Rule) -> UpdateChunk {
    return clips ? best_version<Update<Rule, true>>() : best_version<Update<Rule, false>>();
  });
}

/// Parameters of [begin, end), cut into chunks.
std::vector<engine::Segment> chunks_of(std::size_t begin, std::size_t end, const model::ParamTable& params,
                                       const engine::ParamLayout& layout) {
  std::vector<engine::Segment> chunks;
  for (const engine::Segment& s : engine::segments_of(begin, end, params, layout)) {
    for (std::size_t i = s.begin; i < s.end; i += kChunk)
      chunks.push_back({i, std::min(i + kChunk, s.end), s.decay, s.rate_factor, s.steps});
  }
  return chunks;
}

}  // namespace

engine::Task plan_update(const engine::UpdateBinding& binding, const model::ParamTable& params,
                         const engine::ParamLayout& layout) {
  engine::Task task = engine::declare_update(binding);
  const bool clips = binding.gradient_norm != nullptr;
  const auto update_chunk = version_of(binding.optimizer.kind, clips);
  task.start = [binding, squares = best_version<SquareSum>(), update_chunk, clips,
                sums_decay = optim::decays_by_loss(binding.optimizer.kind),
                chunks = chunks_of(binding.begin, binding.end, params, layout),
                rule = optim::Schedule(binding.schedule).rule()](engine::Lane&) {
    const bool apply =
        binding.average_steps == 0 || (std::isfinite(binding.control[engine::ControlLayout::loss_sum]) &&
                                       (!clips || std::isfinite(*binding.gradient_norm)));
    optim::UpdateRates rates = optim::update_rates(rule, binding.optimizer, binding.ema_decay, *binding.step,
                                                   optim::HostMath{}, binding.average_steps);
    if (binding.divides_by_staleness)
      rates.learning_rate /= std::max(1.0f, binding.control[engine::ControlLayout::staleness]);
    if (clips) rates.clip = optim::clip_factor(binding.clip_norm, *binding.gradient_norm);
    const Blocks blocks{binding.params, binding.grads, binding.ema, {binding.states[0], binding.states[1]}};
    *binding.decay_sum = sum_chunks(chunks.size(), [&](std::size_t c) {
      const engine::Segment& chunk = chunks[c];
      const bool sums = sums_decay && chunk.decay != 0.0f;
      const double sum =
          sums ? 0.5 * static_cast<double>(chunk.decay) * squares(binding.params, chunk.begin, chunk.end)
               : 0.0;
      if (apply)
        update_chunk(chunk, blocks, rates, engine::rate_of(chunk, rates.learning_rate, *binding.step));
      return sum;
    });
  };
  return task;
}

engine::Task plan_gradient_norm(const engine::GradientNormBinding& binding) {
  engine::Task task = engine::declare_gradient_norm(binding);
  task.start = [binding, squares = best_version<SquareSum>()](engine::Lane&) {
    const std::size_t chunks = (binding.floats + kChunk - 1) / kChunk;
    *binding.norm = std::sqrt(sum_chunks(chunks, [&](std::size_t c) {
      return squares(binding.grads, c * kChunk, std::min((c + 1) * kChunk, binding.floats));
    }));
  };
  return task;
}

engine::Task plan_running(const engine::RunningBinding& binding, const model::ParamTable& params,
                          const engine::ParamLayout& layout) {
  const std::size_t begin = layout.running_begin();
  std::vector<float> shares;  // by float
  for (const engine::Segment& s : engine::segments_of(begin, layout.floats, params, layout))
    shares.resize(s.end - begin, s.rate_factor);
  engine::Task task = engine::declare_running(binding, layout);
  task.start = [binding, begin, batch = binding.control + binding.control_layout.statistics(),
                shares = std::move(shares)](engine::Lane&) {
    if (!std::isfinite(binding.control[engine::ControlLayout::loss_sum])) return;
    if (binding.gradient_norm != nullptr && !std::isfinite(*binding.gradient_norm)) return;
    const auto ema_share =
        static_cast<float>(1.0 - optim::ema_decay(binding.ema_decay, *binding.step, binding.average_steps));
    float* const now = binding.params + begin;
    float* const average = binding.ema + begin;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      now[i] = optim::updated_running(now[i], batch[i], shares[i]);
      average[i] = optim::updated_ema(average[i], now[i], ema_share);
    }
  };
  return task;
}

}  // namespace cifar_mpi::cpu
