#include "cuda/divisor.hpp"
#include "cuda/launch.cuh"
#include "cuda/lrn_pool.hpp"
#include "cuda/pool_vec8.cuh"

/// A thread has a vec8, eight channels of a pixel: one 16-byte load of bf16. The four channels on either side, which a
/// normalization also needs, come from the neighbouring threads: the threads of a pixel are adjacent.
namespace cifar_mpi::cuda {
namespace {

/// Sixteen channels: those of a vec8 and the four on either side, zero outside the pixel.
struct Neighbours {
  float values[2 * kVec8];
};
constexpr int kOwn = kVec8 / 2;  ///< where the vec8 begins

/// `vec8` is that of group `group` of `groups`, with the others of the pixel around it.
template <class T>
__device__ Neighbours neighbours_of(const T* vec8, int group, int groups) {
  Neighbours all{};
  const Vec8<float> own = to_floats(load_vec8(vec8));
  for (int i = 0; i < kVec8; ++i) all.values[kOwn + i] = own.values[i];
  if (group > 0) {
    const Quad<T> before = load_quad(vec8 - kOwn);
    for (int i = 0; i < kOwn; ++i) all.values[i] = to_float(before.values[i]);
  }
  if (group + 1 < groups) {
    const Quad<T> after = load_quad(vec8 + kVec8);
    for (int i = 0; i < kOwn; ++i) all.values[kOwn + kVec8 + i] = to_float(after.values[i]);
  }
  return all;
}

/// The same, read as `activation` says.
template <class T>
__device__ Neighbours activated_neighbours(const Activation& activation, const T* vec8, int group,
                                           int groups) {
  Neighbours x = neighbours_of(vec8, group, groups);
  if (!activation.relu) return x;
  Neighbours bias{};
  if (activation.bias != nullptr) bias = neighbours_of(activation.bias + group * kVec8, group, groups);
  activate<T>(bias.values, x.values);
  return x;
}

template <class T>
__device__ Vec8<T> normalize(const LrnRule& rule, const Neighbours& x) {
  const auto read = [&](int i) { return x.values[i]; };
  Vec8<float> y;
  for (int i = 0; i < kVec8; ++i) {
    const float base = lrn_base(rule, 2 * kVec8, kOwn + i, read);
    y.values[i] = read(kOwn + i) * lrn_scale(rule, base, FastMath{});
  }
  return from_floats<T>(y);
}

struct Vec8Terms {
  Vec8<float> directs, shares;
};
template <class T>
__device__ Vec8Terms terms_of(const LrnRule& rule, const Neighbours& x, const Vec8<T>& grad_y) {
  const auto read = [&](int i) { return x.values[i]; };
  Vec8Terms terms;
  for (int i = 0; i < kVec8; ++i) {
    const LrnTerms of = lrn_terms(rule, 2 * kVec8, kOwn + i, to_float(grad_y.values[i]), read, FastMath{});
    terms.directs.values[i] = of.direct;
    terms.shares.values[i] = of.share;
  }
  return terms;
}

__device__ inline Vec8<float> gradient_of(const LrnRule& rule, const Vec8<float>& x,
                                          const Vec8<float>& directs, const Neighbours& shares) {
  const auto read = [&](int i) { return shares.values[i]; };
  Vec8<float> grad;
  for (int i = 0; i < kVec8; ++i) {
    grad.values[i] = lrn_gradient(rule, 2 * kVec8, kOwn + i, x.values[i], directs.values[i], read);
  }
  return grad;
}

static_assert(kVec8 == kVec8Channels && kLrnRadius <= kVec8 / 2);

/// Where a thread works. Numbers within an image fit 32 bits.
struct Cut {
  PoolPlace place;
  float bias = 1.0f;
  float alpha = 0.0f;
  Activation activation;
  int groups_log = 0;  ///< of the vec8s of a pixel
  Divisor pieces;      ///< blocks of an image
  Divisor in_width;
  Divisor out_width;

  __device__ LrnRule rule() const { return {kLrnRadius, bias, alpha, kLrnBeta}; }
  __device__ std::int64_t image() const { return pieces.quotient(static_cast<int>(blockIdx.x)); }
  __device__ int piece() const { return pieces.remainder(static_cast<int>(blockIdx.x)); }
  __device__ int groups() const { return 1 << groups_log; }
  __device__ int group(int item) const { return item & (groups() - 1); }
  __device__ int in_values() const { return place.in_height * place.in_width * place.channels; }
  __device__ int out_values() const { return place.out_height * place.out_width * place.channels; }
};

/// The mask of the ReLU before a normalization.
__device__ void mask(bool relu, const Vec8<float>& x, Vec8<float>& grad) {
  for (int i = 0; i < kVec8; ++i) {
    if (relu && !(x.values[i] > 0.0f)) grad.values[i] = 0.0f;
  }
}

template <class T>
__device__ void through_memory(Vec8<float>& values) {
  values = to_floats(from_floats<T>(values));
}

/// A thread has a vec8 of the output; a block shares its pooled values. Each input is read about
/// (kernel / stride)² times, from the cache; the pooled and the normalized value are written once each.
template <class T>
__global__ void __launch_bounds__(kLrnPoolThreads)
    forward_pool_lrn(Cut cut, const T* __restrict__ x, T* __restrict__ pooled,
                     std::uint8_t* __restrict__ argmax, T* __restrict__ y) {
  __shared__ Vec8<T> shared[kLrnPoolThreads];
  const int item = cut.piece() * kLrnPoolThreads + static_cast<int>(threadIdx.x);
  const int group = cut.group(item), pixel = item >> cut.groups_log;
  const std::int64_t at = cut.image() * cut.out_values() + std::int64_t{item} * kVec8;
  const bool inside = item * kVec8 < cut.out_values();
  if (inside) {
    const T* const image = x + cut.image() * cut.in_values() + group * kVec8;
    const Vec8Choice<T> choice =
        choose<T>(cut.place, cut.out_width.quotient(pixel), cut.out_width.remainder(pixel), cut.activation,
                  group, [&](int row, int column) {
                    return load_vec8(image + (row * cut.place.in_width + column) * cut.place.channels);
                  });
    shared[threadIdx.x] = choice.values;
    if (pooled != nullptr) store_vec8(pooled + at, shared[threadIdx.x]);
    if (argmax != nullptr) store_vec8(argmax + at, choice.argmax);
  }
  __syncthreads();
  if (!inside) return;
  store_vec8(y + at,
             normalize<T>(cut.rule(), neighbours_of(shared[threadIdx.x].values, group, cut.groups())));
}

/// A block has some rows of an image's cells. The gradients of the windows over them are computed in shared
/// memory, those between two blocks twice; then each thread gathers a cell.
template <class T>
__global__ void __launch_bounds__(kLrnPoolThreads)
    backward_pool_lrn(Cut cut, const T* __restrict__ pooled, const std::uint8_t* __restrict__ argmax,
                      const T* __restrict__ grad_y, T* __restrict__ grad_x) {
  const PoolPlace& place = cut.place;
  const Rows in = piece(place.out_height, kCellRows, cut.piece()), out = rows_over(in);
  const int row_items = place.out_width << cut.groups_log, count = out.count() * row_items;
  float* const grads = dynamic_shared<float>();  // at first the direct terms
  float* const shares = grads + pooled_values(place);
  const std::int64_t first = cut.image() * cut.out_values() + std::int64_t{out.begin} * row_items * kVec8;
  for (int item = static_cast<int>(threadIdx.x); item < count; item += kLrnPoolThreads) {
    const Neighbours x = neighbours_of(pooled + first + item * kVec8, cut.group(item), cut.groups());
    const Vec8Terms terms = terms_of(cut.rule(), x, load_vec8(grad_y + first + item * kVec8));
    store_vec8(grads + item * kVec8, terms.directs);
    store_vec8(shares + item * kVec8, terms.shares);
  }
  __syncthreads();
  for (int item = static_cast<int>(threadIdx.x); item < count; item += kLrnPoolThreads) {
    Vec8<float> grad = gradient_of(cut.rule(), to_floats(load_vec8(pooled + first + item * kVec8)),
                                   load_vec8(grads + item * kVec8),
                                   neighbours_of(shares + item * kVec8, cut.group(item), cut.groups()));
    through_memory<T>(grad);
    store_vec8(grads + item * kVec8, grad);
  }
  __syncthreads();
  const auto window = [&](int oy, int ox, int group) {
    Window of{{}, {kNoTap, kNoTap, kNoTap, kNoTap, kNoTap, kNoTap, kNoTap, kNoTap}};
    if (oy < 0 || ox < 0) return of;
    const int i = ((((oy - out.begin) * place.out_width + ox) << cut.groups_log) + group) * kVec8;
    of.grad = load_vec8(grads + i);
    of.argmax = load_vec8(argmax + first + i);
    return of;
  };
  T* const to = grad_x + cut.image() * cut.in_values();
  for (int item = static_cast<int>(threadIdx.x); item < in.count() * row_items; item += kLrnPoolThreads) {
    const int group = cut.group(item), cell = item >> cut.groups_log;
    const int oy = in.begin + cut.out_width.quotient(cell), ox = cut.out_width.remainder(cell);
    Vec8<float> sums[kPoolStride][kPoolStride] = {};
    for (int wy = -1; wy <= 0; ++wy) {
      for (int wx = -1; wx <= 0; ++wx) {
        const Window of = window(oy + wy, ox + wx, group);
        for (int py = 0; py < kPoolStride; ++py) {
          for (int px = 0; px < kPoolStride; ++px) {
            const int ky = py - kPoolStride * wy, kx = px - kPoolStride * wx;
            if (ky < kPoolKernel && kx < kPoolKernel) take(of, ky * kPoolKernel + kx, sums[py][px]);
          }
        }
      }
    }
    for (int py = 0; py < kPoolStride; ++py) {
      for (int px = 0; px < kPoolStride; ++px) {
        const int y = kPoolStride * oy - place.before_y + py, x = kPoolStride * ox - place.before_x + px;
        if (y < 0 || x < 0) continue;  // the image has no cells after its end
        store_vec8(to + (y * place.in_width + x) * place.channels + group * kVec8,
                   from_floats<T>(sums[py][px]));
      }
    }
  }
}

/// A block has some rows of an image's output. It normalizes the rows under its windows in shared memory, those
/// between two blocks twice, then pools them.
template <class T>
__global__ void __launch_bounds__(kLrnPoolThreads)
    forward_lrn_pool(Cut cut, const T* __restrict__ x, std::uint8_t* __restrict__ argmax, T* __restrict__ y) {
  const PoolPlace& place = cut.place;
  const Rows out = piece(place.out_height, kPooledRows, cut.piece()), in = rows_under(place, out);
  T* const values = dynamic_shared<T>();
  const T* const from = x + cut.image() * cut.in_values() + in.begin * place.in_width * place.channels;
  const int in_items = in.count() * place.in_width << cut.groups_log;
  for (int item = static_cast<int>(threadIdx.x); item < in_items; item += kLrnPoolThreads) {
    store_vec8(values + item * kVec8,
               normalize<T>(cut.rule(), activated_neighbours(cut.activation, from + item * kVec8,
                                                             cut.group(item), cut.groups())));
  }
  __syncthreads();
  const int row_items = place.out_width << cut.groups_log;
  const std::int64_t first = cut.image() * cut.out_values() + std::int64_t{out.begin} * row_items * kVec8;
  for (int item = static_cast<int>(threadIdx.x); item < out.count() * row_items; item += kLrnPoolThreads) {
    const int pixel = item >> cut.groups_log;
    const Vec8Choice<T> choice =
        choose<T>(place, out.begin + cut.out_width.quotient(pixel), cut.out_width.remainder(pixel), {}, 0,
                  [&](int row, int column) {
                    const int at = (row - in.begin) * place.in_width + column;
                    return load_vec8(values + at * place.channels + cut.group(item) * kVec8);
                  });
    store_vec8(y + first + item * kVec8, choice.values);
    if (argmax != nullptr) store_vec8(argmax + first + item * kVec8, choice.argmax);
  }
}

/// A thread has a vec8 of the input: it gathers the gradients from the windows that hold it, then does what
/// the backward pass of a normalization does.
template <class T>
__global__ void __launch_bounds__(kLrnPoolThreads)
    backward_lrn_pool(Cut cut, const T* __restrict__ x, const std::uint8_t* __restrict__ argmax,
                      const T* __restrict__ grad_y, T* __restrict__ grad_x) {
  __shared__ Vec8<float> shared[kLrnPoolThreads];
  const PoolPlace& place = cut.place;
  const int item = cut.piece() * kLrnPoolThreads + static_cast<int>(threadIdx.x);
  const int group = cut.group(item), pixel = item >> cut.groups_log;
  const std::int64_t at = cut.image() * cut.in_values() + std::int64_t{item} * kVec8;
  const bool inside = item * kVec8 < cut.in_values();
  Vec8<float> directs;
  if (inside) {
    const int row = cut.in_width.quotient(pixel) + place.before_y;
    const int column = cut.in_width.remainder(pixel) + place.before_x;
    const std::int64_t image = cut.image() * cut.out_values() + group * kVec8;
    Vec8<float> grad = {};
    for (int wy = -1; wy <= 0; ++wy) {
      for (int wx = -1; wx <= 0; ++wx) {
        const int oy = row / kPoolStride + wy, ox = column / kPoolStride + wx;
        const int ky = row - kPoolStride * oy, kx = column - kPoolStride * ox;
        if (oy < 0 || ox < 0 || ky >= kPoolKernel || kx >= kPoolKernel) continue;
        const std::int64_t i = image + (oy * place.out_width + ox) * place.channels;
        take({to_floats(load_vec8(grad_y + i)), load_vec8(argmax + i)}, ky * kPoolKernel + kx, grad);
      }
    }
    through_memory<T>(grad);
    const Vec8Terms terms =
        terms_of(cut.rule(), activated_neighbours(cut.activation, x + at, group, cut.groups()), grad);
    directs = terms.directs;
    shared[threadIdx.x] = terms.shares;
  }
  __syncthreads();
  if (!inside) return;
  const Vec8<float> values = activated<T>(cut.activation, group, to_floats(load_vec8(x + at)));
  Vec8<float> grad = gradient_of(cut.rule(), values, directs,
                                 neighbours_of(shared[threadIdx.x].values, group, cut.groups()));
  mask(cut.activation.relu, values, grad);
  store_vec8(grad_x + at, from_floats<T>(grad));
}

Cut cut_of(const LrnPoolShape& shape, int pieces_of_image) {
  int log = 0;
  while (1 << log < vec8s(shape.place)) ++log;
  return {shape.place,
          shape.rule.bias,
          shape.rule.alpha,
          shape.activation,
          log,
          Divisor(pieces_of_image),
          Divisor(shape.place.in_width),
          Divisor(shape.place.out_width)};
}

Grid grid_of(const Cut& cut, std::size_t shared_bytes) {
  const auto blocks = static_cast<unsigned>(cut.place.batch) * static_cast<unsigned>(cut.pieces.value());
  return {blocks, kLrnPoolThreads, shared_bytes};
}

/// The number of blocks of an image whose threads have one vec8 each.
int vec8_pieces(std::int64_t values, int images) {
  const std::int64_t block = std::int64_t{kLrnPoolThreads} * kVec8;
  return static_cast<int>((values / images + block - 1) / block);
}

}  // namespace

void pool_lrn_forward(cudaStream_t stream, const LrnPoolShape& shape, const void* x, void* pooled,
                      std::uint8_t* argmax, void* y) {
  const Cut cut = cut_of(shape, vec8_pieces(shape.place.out_values(), shape.place.batch));
  with_type(shape.type, [&]<class T>(T) {
    launch("pooling and normalization", stream, grid_of(cut, 0), forward_pool_lrn<T>, cut, x, pooled, argmax,
           y);
  });
}

void pool_lrn_backward(cudaStream_t stream, const LrnPoolShape& shape, const void* pooled,
                       const std::uint8_t* argmax, const void* grad_y, void* grad_x) {
  const Cut cut = cut_of(shape, pieces(shape.place.out_height, kCellRows));
  const Grid grid = grid_of(cut, 2 * sizeof(float) * pooled_values(shape.place));
  with_type(shape.type, [&]<class T>(T) {
    launch("pooling and normalization backward", stream, grid, backward_pool_lrn<T>, cut, pooled, argmax,
           grad_y, grad_x);
  });
}

void lrn_pool_forward(cudaStream_t stream, const LrnPoolShape& shape, const void* x, std::uint8_t* argmax,
                      void* y) {
  const Cut cut = cut_of(shape, pieces(shape.place.out_height, kPooledRows));
  with_type(shape.type, [&]<class T>(T) {
    launch("normalization and pooling", stream, grid_of(cut, sizeof(T) * normalized_values(shape.place)),
           forward_lrn_pool<T>, cut, x, argmax, y);
  });
}

void lrn_pool_backward(cudaStream_t stream, const LrnPoolShape& shape, const void* x,
                       const std::uint8_t* argmax, const void* grad_y, void* grad_x) {
  const Cut cut = cut_of(shape, vec8_pieces(shape.place.in_values(), shape.place.batch));
  with_type(shape.type, [&]<class T>(T) {
    launch("normalization and pooling backward", stream, grid_of(cut, 0), backward_lrn_pool<T>, cut, x,
           argmax, grad_y, grad_x);
  });
}

}  // namespace cifar_mpi::cuda
