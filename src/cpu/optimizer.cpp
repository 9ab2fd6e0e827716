#include "cpu/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/engine/step_tasks.hpp"
#include "cpu/dnnl.hpp"
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
      chunks.push_back({i, std::min(i + kChunk, s.end), s.decay, s.rate_factor, s.steps, s.hidden_matrix});
  }
  return chunks;
}

/// Whether the update of this step applies; it does not if the loss or the gradient's norm is not finite.
bool applies(const engine::UpdateBinding& binding) {
  return binding.average_steps == 0 ||
         (std::isfinite(binding.control[engine::ControlLayout::loss_sum]) &&
          (binding.gradient_norm == nullptr || std::isfinite(*binding.gradient_norm)));
}

}  // namespace

engine::Task plan_update(const engine::UpdateBinding& binding, const model::ParamTable& params,
                         const engine::ParamLayout& layout) {
  engine::Task task = engine::declare_update(binding);
  const bool clips = binding.gradient_norm != nullptr;
  const auto update_chunk = version_of(binding.optimizer.kind, clips);
  task.start = [binding, squares = best_version<SquareSum>(), update_chunk, clips,
                move_chunk = version_of(optim::OptimizerKind::sgd, false),
                sums_decay = optim::decays_by_loss(binding.optimizer.kind),
                chunks = chunks_of(binding.begin, binding.end, params, layout),
                rule = optim::Schedule(binding.schedule).rule()](engine::Lane&) {
    const bool apply = applies(binding);
    optim::UpdateRates rates = optim::update_rates(rule, binding.optimizer, binding.average, *binding.step,
                                                   optim::HostMath{}, binding.average_steps);
    if (binding.divides_by_staleness)
      rates.learning_rate /= std::max(1.0f, binding.control[engine::ControlLayout::staleness]);
    if (clips) rates.clip = optim::clip_factor(binding.clip_norm, *binding.gradient_norm);
    const Blocks blocks{binding.params, binding.grads, binding.ema, {binding.states[0], binding.states[1]}};
    const Blocks moving{binding.params, binding.moves, binding.ema, {}};
    *binding.decay_sum = sum_chunks(chunks.size(), [&](std::size_t c) {
      const engine::Segment& chunk = chunks[c];
      const bool moves = binding.moves != nullptr && chunk.hidden_matrix;
      const bool sums = sums_decay && !moves && chunk.decay != 0.0f;
      const double sum =
          sums ? 0.5 * static_cast<double>(chunk.decay) * squares(binding.params, chunk.begin, chunk.end)
               : 0.0;
      if (apply)
        (moves ? move_chunk : update_chunk)(chunk, moves ? moving : blocks, rates,
                                            engine::rate_of(chunk, rates.learning_rate, *binding.step));
      return sum;
    });
  };
  return task;
}

namespace {

engine::Task plan_gather(const engine::UpdateBinding& binding, const engine::Matrix& matrix, float* x) {
  engine::Task task = engine::declare_gather(binding, matrix, x);
  task.start = [binding, matrix, x, squares = best_version<SquareSum>()](engine::Lane&) {
    if (!applies(binding)) return;
    const auto values = static_cast<std::size_t>(matrix.rest * matrix.out);
    const std::size_t chunks = (values + kChunk - 1) / kChunk;
    const bool clips = binding.gradient_norm != nullptr;
    const float clip = clips ? optim::clip_factor(binding.clip_norm, *binding.gradient_norm) : 1.0f;
    const auto momentum = static_cast<float>(binding.optimizer.muon_momentum);
    const float* const grads = binding.grads + matrix.begin;
    float* const gathered = binding.states[0] + matrix.begin;
    const double total = sum_chunks(chunks, [&](std::size_t c) {
      const std::size_t begin = c * kChunk, end = std::min(begin + kChunk, values);
      for (std::size_t i = begin; i < end; ++i) {
        const std::uint32_t at = matrix.places[i];
        const float grad = clips ? clip * grads[at] : grads[at];
        const float s = momentum * gathered[at] + grad;
        gathered[at] = s;
        x[i] = grad + momentum * s;
      }
      const std::size_t whole = end / kLanes * kLanes;
      double sum = squares(x, begin, whole);
      for (std::size_t i = whole; i < end; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      return sum;
    });
    const auto share = static_cast<float>(1.0 / (std::sqrt(total) + optim::NewtonSchulz::kEps));
    parallel_values(values, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) x[i] *= share;
    });
  };
  return task;
}

/// aa = a·I + b·A + c·A², so that the next X is its product with X.
engine::Task plan_polynomial(const engine::Matrix& matrix, std::size_t n, const float* a, float* aa) {
  engine::Task task = engine::declare_polynomial(matrix, n, a, aa);
  task.start = [n, a, aa](engine::Lane&) {
    parallel_for(static_cast<std::ptrdiff_t>(n), [&](std::ptrdiff_t row) {
      const std::size_t begin = static_cast<std::size_t>(row) * n;
      for (std::size_t i = begin; i < begin + n; ++i)
        aa[i] = optim::NewtonSchulz::kB * a[i] + optim::NewtonSchulz::kC * aa[i];
      aa[begin + static_cast<std::size_t>(row)] += optim::NewtonSchulz::kA;
    });
  };
  return task;
}

engine::Task plan_scatter(const engine::UpdateBinding& binding, const engine::Matrix& matrix,
                          const float* x) {
  engine::Task task = engine::declare_scatter(binding, matrix, x);
  task.start = [matrix, x, moves = binding.moves + matrix.begin](engine::Lane&) {
    const float scale = optim::matrix_scale(static_cast<double>(matrix.out), static_cast<double>(matrix.rest),
                                            optim::HostMath{});
    parallel_values(static_cast<std::size_t>(matrix.rest * matrix.out),
                    [&](std::size_t begin, std::size_t end) {
                      for (std::size_t i = begin; i < end; ++i) moves[matrix.places[i]] = scale * x[i] + 0.0f;
                    });
  };
  return task;
}

engine::Task plan_normalize(const engine::UpdateBinding& binding, const engine::Matrix& matrix) {
  engine::Task task = engine::declare_normalize(binding, matrix);
  task.start = [binding, matrix, squares = best_version<SquareSum>()](engine::Lane&) {
    if (!optim::normalizes(binding.optimizer, *binding.step) || !applies(binding)) return;
    float* const weights = binding.params + matrix.begin;
    const std::size_t chunks = (matrix.floats + kChunk - 1) / kChunk;
    const double norm = std::sqrt(sum_chunks(chunks, [&](std::size_t c) {
      return squares(weights, c * kChunk, std::min((c + 1) * kChunk, matrix.floats));
    }));
    if (norm == 0.0) return;
    const auto share = static_cast<float>(std::sqrt(static_cast<double>(matrix.out)) / norm);
    parallel_values(matrix.floats, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) weights[i] *= share;
    });
  };
  return task;
}

/// Products of matrices in memory without gaps, for one plan_matrix.
class Products {
 public:
  Products(const engine::Matrix& matrix, engine::Arena& arena) : matrix_(matrix), arena_(arena) {}

  struct Operand {
    const float* data;
    std::int64_t rows, columns;
    bool transposed = false;  ///< [columns, rows] in memory
  };
  engine::Task task(const char* what, const Operand& left, const Operand& right, float* result) const {
    const Desc a = describe(left), b = describe(right);
    const Desc c = describe({result, left.rows, right.columns});
    const Kernel kernel = make_product(dnnl_, a, b, c);
    engine::Task task = kernel_task(concat("muon ", what, " of ", matrix_.name), dnnl_, kernel,
                                    {reads(DNNL_ARG_SRC, a, left.data),
                                     reads(DNNL_ARG_WEIGHTS, b, right.data), writes(DNNL_ARG_DST, c, result)},
                                    arena_.take(kernel.scratch_bytes()));
    task.cost.flops = 2.0 * static_cast<double>(left.rows * left.columns * right.columns);
    return task;
  }

 private:
  static Desc describe(const Operand& operand) {
    using Tag = dnnl::memory::format_tag;
    return matrix(operand.rows, operand.columns, dnnl::memory::data_type::f32,
                  operand.transposed ? Tag::ba : Tag::ab);
  }

  const engine::Matrix& matrix_;
  engine::Arena& arena_;
  Dnnl dnnl_;
};

}  // namespace

std::vector<engine::Task> plan_matrix(const engine::UpdateBinding& binding, const engine::Matrix& matrix,
                                      engine::Arena& arena) {
  const std::int64_t rest = matrix.rest, out = matrix.out, n = std::min(rest, out);
  const auto values = static_cast<std::size_t>(rest * out), square = static_cast<std::size_t>(n * n);
  auto *x = arena.take_array<float>(values), *y = arena.take_array<float>(values);
  auto *a = arena.take_array<float>(square), *aa = arena.take_array<float>(square);
  const Products products(matrix, arena);
  std::vector<engine::Task> tasks;
  if (binding.optimizer.normalize_every > 0) tasks.push_back(plan_normalize(binding, matrix));
  tasks.push_back(plan_gather(binding, matrix, x));
  for (int i = 0; i < optim::NewtonSchulz::kIterations; ++i) {
    if (out <= rest) {  // in terms of XᵀX, the smaller one
      tasks.push_back(products.task("gram matrix", {x, out, rest, true}, {x, rest, out}, a));
    } else {
      tasks.push_back(products.task("gram matrix", {x, rest, out}, {x, out, rest, true}, a));
    }
    tasks.push_back(products.task("its square", {a, n, n}, {a, n, n}, aa));
    tasks.push_back(plan_polynomial(matrix, square / static_cast<std::size_t>(n), a, aa));
    if (out <= rest) {
      tasks.push_back(products.task("iteration", {x, rest, out}, {aa, n, n}, y));
    } else {
      tasks.push_back(products.task("iteration", {aa, n, n}, {x, rest, out}, y));
    }
    std::swap(x, y);
  }
  tasks.push_back(plan_scatter(binding, matrix, x));
  return tasks;
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

engine::Task plan_lookahead(const engine::LookaheadBinding& binding) {
  engine::Task task = engine::declare_lookahead(binding);
  task.start = [binding](engine::Lane&) {
    if (!std::isfinite(binding.control[engine::ControlLayout::loss_sum])) return;
    if (binding.gradient_norm != nullptr && !std::isfinite(*binding.gradient_norm)) return;
    const optim::Pull pull = optim::pull_after(binding.rule, *binding.step, optim::HostMath{});
    if (!pull.begins && !pull.pulls) return;
    const auto ema_share = static_cast<float>(1.0 - optim::ema_decay(binding.average, *binding.step));
    parallel_values(binding.floats, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i)
        optim::apply(pull, ema_share, binding.params[i], binding.slow[i], binding.ema[i]);
    });
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
        static_cast<float>(1.0 - optim::ema_decay(binding.average, *binding.step, binding.average_steps));
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
