#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "cifar_mpi/base/parse_number.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/config/options.hpp"

/// Members of TrainConfig as text, by their kind.
namespace cifar_mpi::config {

/// A member, or a member of a member.
template <class T>
struct Member {
  T TrainConfig::*at;
  T& of(TrainConfig& config) const { return config.*at; }
  const T& of(const TrainConfig& config) const { return config.*at; }
};
template <class Part, class T>
struct PartMember {
  Part TrainConfig::*part;
  T Part::*at;
  T& of(TrainConfig& config) const { return config.*part.*at; }
  const T& of(const TrainConfig& config) const { return config.*part.*at; }
};
template <class T>
Member<T> in(T TrainConfig::*at) {
  return {at};
}
template <class Part, class T>
PartMember<Part, T> in(Part TrainConfig::*part, T Part::*at) {
  return {part, at};
}

inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();
inline constexpr double kMany = 1e9;  // larger values are typing errors

struct Range {
  double low = -kNoLimit;
  double high = kNoLimit;
  bool without_low = false;
  bool without_high = false;

  /// False for NaN.
  bool has(double value) const {
    return (without_low ? value > low : value >= low) && (without_high ? value < high : value <= high);
  }
  std::string text() const {
    const std::string from = exact(low),
                      to = std::fmod(high, 1.0) == 0.0 ? fmt::format("{:.0f}", high) : exact(high);
    const std::string limits = high == kNoLimit ? concat("be at least ", from)
                               : without_low    ? concat("be above ", from, " and at most ", to)
                               : without_high   ? concat("be at least ", from, " and below ", to)
                                                : concat("lie between ", from, " and ", to);
    return concat("must ", limits);
  }
};
inline Range at_least(double low) { return {low}; }
inline Range between(double low, double high) { return {low, high}; }
inline Range above_zero() { return {.low = 0.0, .high = kMany, .without_low = true}; }
inline Range below_one() { return {.low = 0.0, .high = 1.0, .without_high = true}; }

inline std::string never_out_of_range(const TrainConfig&) { return {}; }

template <class M>
OptionValue number(M member, Range range = {}) {
  using T = std::remove_cvref_t<decltype(member.of(std::declval<TrainConfig&>()))>;
  constexpr bool kReal = !std::numeric_limits<T>::is_integer;
  OptionValue value;
  value.takes = kReal ? "X" : "N";
  value.text = [=](const TrainConfig& c) {
    if constexpr (kReal) return exact(member.of(c));
    return fmt::format("{}", member.of(c));
  };
  value.read = [=](TrainConfig& c, const std::string& text) -> std::string {
    const std::optional<T> found = parse_number<T>(text);
    if (!found || !std::isfinite(static_cast<double>(*found))) {
      // GCC 14 refuses a conditional expression here, as a call of a consteval function
      if constexpr (kReal) return "must be a finite number";
      return fmt::format("must be a whole number of at most {}", std::numeric_limits<T>::max());
    }
    member.of(c) = *found;
    return {};
  };
  value.out_of_range = [=](const TrainConfig& c) {
    return range.has(static_cast<double>(member.of(c))) ? std::string() : range.text();
  };
  return value;
}

/// One of the texts `names`; `set` stores it.
inline OptionValue one_of(std::vector<std::string> names, std::function<std::string(const TrainConfig&)> text,
                          std::function<void(TrainConfig&, const std::string&)> set) {
  std::string must = "must be one of ";
  for (const std::string& name : names) must += concat(name == names.front() ? "" : ", ", name);
  const auto read = [=](TrainConfig& c, const std::string& given) {
    if (std::ranges::find(names, given) == names.end()) return must;
    set(c, given);
    return std::string();
  };
  return {"NAME", std::move(names), std::move(text), read, never_out_of_range};
}

/// One of the names of an enumeration.
template <class M>
OptionValue choice(M member) {
  using E = std::remove_cvref_t<decltype(member.of(std::declval<TrainConfig&>()))>;
  std::vector<std::string> names;
  for (const auto& name : names_of(E{})) names.emplace_back(name.text);
  return one_of(
      std::move(names), [=](const TrainConfig& c) { return std::string(to_string(member.of(c))); },
      [=](TrainConfig& c, const std::string& name) { member.of(c) = find_name<E>(name).value(); });
}

template <class M>
OptionValue on_off(M member) {
  return one_of(
      {"on", "off"}, [=](const TrainConfig& c) { return std::string(member.of(c) ? "on" : "off"); },
      [=](TrainConfig& c, const std::string& word) { member.of(c) = word == "on"; });
}

inline OptionValue name_among(std::string TrainConfig::*at, std::vector<std::string> names) {
  return one_of(
      std::move(names), [=](const TrainConfig& c) { return c.*at; },
      [=](TrainConfig& c, const std::string& name) { c.*at = name; });
}

/// Off unless given.
inline OptionValue flag(bool TrainConfig::*at) {
  OptionValue value;
  value.text = [=](const TrainConfig& c) { return std::string(c.*at ? "true" : "false"); };
  value.read = [=](TrainConfig& c, const std::string& text) {
    c.*at = text == "true";
    return std::string();
  };
  value.out_of_range = never_out_of_range;
  return value;
}

/// A path or a name.
inline OptionValue words(std::string TrainConfig::*at, bool may_be_empty) {
  const auto read = [=](TrainConfig& c, const std::string& text) -> std::string {
    if (text.empty() && !may_be_empty) return "must not be empty";
    c.*at = text;
    return {};
  };
  return {"PATH", {}, [=](const TrainConfig& c) { return c.*at; }, read, never_out_of_range};
}

/// Any text for which the optional that `parse` returns has a value; `print` is the inverse.
template <class M, class Parse, class Print>
OptionValue parsed(std::string takes, const char* must, M member, Parse parse, Print print) {
  const auto read = [=](TrainConfig& c, const std::string& text) -> std::string {
    if (auto found = parse(text)) return member.of(c) = std::move(*found), std::string();
    return must;
  };
  return {std::move(takes),
          {},
          [=](const TrainConfig& c) { return std::string(print(member.of(c))); },
          read,
          never_out_of_range};
}

/// A path, or none.
OptionValue path_or_none(std::string TrainConfig::*at);
/// A whole number, or none.
OptionValue number_or_none(std::optional<std::uint64_t> comm::Aggregation::*at);
/// Names of options, each with or without its dashes.
OptionValue option_names(std::vector<std::string> TrainConfig::*at);
/// The part of an Aggregation that --aggregate sets; other options set the rest.
OptionValue aggregate();
OptionValue fractions(std::vector<double> TrainConfig::*at);
OptionValue image_sizes(std::vector<ImageSize> TrainConfig::*at);
OptionValue trace_window(TraceWindow TrainConfig::*at);

}  // namespace cifar_mpi::config
