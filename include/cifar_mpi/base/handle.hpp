#pragma once

#include <utility>

namespace cifar_mpi {

/// Owns one C resource of type `T` and releases it with `Destroy(T)`; moves and never copies.
///
/// `Invalid` is the value that owns nothing. `Destroy` must not throw.
template <class T, auto Destroy, T Invalid = T{}>
class Handle {
 public:
  Handle() = default;
  explicit Handle(T value) : value_(value) {}
  Handle(Handle&& other) noexcept : value_(other.release()) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      reset();
      value_ = other.release();
    }
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { reset(); }

  T get() const { return value_; }
  explicit operator bool() const { return value_ != Invalid; }
  T release() { return std::exchange(value_, Invalid); }
  void reset() {
    if (value_ != Invalid) Destroy(std::exchange(value_, Invalid));
  }

 private:
  T value_ = Invalid;
};

}  // namespace cifar_mpi
