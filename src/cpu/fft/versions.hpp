#pragma once

#include <algorithm>
#include <utility>

#include "cpu/fft/transforms.hpp"
#include "cpu/vectors.hpp"

/// The functions of a transform for all vector sets, from a class with the interface of ImageFft.
namespace cifar_mpi::cpu::fft {

/// Transform::Of<V> transforms one image per lane of V, on a square of kSide.
template <class Transform, class T>
struct There {
  template <int kLanes>
  struct Version {
    [[gnu::always_inline]] static void run(const TransformPlace& where, const std::byte* image,
                                           float* spectrum) {
      using V = Vec<kLanes>;
      TransformPlace place = where;  // a copy, because stores to the spectrum could change the argument
      const T* values = reinterpret_cast<const T*>(image);
      T gathered[Transform::kSide * Transform::kSide * kLanes];
      if (place.lane_step != 1) {
        gather<V>(place, values, gathered);
        values = gathered;
        place.row_step = std::ptrdiff_t{kLanes} * place.at.columns;
        place.column_step = kLanes;
      }
      Transform::template Of<V>::forward(
          place.at,
          [&](int y, int x) __attribute__((always_inline)) {
            const T* const at = values + y * place.row_step + x * place.column_step;
            fetch(at + place.image_next);
            return load<V>(at);
          },
          [&](int slot, const auto&... parts) __attribute__((always_inline)) {
            float* to = spectrum + slot * place.slot_step;
            ((place.past_caches ? store_past_caches(to, parts)
                                : (fetch(to + place.spectrum_next), store(to, parts)),
              to += place.im_step),
             ...);
          });
    }

   private:
    /// Copies the image to `to`, in vectors of lanes.
    template <class V>
    [[gnu::always_inline]] static void gather(const TransformPlace& place, const T* values, T* to) {
      for (int y = 0; y < place.at.rows; ++y) {
        for (int x = 0; x < place.at.columns; ++x, to += kLanes)
          store(to, load_apart<V>(values + y * place.row_step + x * place.column_step, place.lane_step,
                                  std::min(place.lanes, kLanes)));
      }
    }
  };
};

template <class Transform, class T>
struct Back {
  template <int kLanes>
  struct Version {
    [[gnu::always_inline]] static void run(const TransformPlace& where, const float* spectrum,
                                           const Epilogue& finish, std::byte* image) {
      using V = Vec<kLanes>;
      const TransformPlace place = where;  // copies, as above
      const Epilogue epilogue = finish;
      T* const values = reinterpret_cast<T*>(image);
      const V biases = epilogue.biases != nullptr ? load<V>(epilogue.biases) : V{};
      const V floor = V{} - (epilogue.relu ? 0.0f : __builtin_inff());
      Transform::template Of<V>::inverse(
          place.at,
          [&](int slot, auto&... parts) __attribute__((always_inline)) {
            const float* from = spectrum + slot * place.slot_step;
            ((fetch(from + place.spectrum_next), parts = load<V>(from), from += place.im_step), ...);
          },
          [&](int y, int x, const V& value) __attribute__((always_inline)) {
            T* const at = values + y * place.row_step + x * place.column_step;
            fetch(at + place.image_next);
            V sum = value * epilogue.scale + biases;
            if (y < epilogue.added_rows || x < epilogue.added_columns) sum += load<V>(at);
            const V kept = sum < floor ? floor : sum;  // NaN stays NaN
            store(at, kept);
          });
    }
  };
};

template <class Transform, class T>
Transforms versions_of(VectorSet set) {
  Transforms transforms{version_for<There<Transform, T>::template Version>(set), nullptr};
  if constexpr (Transform::kInverts)
    transforms.inverse = version_for<Back<Transform, T>::template Version>(set);
  return transforms;
}

/// A stand-in for a vector that counts operations; changes of sign are free.
struct Counted {
  inline static thread_local double flops = 0.0;

  friend Counted operator+(Counted, Counted) { return counted(); }
  friend Counted operator-(Counted, Counted) { return counted(); }
  friend Counted operator*(float, Counted) { return counted(); }
  friend Counted operator-(Counted number) { return number; }
  friend Counted& operator+=(Counted& number, Counted) { return number = counted(); }

 private:
  static Counted counted() {
    ++flops;
    return {};
  }
};

template <class Transform>
TransformFlops flops_of(const Placement& at) {
  using Counting = typename Transform::template Of<Counted>;
  TransformFlops flops;
  Counted::flops = 0.0;
  Counting::forward(
      at, [](int, int) { return Counted{}; }, [](int, const auto&...) {});
  flops.forward = std::exchange(Counted::flops, 0.0);
  if constexpr (Transform::kInverts) {
    Counting::inverse(
        at, [](int, auto&...) {}, [](int, int, Counted) {});
    flops.inverse = Counted::flops;
  }
  return flops;
}

}  // namespace cifar_mpi::cpu::fft
