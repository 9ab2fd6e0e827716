#pragma once

#include "cpu/vectors.hpp"

/// The discrete Fourier transform of N real numbers in each lane of vectors, and its inverse.
///
/// X[k] = Σ x[n]·e^(−2πi·kn/N). For real numbers X[N − k] is the conjugate of X[k], so only 0 … N/2 are
/// stored. Even lengths are halved: with E and O the spectra of the even and the odd places, X[k] = E[k] +
/// w^k·O[k] and X[N/2 − k] is the conjugate of E[k] − w^k·O[k], w = e^(−2πi/N) (Cooley and Tukey 1965, on the
/// half of the spectrum that real numbers have). Odd lengths, which are small, are summed directly, with x[j]
/// and x[N − j] paired. The compiler resolves the recursion into additions and multiplications by constants.
namespace cifar_mpi::cpu::fft {

/// Taylor's series to double precision for |x| ≤ π.
constexpr double cosine_series(double x) {
  double term = 1.0, sum = 1.0;
  for (int i = 1; i <= 16; ++i) sum += term *= -x * x / ((2 * i - 1) * (2 * i));
  return sum;
}
constexpr double sine_series(double x) {
  double term = x, sum = x;
  for (int i = 1; i <= 16; ++i) sum += term *= -x * x / ((2 * i) * (2 * i + 1));
  return sum;
}
constexpr double angle(int k, int n) {
  k %= n;
  return 6.283185307179586476925 * (2 * k > n ? k - n : k) / n;
}
/// cos and sin of 2πk/n.
template <int k, int n>
inline constexpr float kCos = static_cast<float>(cosine_series(angle(k, n)));
template <int k, int n>
inline constexpr float kSin = static_cast<float>(sine_series(angle(k, n)));

/// im[0], and for even lengths im[N/2], are zero.
template <class V, int N>
struct Spectrum {
  V re[N / 2 + 1];
  V im[N / 2 + 1];
};

template <class V, int N, int kStep = 1>
struct RealFft {
  /// Of x[0], x[kStep], …
  [[gnu::always_inline]] static void forward(const V* x, Spectrum<V, N>& X) {
    if constexpr (N % 2 == 1) {
      forward_odd(x, X);
    } else {
      Spectrum<V, N / 2> even, odd;
      RealFft<V, N / 2, 2 * kStep>::forward(x, even);
      RealFft<V, N / 2, 2 * kStep>::forward(x + kStep, odd);
      X.re[0] = even.re[0] + odd.re[0];
      X.re[N / 2] = even.re[0] - odd.re[0];
      X.im[0] = X.im[N / 2] = V{};
      unrolled<(N - 2) / 4>([&](auto index) __attribute__((always_inline)) {
        constexpr int k = index + 1;
        constexpr int other = N / 2 - k;
        const V re = kCos<k, N> * odd.re[k] + kSin<k, N> * odd.im[k];
        const V im = kCos<k, N> * odd.im[k] - kSin<k, N> * odd.re[k];
        X.re[k] = even.re[k] + re;
        X.im[k] = even.im[k] + im;
        X.re[other] = even.re[k] - re;
        X.im[other] = im - even.im[k];
      });
      if constexpr (N % 4 == 0) {
        X.re[N / 4] = even.re[N / 4];
        X.im[N / 4] = -odd.re[N / 4];
      }
    }
  }

  /// x[n] = Σ X[k]·e^(2πi·kn/N) over all N: N times the numbers with spectrum X.
  [[gnu::always_inline]] static void inverse(const Spectrum<V, N>& X, V* x) {
    if constexpr (N % 2 == 1) {
      inverse_odd(X, x);
    } else {
      Spectrum<V, N / 2> even, odd;
      even.re[0] = X.re[0] + X.re[N / 2];
      odd.re[0] = X.re[0] - X.re[N / 2];
      even.im[0] = odd.im[0] = V{};
      unrolled<(N - 2) / 4>([&](auto index) __attribute__((always_inline)) {
        constexpr int k = index + 1;
        constexpr int other = N / 2 - k;
        const V re = X.re[k] - X.re[other];
        const V im = X.im[k] + X.im[other];
        even.re[k] = X.re[k] + X.re[other];
        even.im[k] = X.im[k] - X.im[other];
        odd.re[k] = kCos<k, N> * re - kSin<k, N> * im;
        odd.im[k] = kCos<k, N> * im + kSin<k, N> * re;
      });
      if constexpr (N % 4 == 0) {
        even.re[N / 4] = 2.0f * X.re[N / 4];
        odd.re[N / 4] = -2.0f * X.im[N / 4];
        even.im[N / 4] = odd.im[N / 4] = V{};
      }
      RealFft<V, N / 2, 2 * kStep>::inverse(even, x);
      RealFft<V, N / 2, 2 * kStep>::inverse(odd, x + kStep);
    }
  }

 private:
  static constexpr int kHalf = N / 2;

  [[gnu::always_inline]] static void forward_odd(const V* x, Spectrum<V, N>& X) {
    V sum[kHalf + 1], difference[kHalf + 1];
    X.re[0] = sum[0] = x[0];
    X.im[0] = V{};
    unrolled<kHalf>([&](auto index) __attribute__((always_inline)) {
      constexpr int j = index + 1;
      sum[j] = x[j * kStep] + x[(N - j) * kStep];
      difference[j] = x[(N - j) * kStep] - x[j * kStep];
      X.re[0] += sum[j];
    });
    unrolled<kHalf>([&](auto row) __attribute__((always_inline)) {
      constexpr int k = row + 1;
      V re = sum[0], im = kSin<k, N> * difference[1];
      unrolled<kHalf>([&](auto index) __attribute__((always_inline)) {
        constexpr int j = index + 1;
        re += kCos<j * k, N> * sum[j];
        if constexpr (j > 1) im += kSin<j * k, N> * difference[j];
      });
      X.re[k] = re;
      X.im[k] = im;
    });
  }

  [[gnu::always_inline]] static void inverse_odd(const Spectrum<V, N>& X, V* x) {
    V sum = X.re[0];
    unrolled<kHalf>([&](auto index) __attribute__((always_inline)) { sum += 2.0f * X.re[index + 1]; });
    x[0] = sum;
    unrolled<kHalf>([&](auto row) __attribute__((always_inline)) {
      constexpr int n = row + 1;
      V even = X.re[0], odd = 2.0f * kSin<n, N> * X.im[1];
      unrolled<kHalf>([&](auto index) __attribute__((always_inline)) {
        constexpr int k = index + 1;
        even += 2.0f * kCos<n * k, N> * X.re[k];
        if constexpr (k > 1) odd += 2.0f * kSin<n * k, N> * X.im[k];
      });
      x[n * kStep] = even - odd;
      x[(N - n) * kStep] = even + odd;
    });
  }
};

}  // namespace cifar_mpi::cpu::fft
