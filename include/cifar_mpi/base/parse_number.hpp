#pragma once

#include <charconv>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace cifar_mpi {

/// The decimal number that `text` is, as a whole; nothing for empty text, trailing characters, leading zeros or a
/// plus before a whole number, other bases, and what T cannot hold. NaN and infinity are numbers for a real T.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  constexpr bool kWhole = std::numeric_limits<T>::is_integer;
  std::string_view digits = text;
  if (!kWhole && text.size() > 1 && text[0] == '+' && text[1] != '-') digits.remove_prefix(1);
  T value{};
  const char* const end = digits.data() + digits.size();
  const auto [rest, error] = std::from_chars(digits.data(), end, value);
  if (error != std::errc{} || rest != end) return std::nullopt;
  if constexpr (kWhole) {
    if (std::to_string(value) != text) return std::nullopt;  // CLI11 takes 010 for an octal number
  }
  return value;
}

}  // namespace cifar_mpi
