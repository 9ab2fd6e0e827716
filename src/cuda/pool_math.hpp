#pragma once

#include <cstdint>

/// Max-pooling of NHWC images, one place at a time; runs on the host and on the device.
namespace cifar_mpi::cuda {

/// Output (oy, ox) covers the places stride·oy − before_y … + kernel − 1, and so in x.
struct PoolPlace {
  int batch = 0;
  int in_height = 0;
  int in_width = 0;
  int out_height = 0;
  int out_width = 0;
  int channels = 0;
  int kernel = 0;
  int stride = 0;
  int before_y = 0;
  int before_x = 0;

  constexpr std::int64_t in_values() const { return std::int64_t{batch} * in_height * in_width * channels; }
  constexpr std::int64_t out_values() const {
    return std::int64_t{batch} * out_height * out_width * channels;
  }
};

/// The tap of a window whose gradient is dropped.
constexpr std::uint8_t kNoTap = 255;

struct PoolChoice {
  float value = 0.0f;
  std::uint8_t tap = kNoTap;  ///< ky · kernel + kx of the first maximum in row-major order
};

/// The maximum of the window of (oy, ox); `read(y, x)` returns the value of a place inside the image.
template <class Read>
constexpr PoolChoice pool_choose(const PoolPlace& place, int oy, int ox, Read read) {
  PoolChoice best;
  for (int ky = 0; ky < place.kernel; ++ky) {
    const int y = place.stride * oy - place.before_y + ky;
    if (y < 0 || y >= place.in_height) continue;
    for (int kx = 0; kx < place.kernel; ++kx) {
      const int x = place.stride * ox - place.before_x + kx;
      if (x < 0 || x >= place.in_width) continue;
      const float value = read(y, x);
      if (best.tap != kNoTap && !(value > best.value)) continue;
      best.value = value;
      best.tap = static_cast<std::uint8_t>(ky * place.kernel + kx);
    }
  }
  return best;
}

/// The choice where values first go through biases and a ReLU; `y` is the result for its maximum. Neither
/// these nor rounding change an order: max(relu(x + b)) = relu(max(x) + b). A result that is not positive has
/// no tap, which applies the mask.
constexpr PoolChoice through_relu(const PoolChoice& choice, float y) {
  return {y, y > 0.0f ? choice.tap : kNoTap};
}

/// The first output whose window holds place `i` of an axis.
constexpr int first_window(int i, int kernel, int stride, int before) {
  const int least = i + before - kernel + 1;
  return least <= 0 ? 0 : (least + stride - 1) / stride;
}

/// The gradient of place (y, x): the sum over the windows that chose it, in row-major order of the windows.
/// `tap(oy, ox)` and `grad(oy, ox)` return a window's values.
template <class Tap, class Grad>
constexpr float pool_gather(const PoolPlace& place, int y, int x, Tap tap, Grad grad) {
  float sum = 0.0f;
  for (int oy = first_window(y, place.kernel, place.stride, place.before_y);
       oy < place.out_height && place.stride * oy - place.before_y <= y; ++oy) {
    for (int ox = first_window(x, place.kernel, place.stride, place.before_x);
         ox < place.out_width && place.stride * ox - place.before_x <= x; ++ox) {
      const int ky = y - place.stride * oy + place.before_y;
      const int kx = x - place.stride * ox + place.before_x;
      if (tap(oy, ox) == ky * place.kernel + kx) sum += grad(oy, ox);
    }
  }
  return sum;
}

}  // namespace cifar_mpi::cuda
