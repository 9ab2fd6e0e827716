#include "app/values.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/model/net_spec.hpp"
#include "cifar_mpi/train/config.hpp"

namespace cifar_mpi::app {
namespace {

template <class T>
std::optional<T> parse(std::string_view text) {
  constexpr bool kWhole = std::numeric_limits<T>::is_integer;
  std::string_view digits = text;
  if (!kWhole && text.size() > 1 && text[0] == '+' && text[1] != '-') digits.remove_prefix(1);
  T value{};
  const char* const end = digits.data() + digits.size();
  const auto [rest, error] = std::from_chars(digits.data(), end, value);
  if (error != std::errc{} || rest != end) return std::nullopt;
  // CLI11, which reads the text again, takes 010 for an octal number.
  if (kWhole && std::to_string(value) != text) return std::nullopt;
  return value;
}

template <class T>
std::string range(T low, T high) {
  using Limits = std::numeric_limits<T>;
  constexpr bool kReal = !Limits::is_integer;
  if (kReal && low == Limits::lowest() && high == Limits::max()) return "a finite number";
  return concat(kReal ? "a number from " : "a whole number from ", low, " to ", high);
}

/// Nothing where one of them is no number.
std::optional<std::vector<double>> parse_list(const std::string& text) {
  std::vector<double> values;
  for (std::size_t at = 0; !text.empty() && at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::optional<double> value = parse<double>(std::string_view(text).substr(at, end - at));
    if (!value || !std::isfinite(*value)) return std::nullopt;
    values.push_back(*value);
    at = end + 1;
  }
  return values;
}

std::optional<train::TraceWindow> parse_window(const std::string& text) {
  const std::size_t dash = text.find('-');
  if (dash == std::string::npos) return std::nullopt;
  const auto first = parse<std::uint64_t>(text.substr(0, dash));
  const auto last = parse<std::uint64_t>(text.substr(dash + 1));
  if (!first || !last || *first == 0) return std::nullopt;
  return train::TraceWindow{*first, *last};
}

}  // namespace

template <class T>
CLI::Validator number(T low, T high) {
  const auto check = [low, high](const std::string& text) -> std::string {
    const std::optional<T> value = parse<T>(text);
    if (value && *value >= low && *value <= high) return {};  // neither holds for NaN
    return concat("must be ", range(low, high), ", not '", text, "'");
  };
  return CLI::Validator(check, "");
}

template CLI::Validator number<int>(int, int);
template CLI::Validator number<std::int64_t>(std::int64_t, std::int64_t);
template CLI::Validator number<std::uint64_t>(std::uint64_t, std::uint64_t);
template CLI::Validator number<double>(double, double);

CLI::Validator number_list() {
  const auto check = [](const std::string& text) -> std::string {
    if (parse_list(text)) return {};
    return concat("must be numbers with commas between them, such as 0.5,0.75, not '", text, "'");
  };
  return CLI::Validator(check, "");
}

std::vector<double> numbers_of(const std::string& text) {
  return parse_list(text).value_or(std::vector<double>{});
}

CLI::Validator trace_window() {
  const auto check = [](const std::string& text) -> std::string {
    if (text == "none" || parse_window(text)) return {};
    return concat("must be the first and the last step to trace, such as 1000-1009, or none, not '", text,
                  "'");
  };
  return CLI::Validator(check, "");
}

train::TraceWindow trace_window_of(const std::string& text) {
  return parse_window(text).value_or(train::TraceWindow{});
}

CLI::Validator aggregate() {
  const auto check = [](const std::string& text) -> std::string {
    const std::optional<int> value = parse<int>(text);
    if (text == "all" || text == "async" || (value && *value >= 1)) return {};
    return concat("must be a number of at least 1, all or async, not '", text, "'");
  };
  return CLI::Validator(check, "");
}

comm::Aggregation aggregation_of(const std::string& text) {
  return {.pushes = parse<int>(text).value_or(0), .asynchronous = text == "async"};
}

CLI::Validator number_or_none() {
  const auto check = [](const std::string& text) -> std::string {
    if (text == "none" || parse<std::uint64_t>(text)) return {};
    return concat("must be a number from 0 on, or none, not '", text, "'");
  };
  return CLI::Validator(check, "");
}

std::optional<std::uint64_t> number_or_none_of(const std::string& text) { return parse<std::uint64_t>(text); }

CLI::Validator bucket_mib() { return number(train::kLeastBucketMib, train::kMostBucketMib); }

void add_wire(CLI::App& app, std::string& wire) {
  app.add_option("--wire", wire, "What messages carry; bf16 halves them")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
}

void add_bucket_mib(CLI::App& app, double& mib) {
  app.add_option("--bucket-mib", mib, "Least size of the spans in which gradients are summed")
      ->check(bucket_mib())
      ->capture_default_str();
}

CLI::Validator timeout() {
  const auto check = [](const std::string& text) -> std::string {
    const std::optional<double> value = parse<double>(text);
    if (value && (*value == 0.0 || (*value >= 2.0 && *value <= 1e9))) return {};
    return concat("must be 0 or a number from 2 to 1e9, not '", text, "'");
  };
  return CLI::Validator(check, "");
}

CLI::Validator model_name() {
  std::vector<std::string> names;
  for (const model::ModelInfo& info : model::catalog()) names.emplace_back(info.name);
  return CLI::IsMember(names);
}

CLI::Validator not_empty() {
  return CLI::Validator(
      [](std::string& text) { return std::string(text.empty() ? "must not be empty" : ""); }, "");
}

}  // namespace cifar_mpi::app
