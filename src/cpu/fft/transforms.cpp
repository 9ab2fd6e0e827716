#include "cpu/fft/transforms.hpp"

#include <stdexcept>
#include <type_traits>
#include <utility>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::cpu::fft {
namespace {

template <int kLength, class T>
struct There {
  template <int kLanes>
  struct Version {
    [[gnu::always_inline]] static void run(const TransformPlace& where, const std::byte* image,
                                           float* spectrum) {
      using V = Vec<kLanes>;
      TransformPlace place = where;  // a copy, because stores to the spectrum could change the argument
      const T* values = reinterpret_cast<const T*>(image);
      T gathered[kLength * kLength * kLanes];
      if (place.lane_step != 1) {
        gather<V>(place, values, gathered);
        values = gathered;
        place.row_step = std::ptrdiff_t{kLanes} * place.at.columns;
        place.column_step = kLanes;
      }
      ImageFft<V, kLength>::forward(
          place.at,
          [&](int y, int x) __attribute__((always_inline)) {
            const T* const at = values + y * place.row_step + x * place.column_step;
            fetch(at + place.image_next);
            return load<V>(at);
          },
          [&](int slot, const V& re, const V& im) __attribute__((always_inline)) {
            float* const to = spectrum + slot * place.slot_step;
            fetch(to + place.spectrum_next);
            fetch(to + place.spectrum_next + place.im_step);
            store(to, re);
            store(to + place.im_step, im);
          });
    }

   private:
    /// Copies the image to `to`, in vectors of lanes.
    template <class V>
    [[gnu::always_inline]] static void gather(const TransformPlace& place, const T* values, T* to) {
      for (int y = 0; y < place.at.rows; ++y) {
        for (int x = 0; x < place.at.columns; ++x, to += kLanes)
          store(to, load_apart<V>(values + y * place.row_step + x * place.column_step, place.lane_step));
      }
    }
  };
};

template <int kLength, class T>
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
      ImageFft<V, kLength>::inverse(
          place.at,
          [&](int slot, V& re, V& im) __attribute__((always_inline)) {
            const float* const from = spectrum + slot * place.slot_step;
            fetch(from + place.spectrum_next);
            fetch(from + place.spectrum_next + place.im_step);
            re = load<V>(from);
            im = load<V>(from + place.im_step);
          },
          [&](int y, int x, const V& value) __attribute__((always_inline)) {
            T* const at = values + y * place.row_step + x * place.column_step;
            fetch(at + place.image_next);
            V sum = value * epilogue.scale + biases;
            if (epilogue.adds) sum += load<V>(at);
            const V kept = sum < floor ? floor : sum;  // NaN stays NaN
            store(at, kept);
          });
    }
  };
};

template <int kLength, class T>
Transforms transforms_of(VectorSet set) {
  return {version_for<There<kLength, T>::template Version>(set),
          version_for<Back<kLength, T>::template Version>(set)};
}

template <int kLength>
Transforms transforms_of(VectorSet set, engine::Precision precision) {
  return precision == engine::Precision::bf16 ? transforms_of<kLength, bf16>(set)
                                              : transforms_of<kLength, float>(set);
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

template <int kLength>
TransformFlops flops_of(const Placement& at) {
  TransformFlops flops;
  Counted::flops = 0.0;
  ImageFft<Counted, kLength>::forward(
      at, [](int, int) { return Counted{}; }, [](int, Counted, Counted) {});
  flops.forward = std::exchange(Counted::flops, 0.0);
  ImageFft<Counted, kLength>::inverse(
      at, [](int, Counted&, Counted&) {}, [](int, int, Counted) {});
  flops.inverse = Counted::flops;
  return flops;
}

/// Returns what `body` returns for the length, passed as a type.
template <class Body>
auto with_length(int length, const Body& body) {
  switch (length) {
    case 8:
      return body(std::integral_constant<int, 8>{});
    case 10:
      return body(std::integral_constant<int, 10>{});
    case 14:
      return body(std::integral_constant<int, 14>{});
    case 16:
      return body(std::integral_constant<int, 16>{});
    case 28:
      return body(std::integral_constant<int, 28>{});
    case 32:
      return body(std::integral_constant<int, 32>{});
    default:
      throw std::logic_error(concat("there is no transform of length ", length));
  }
}

}  // namespace

Transforms transforms_for(int length, VectorSet set, engine::Precision precision) {
  return with_length(length, [&](auto n) { return transforms_of<n>(set, precision); });
}

TransformFlops transform_flops(int length, const Placement& at) {
  return with_length(length, [&](auto n) { return flops_of<n>(at); });
}

}  // namespace cifar_mpi::cpu::fft
