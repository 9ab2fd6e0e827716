#pragma once

#include <concepts>
#include <optional>
#include <string_view>

/// Enumerations whose values users know by name. Next to such an enumeration E, define
///
///     constexpr auto names_of(E) { return std::to_array<Name<E>>({{"word", E::word}, …}); }
///
/// with all its values. Options, logs and checkpoints use these words.
namespace cifar_mpi {

template <class E>
struct Name {
  std::string_view text;
  E value;
};

template <class E>
concept Named = requires(E value) {
  { names_of(value).front().value } -> std::convertible_to<E>;
};

template <Named E>
constexpr std::string_view to_string(E value) {
  for (const Name<E>& name : names_of(E{})) {
    if (name.value == value) return name.text;
  }
  return "no such value";
}

template <Named E>
constexpr std::optional<E> find_name(std::string_view text) {
  for (const Name<E>& name : names_of(E{})) {
    if (name.text == text) return name.value;
  }
  return std::nullopt;
}

}  // namespace cifar_mpi
