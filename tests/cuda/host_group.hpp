#pragma once

#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <variant>
#include <vector>

#include "cifar_mpi/lower/tower.hpp"
#include "cuda/batch_norm_math.hpp"
#include "cuda/host_math.hpp"
#include "cuda/loss_math.hpp"
#include "cuda/planner.hpp"
#include "cuda/pointwise_math.hpp"
#include "cuda/sum_math.hpp"
#include "cuda/value_type.hpp"

/// Planned groups computed on the host with the kernels' formulas. This shows without a toolkit that plan, index
/// arithmetic and formulas together give the gradients of the reference.
namespace cifar_mpi::cuda::testing {

using engine::Bytes;
using engine::Operands;
using reference::Array;

inline Array read_array(const Bytes& bytes) {
  const auto* const from = reinterpret_cast<const float*>(bytes.begin);
  return {from, from + bytes.size / sizeof(float)};
}

inline void write_array(const Array& values, std::byte* to) {
  auto* const floats = reinterpret_cast<float*>(to);
  for (std::size_t i = 0; i < values.size(); ++i) floats[i] = static_cast<float>(values[i]);
}

class HostGroup final : public engine::Group {
 public:
  HostGroup(GroupPlan plan, int batch) : plan_(std::move(plan)), batch_(batch) {}
  const engine::Contract& contract() const override { return plan_.contract; }
  const Work& work() const { return plan_.work; }

  engine::GroupTasks tasks(const Operands& o, engine::Arena& arena) const override {
    const engine::Contract& c = plan_.contract;
    const std::size_t outputs = c.dst.value.bytes / sizeof(float);
    const Kept kept{{arena.take(outputs), outputs}, {arena.take(c.dst.value.bytes), c.dst.value.bytes}};
    engine::GroupTasks tasks;
    engine::Task forward{
        c.name + " forward", {}, {{o.dst, c.dst.value.bytes}, kept.argmax, kept.between}, {}, {}};
    for (std::size_t i = 0; i < o.src.size(); ++i) forward.reads.push_back({o.src[i], c.src[i].value.bytes});
    add_params(o, forward);
    if (std::holds_alternative<BatchNorm>(plan_.work)) {
      for (std::size_t p = o.params.size() - 2; p < o.params.size(); ++p)
        forward.writes.push_back(engine::bytes_of(o.params[p].grad, c.masters[p]));
    }
    forward.start = [this, o, kept](engine::Lane&) {
      write_array(std::visit([&](const auto& work) { return run(work, o, kept); }, plan_.work), o.dst);
    };
    tasks.forward.push_back(std::move(forward));
    if (o.grad_dst == nullptr || c.hands_grad_on) return tasks;
    engine::Task backward{
        c.name + " backward",
        {{o.grad_dst, c.dst.grad.bytes}, {o.src[0], c.src[0].value.bytes}, kept.argmax, kept.between},
        {},
        {},
        {}};
    if (o.mask_dst) {  // in place, as the kernel
      backward.reads.push_back({o.dst, c.dst.value.bytes});
      backward.writes.push_back({o.grad_dst, c.dst.grad.bytes});
    }
    add_params(o, backward);
    const std::size_t running = std::holds_alternative<BatchNorm>(plan_.work) ? 2 : 0;
    for (std::size_t p = 0; p + running < o.params.size(); ++p) {
      if (o.params[p].grad != nullptr)
        backward.writes.push_back(engine::bytes_of(o.params[p].grad, c.masters[p]));
    }
    if (o.grad_src[0] != nullptr) backward.writes.push_back({o.grad_src[0], c.src[0].grad.bytes});
    backward.start = [this, o, kept](engine::Lane&) {
      std::visit([&](const auto& work) { run_backward(work, o, kept); }, plan_.work);
    };
    tasks.backward.push_back(std::move(backward));
    return tasks;
  }

 private:
  /// Of one program.
  struct Kept {
    Bytes argmax;   ///< of a pooling
    Bytes between;  ///< a pooling's result, which the normalization after it reads
  };

  void add_params(const Operands& o, engine::Task& task) const {
    for (std::size_t p = 0; p < o.params.size(); ++p) {
      task.reads.push_back(engine::bytes_of(o.params[p].master, plan_.contract.masters[p]));
    }
  }
  Array x(const Operands& o) const { return read_array({o.src[0], plan_.contract.src[0].value.bytes}); }
  Array activated(const Operands& o) const { return o.mask_src ? reference::relu_forward(x(o)) : x(o); }
  Array y(const Operands& o) const { return read_array({o.dst, plan_.contract.dst.value.bytes}); }
  Array grad_y(const Operands& o) const { return read_array({o.grad_dst, plan_.contract.dst.grad.bytes}); }
  Array param(const Operands& o, std::size_t p) const {
    return read_array(engine::bytes_of(o.params[p].master, plan_.contract.masters[p]));
  }
  static std::uint8_t* argmax_of(const Kept& kept) {
    return reinterpret_cast<std::uint8_t*>(const_cast<std::byte*>(kept.argmax.begin));
  }

  static Array patches(const Im2colShape& shape, const Array& image) {
    const Im2colPlace place(shape);
    Array result;
    for (int b = 0; b < shape.batch; ++b) {
      for (int i = 0; i < place.patch_units(); ++i) {
        const int source = place.source(i);
        result.push_back(source < 0 ? 0.0
                                    : image[static_cast<std::size_t>(b * place.image_units() + source)]);
      }
    }
    return result;
  }
  Array rows_of(const Affine& affine, const Operands& o) const {
    return affine.is_conv() ? patches(affine.forward_patches(batch_), x(o)) : x(o);
  }

  Array run(const Affine& affine, const Operands& o, const Kept&) const {
    const reference::LinearShape shape{static_cast<int>(affine.rows(batch_)), affine.row, affine.outputs};
    const Array none(static_cast<std::size_t>(affine.outputs), 0.0);
    const Array found =
        reference::linear_forward(shape, rows_of(affine, o), param(o, 0), affine.biased ? param(o, 1) : none);
    return affine.relu ? reference::relu_forward(found) : found;
  }
  Array run(const Pool& pool, const Operands& o, const Kept& kept) const {
    return pooled(pool, o.mask_src, x(o), kept);
  }
  Array run(const Lrn& lrn, const Operands& o, const Kept&) const { return normalized(lrn, activated(o)); }
  Array run(const PoolLrn& both, const Operands& o, const Kept& kept) const {
    const Array between = pooled(both.pool, o.mask_src, x(o), kept);
    write_array(between, const_cast<std::byte*>(kept.between.begin));
    return normalized(both.lrn, between);
  }
  Array run(const LrnPool& both, const Operands& o, const Kept& kept) const {
    return pooled(both.pool, false, normalized(both.lrn, activated(o)), kept);
  }
  Array run(const Relu&, const Operands& o, const Kept&) const { return reference::relu_forward(x(o)); }
  Array run(const Pointwise& pointwise, const Operands& o, const Kept&) const {
    Array y = x(o);
    for (double& value : y) {
      value = static_cast<double>(pointwise_value(pointwise.layer, static_cast<float>(value), HostMath{}));
    }
    return y;
  }
  Array run(const Sum&, const Operands& o, const Kept&) const {
    Array sum = x(o);
    const Array other = read_array({o.src[1], plan_.contract.src[1].value.bytes});
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
    return sum;
  }
  Array run(const BatchNorm& norm, const Operands& o, const Kept&) const {
    const Array source = x(o);
    Array y(source.size());
    for (std::size_t c = 0; c < channels_of(norm); ++c) {
      const Moments moments = moments_at(norm, source, c);
      o.params[o.params.size() - 2].grad[c] = o.statistics_share * moments.mean;
      o.params[o.params.size() - 1].grad[c] = o.statistics_share * moments.variance();
      const ChannelMap map = map_at(norm, o, moments, c);
      for (std::size_t i = c; i < y.size(); i += channels_of(norm)) {
        y[i] = static_cast<double>(map(static_cast<float>(source[i]), norm.relu));
      }
    }
    return y;
  }
  Array run(const GlobalAvgPool& pool, const Operands& o, const Kept&) const {
    return reference::global_avg_pool_forward(pool.batch, {pool.pixels, 1, pool.channels}, x(o));
  }
  Array run(const Shortcut& shortcut, const Operands& o, const Kept&) const {
    return patches(shortcut.forward, x(o));
  }

  static std::size_t channels_of(const BatchNorm& norm) { return static_cast<std::size_t>(norm.channels); }
  /// As the kernels compute them, chunk by chunk.
  static Moments moments_at(const BatchNorm& norm, const Array& source, std::size_t channel) {
    const ColumnChunks chunks = column_chunks(norm.rows);
    std::vector<Moments> parts;
    for (int chunk = 0; chunk < chunks.chunks; ++chunk) {
      std::vector<Moments> values;
      for (std::int64_t row = chunks.begin(chunk); row < chunks.begin(chunk + 1); ++row) {
        const double value = source[static_cast<std::size_t>(row * norm.channels) + channel];
        values.push_back({1.0f, static_cast<float>(value), 0.0f});
      }
      parts.push_back(merged(values));
    }
    return merged(parts);
  }
  static Moments merged(const std::vector<Moments>& parts) {
    double count = 0.0, sum = 0.0, squares = 0.0;
    for (const Moments& part : parts) {
      const MomentSums seen = seen_from(parts[0].mean, part);
      count += static_cast<double>(part.count);
      sum += static_cast<double>(seen.sum);
      squares += static_cast<double>(seen.squares);
    }
    return moments_of(static_cast<float>(count), parts[0].mean,
                      {static_cast<float>(sum), static_cast<float>(squares)});
  }
  static float rstd_at(const BatchNorm& norm, const Moments& moments) {
    return rstd_of(moments.variance(), norm.epsilon, [](float v) { return std::sqrt(v); });
  }
  static ChannelMap map_at(const BatchNorm& norm, const Operands& o, const Moments& moments, std::size_t c) {
    const float scale = o.params.size() == 4 ? o.params[0].master[c] : 1.0f;
    return {moments.mean, scale * rstd_at(norm, moments), o.params[o.params.size() - 3].master[c]};
  }

  static Array pooled(const Pool& pool, bool relu, const Array& source, const Kept& kept) {
    const PoolPlace& p = pool.place;
    Array y;
    for (int b = 0; b < p.batch; ++b) {
      for (int oy = 0; oy < p.out_height; ++oy) {
        for (int ox = 0; ox < p.out_width; ++ox) {
          for (int c = 0; c < p.channels; ++c) {
            PoolChoice choice = pool_choose(p, oy, ox, [&](int row, int column) {
              return static_cast<float>(
                  source[index(p.in_height, p.in_width, p.channels, b, row, column, c)]);
            });
            if (relu) choice = through_relu(choice, rectified(choice.value));
            argmax_of(kept)[y.size()] = choice.tap;
            y.push_back(static_cast<double>(choice.value));
          }
        }
      }
    }
    return y;
  }

  static Array normalized(const Lrn& lrn, const Array& source) {
    Array y;
    for (std::size_t i = 0; i < source.size(); ++i) {
      y.push_back(source[i] * static_cast<double>(lrn_scale(lrn.rule, base_of(lrn, source, i), HostMath{})));
    }
    return y;
  }

  void run_backward(const Affine& affine, const Operands& o, const Kept&) const {
    if (o.mask_dst && o.params[0].grad != nullptr)
      write_array(reference::relu_grad_x(y(o), grad_y(o)), o.grad_dst);
    const Array grad = grad_y(o);
    const int rows = static_cast<int>(affine.rows(batch_));
    if (o.params[0].grad != nullptr) {
      if (affine.biased) {
        write_array(reference::grad_biases(affine.outputs, grad),
                    reinterpret_cast<std::byte*>(o.params[1].grad));
      }
      write_array(
          reference::linear_grad_weights({rows, affine.row, affine.outputs}, rows_of(affine, o), grad),
          reinterpret_cast<std::byte*>(o.params[0].grad));
    }
    if (o.grad_src[0] == nullptr) return;
    write_array(affine.is_conv()
                    ? conv_grad_x(affine, param(o, 0), grad)
                    : reference::linear_grad_x({rows, affine.inner, affine.outputs}, param(o, 0), grad),
                o.grad_src[0]);
  }
  Array conv_grad_x(const Affine& affine, const Array& weights, const Array& grad) const {
    const Im2colShape back = affine.backward_patches(batch_);
    Array rotated(static_cast<std::size_t>(back.row * affine.in.channels), 0.0);
    for (int i = 0; i < back.inner() * affine.in.channels; ++i) {
      rotated[static_cast<std::size_t>(i)] = weights[static_cast<std::size_t>(
          rotated_source(affine.kernel, affine.in.channels, affine.outputs, i))];
    }
    return reference::linear_forward({static_cast<int>(back.rows()), back.row, affine.in.channels},
                                     patches(back, grad), rotated,
                                     Array(static_cast<std::size_t>(affine.in.channels), 0.0));
  }

  void run_backward(const Pool& pool, const Operands& o, const Kept& kept) const {
    if (o.grad_src[0] != nullptr) write_array(unpooled(pool, grad_y(o), kept), o.grad_src[0]);
  }
  void run_backward(const Lrn& lrn, const Operands& o, const Kept&) const {
    if (o.grad_src[0] == nullptr) return;
    write_array(lrn_backward(lrn, o.mask_src, activated(o), grad_y(o)), o.grad_src[0]);
  }
  void run_backward(const PoolLrn& both, const Operands& o, const Kept& kept) const {
    if (o.grad_src[0] == nullptr) return;
    const Array grad = lrn_backward(both.lrn, false, read_array(kept.between), grad_y(o));
    write_array(unpooled(both.pool, grad, kept), o.grad_src[0]);
  }
  void run_backward(const LrnPool& both, const Operands& o, const Kept& kept) const {
    if (o.grad_src[0] == nullptr) return;
    write_array(lrn_backward(both.lrn, o.mask_src, activated(o), unpooled(both.pool, grad_y(o), kept)),
                o.grad_src[0]);
  }
  void run_backward(const Relu&, const Operands&, const Kept&) const {}
  void run_backward(const Pointwise& pointwise, const Operands& o, const Kept&) const {
    if (o.grad_src[0] == nullptr) return;
    const Array source = x(o);
    Array grad = grad_y(o);
    for (std::size_t i = 0; i < grad.size(); ++i) {
      grad[i] *=
          static_cast<double>(pointwise_slope(pointwise.layer, static_cast<float>(source[i]), HostMath{}));
    }
    write_array(grad, o.grad_src[0]);
  }
  void run_backward(const Sum&, const Operands&, const Kept&) const {}
  void run_backward(const BatchNorm& norm, const Operands& o, const Kept&) const {
    const Array source = x(o), grad = grad_y(o);
    Array grad_x(source.size());
    for (std::size_t c = 0; c < channels_of(norm); ++c) {
      const Moments moments = moments_at(norm, source, c);
      const ChannelMap map = map_at(norm, o, moments, c);
      const auto masked = [&](std::size_t i) {
        return map.masked(static_cast<float>(source[i]), static_cast<float>(grad[i]), norm.relu);
      };
      double sum = 0.0, product = 0.0;
      for (std::size_t i = c; i < source.size(); i += channels_of(norm)) {
        sum += static_cast<double>(masked(i));
        product += static_cast<double>(masked(i)) * (source[i] - static_cast<double>(map.mean));
      }
      const GradSums sums{static_cast<float>(sum), static_cast<float>(product)};
      const std::size_t biases = o.params.size() - 3;
      if (o.params[biases].grad != nullptr) {
        if (biases == 1) o.params[0].grad[c] = rstd_at(norm, moments) * sums.product;
        o.params[biases].grad[c] = sums.grad;
      }
      const GradSums means = grad_means(sums, static_cast<float>(norm.rows), rstd_at(norm, moments));
      for (std::size_t i = c; i < source.size(); i += channels_of(norm)) {
        grad_x[i] =
            static_cast<double>(batch_norm_grad(map, means, static_cast<float>(source[i]), masked(i)));
      }
    }
    if (o.grad_src[0] != nullptr) write_array(grad_x, o.grad_src[0]);
  }
  void run_backward(const GlobalAvgPool& pool, const Operands& o, const Kept&) const {
    if (o.grad_src[0] == nullptr) return;
    write_array(reference::global_avg_pool_grad_x(pool.batch, {pool.pixels, 1, pool.channels}, grad_y(o)),
                o.grad_src[0]);
  }
  void run_backward(const Shortcut& shortcut, const Operands& o, const Kept&) const {
    if (o.grad_src[0] != nullptr) write_array(patches(shortcut.backward, grad_y(o)), o.grad_src[0]);
  }

  static Array unpooled(const Pool& pool, const Array& grad, const Kept& kept) {
    const PoolPlace& p = pool.place;
    Array result;
    for (int b = 0; b < p.batch; ++b) {
      for (int y = 0; y < p.in_height; ++y) {
        for (int x = 0; x < p.in_width; ++x) {
          for (int c = 0; c < p.channels; ++c) {
            const auto at = [&](int row, int column) {
              return index(p.out_height, p.out_width, p.channels, b, row, column, c);
            };
            result.push_back(static_cast<double>(pool_gather(
                p, y, x,
                [&](int row, int column) { return static_cast<int>(argmax_of(kept)[at(row, column)]); },
                [&](int row, int column) { return static_cast<float>(grad[at(row, column)]); })));
          }
        }
      }
    }
    return result;
  }

  static Array lrn_backward(const Lrn& lrn, bool relu, const Array& source, const Array& grad) {
    Array shares, directs, result;
    for (std::size_t i = 0; i < grad.size(); ++i) {
      const float base = base_of(lrn, source, i);
      directs.push_back(grad[i] * static_cast<double>(lrn_scale(lrn.rule, base, HostMath{})));
      shares.push_back(directs[i] * source[i] / static_cast<double>(base));
    }
    for (std::size_t i = 0; i < grad.size(); ++i) {
      const int channel = static_cast<int>(i % static_cast<std::size_t>(lrn.channels));
      const std::size_t pixel = i - static_cast<std::size_t>(channel);
      const auto x = static_cast<float>(source[i]);
      const float g = lrn_gradient(
          lrn.rule, lrn.channels, channel, x, static_cast<float>(directs[i]),
          [&](int c) { return static_cast<float>(shares[pixel + static_cast<std::size_t>(c)]); });
      result.push_back(relu && !(x > 0.0f) ? 0.0 : static_cast<double>(g));
    }
    return result;
  }

  static float base_of(const Lrn& lrn, const Array& source, std::size_t i) {
    const int channel = static_cast<int>(i % static_cast<std::size_t>(lrn.channels));
    const std::size_t pixel = i - static_cast<std::size_t>(channel);
    return lrn_base(lrn.rule, lrn.channels, channel,
                    [&](int c) { return static_cast<float>(source[pixel + static_cast<std::size_t>(c)]); });
  }

  static std::size_t index(int height, int width, int channels, int b, int y, int x, int c) {
    return static_cast<std::size_t>(((b * height + y) * width + x) * channels + c);
  }

  GroupPlan plan_;
  int batch_;
};

}  // namespace cifar_mpi::cuda::testing
