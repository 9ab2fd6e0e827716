#pragma once

#include "cpu/fft/real_fft.hpp"

/// The two-dimensional Fourier transform of real images, one per lane of a vector.
///
///   Z[ky, kx] = Σ x[y, x]·e^(−2πi(ky·y + kx·x)/N),   y and x modulo N
///
/// First each row is transformed, then each column of the result. The columns kx = 0 and N/2 are real; a
/// column between them is complex, R + i·I with real columns R and I, so Z[ky] = R̂[ky] + i·Î[ky], and
/// because R̂[N − ky] is the conjugate of R̂[ky], the same two give Z[N − ky]. Columns beyond N/2 would be
/// conjugates. So real transforms suffice.
namespace cifar_mpi::cpu::fft {

/// The stored frequencies in the order of their slots: ky = 0 … N/2 for kx = 0, the same for kx = N/2, then
/// all N of each kx between them.
constexpr int slots_of(int length) { return length + 2 + (length / 2 - 1) * length; }

/// Whether all images have a real value there: where ky and kx are 0 or N/2.
constexpr bool is_real_slot(int length, int slot) {
  return slot < length + 2 && slot % (length / 2 + 1) % (length / 2) == 0;
}
inline constexpr int kRealSlots = 4;

/// Position of an image on its square of N places: row y is at place (first_row + y) modulo N, columns
/// accordingly; all other places are zero.
struct Placement {
  int rows = 0;
  int columns = 0;
  int first_row = 0;
  int first_column = 0;
};

template <class V, int N>
class ImageFft {
 public:
  /// read(y, x) returns a vector; write(slot, re, im) takes two.
  template <class Read, class Write>
  [[gnu::always_inline]] static void forward(const Placement& at, const Read& read, const Write& write) {
    // Of kx = 0 and N/2, then re and im of each kx between. Lines 2 KiB apart would map to two sets of the L1 cache: a
    // transform of 32x32 took 1.3 times as long.
    V lines[N][N % 32 == 0 ? N + 1 : N];
    for (int y = at.rows; y < N; ++y) {
      const int place = wrapped(at.first_row + y);
      for (int c = 0; c < N; ++c) lines[c][place] = V{};
    }
    int columns[N];  // of the image at each place
    for (int place = 0; place < N; ++place) columns[wrapped(at.first_column + place)] = place;
    for (int y = 0; y < at.rows; ++y) {
      V row[N];
      unrolled<N>([&](auto place) __attribute__((always_inline)) {
        row[place] = columns[place] < at.columns ? read(y, columns[place]) : V{};
      });
      Spectrum<V, N> X;
      RealFft<V, N>::forward(row, X);
      const int place = wrapped(at.first_row + y);
      lines[0][place] = X.re[0];
      lines[1][place] = X.re[N / 2];
      unrolled<N / 2 - 1>([&](auto k) __attribute__((always_inline)) {
        lines[2 * k + 2][place] = X.re[k + 1];
        lines[2 * k + 3][place] = X.im[k + 1];
      });
    }
    for (int c = 0; c < 2; ++c) write_real_column(lines[c], c * (N / 2 + 1), write);
    for (int kx = 1; kx < N / 2; ++kx) write_column(lines[2 * kx], lines[2 * kx + 1], slot_of(kx), write);
  }

  /// read(slot, re, im) returns two vectors; write(y, x, value) takes one: 2N² times the image with this
  /// spectrum.
  template <class Read, class Write>
  [[gnu::always_inline]] static void inverse(const Placement& at, const Read& read, const Write& write) {
    V lines[N][N];
    for (int c = 0; c < 2; ++c) read_real_column(lines[c], c * (N / 2 + 1), read);
    for (int kx = 1; kx < N / 2; ++kx) read_column(lines[2 * kx], lines[2 * kx + 1], slot_of(kx), read);
    int columns[N];
    for (int place = 0; place < N; ++place) columns[wrapped(at.first_column + place)] = place;
    for (int y = 0; y < at.rows; ++y) {
      V row[N];
      const int place = wrapped(at.first_row + y);
      Spectrum<V, N> X;
      X.re[0] = lines[0][place];
      X.re[N / 2] = lines[1][place];
      X.im[0] = X.im[N / 2] = V{};
      unrolled<N / 2 - 1>([&](auto k) __attribute__((always_inline)) {
        X.re[k + 1] = lines[2 * k + 2][place];
        X.im[k + 1] = lines[2 * k + 3][place];
      });
      RealFft<V, N>::inverse(X, row);
      unrolled<N>([&](auto at_place) __attribute__((always_inline)) {
        if (columns[at_place] < at.columns) write(y, columns[at_place], row[at_place]);
      });
    }
  }

 private:
  [[gnu::always_inline]] static int wrapped(int place) { return place < N ? place : place - N; }
  [[gnu::always_inline]] static int slot_of(int kx) { return N + 2 + (kx - 1) * N; }

  template <class Write>
  [[gnu::always_inline]] static void write_real_column(const V* line, int slot, const Write& write) {
    Spectrum<V, N> X;
    RealFft<V, N>::forward(line, X);
    unrolled<N / 2 + 1>([&](auto k) __attribute__((always_inline)) { write(slot + k, X.re[k], X.im[k]); });
  }

  template <class Write>
  [[gnu::always_inline]] static void write_column(const V* re, const V* im, int slot, const Write& write) {
    Spectrum<V, N> R, I;
    RealFft<V, N>::forward(re, R);
    RealFft<V, N>::forward(im, I);
    write(slot, R.re[0], I.re[0]);
    write(slot + N / 2, R.re[N / 2], I.re[N / 2]);
    unrolled<N / 2 - 1>([&](auto index) __attribute__((always_inline)) {
      constexpr int k = index + 1;
      write(slot + k, R.re[k] - I.im[k], R.im[k] + I.re[k]);
      write(slot + N - k, R.re[k] + I.im[k], I.re[k] - R.im[k]);
    });
  }

  template <class Read>
  [[gnu::always_inline]] static void read_real_column(V* line, int slot, const Read& read) {
    Spectrum<V, N> X;
    unrolled<N / 2 + 1>([&](auto k) __attribute__((always_inline)) { read(slot + k, X.re[k], X.im[k]); });
    RealFft<V, N>::inverse(X, line);
    for (int y = 0; y < N; ++y) line[y] += line[y];  // scaled like the others, see read_column
  }

  /// R̂ = (Z[ky] + conjugate of Z[N − ky])/2 and Î = (Z[ky] − that)/2i, without the halves.
  template <class Read>
  [[gnu::always_inline]] static void read_column(V* re, V* im, int slot, const Read& read) {
    Spectrum<V, N> R, I;
    read(slot, R.re[0], I.re[0]);
    read(slot + N / 2, R.re[N / 2], I.re[N / 2]);
    for (const int k : {0, N / 2}) {
      R.re[k] += R.re[k];
      I.re[k] += I.re[k];
      R.im[k] = I.im[k] = V{};
    }
    unrolled<N / 2 - 1>([&](auto index) __attribute__((always_inline)) {
      constexpr int k = index + 1;
      V here_re, here_im, there_re, there_im;
      read(slot + k, here_re, here_im);
      read(slot + N - k, there_re, there_im);
      R.re[k] = here_re + there_re;
      R.im[k] = here_im - there_im;
      I.re[k] = here_im + there_im;
      I.im[k] = there_re - here_re;
    });
    RealFft<V, N>::inverse(R, re);
    RealFft<V, N>::inverse(I, im);
  }
};

}  // namespace cifar_mpi::cpu::fft
