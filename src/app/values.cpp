#include "app/values.hpp"

#include <algorithm>
#include <cstdint>

#include "cifar_mpi/base/parse_number.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/config/config.hpp"
#include "cifar_mpi/model/net_spec.hpp"

namespace cifar_mpi::app {
namespace {

template <class T>
std::string range(T low, T high) {
  using Limits = std::numeric_limits<T>;
  constexpr bool kReal = !Limits::is_integer;
  if (kReal && low == Limits::lowest() && high == Limits::max()) return "a finite number";
  return concat(kReal ? "a number from " : "a whole number from ", low, " to ", high);
}

}  // namespace

template <class T>
CLI::Validator number(T low, T high) {
  const auto check = [low, high](const std::string& text) -> std::string {
    const std::optional<T> value = parse_number<T>(text);
    if (value && *value >= low && *value <= high) return {};  // neither holds for NaN
    return concat("must be ", range(low, high), ", not '", text, "'");
  };
  return CLI::Validator(check, "");
}

template CLI::Validator number<int>(int, int);
template CLI::Validator number<std::int64_t>(std::int64_t, std::int64_t);
template CLI::Validator number<std::uint64_t>(std::uint64_t, std::uint64_t);
template CLI::Validator number<double>(double, double);

CLI::Validator one_of(const std::vector<std::string>& names) {
  std::string listed;
  for (const std::string& name : names) listed += concat(listed.empty() ? "" : ", ", name);
  const auto check = [names, listed](const std::string& text) {
    const bool known = std::ranges::find(names, text) != names.end();
    return known ? std::string() : concat("must be one of ", listed, ", not '", text, "'");
  };
  return CLI::Validator(check, concat('{', listed, '}'));
}

void add_wire(CLI::App& app, std::string& wire) {
  app.add_option("--wire", wire, "Gradient format on the network; bf16 halves the bytes")
      ->check(one_of({"fp32", "bf16"}));
}

void add_bucket_mib(CLI::App& app, double& mib) {
  app.add_option("--bucket-mib", mib, "Smallest span of gradients that is summed, in MiB")
      ->check(number(config::kLeastBucketMib, config::kMostBucketMib));
}

CLI::Validator threads() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const bool known = text == "auto" || number(1, 4096)(text).empty();
        if (!known) return concat("must be auto or a whole number from 1 to 4096, not '", text, "'");
        if (text == "auto") text = "0";
        return {};
      },
      "");
}

CLI::Validator timeout() {
  const auto check = [](std::string& text) -> std::string {
    const std::optional<double> value = parse_number<double>(text);
    const bool known = text == "never" || (value && *value >= 2.0 && *value <= 1e9);
    if (!known) return concat("must be never or a number from 2 to 1e9, not '", text, "'");
    if (text == "never") text = "0";
    return {};
  };
  return CLI::Validator(check, "");
}

CLI::Validator model_name() {
  std::vector<std::string> names;
  for (const model::ModelInfo& info : model::catalog()) names.emplace_back(info.name);
  return one_of(names);
}

}  // namespace cifar_mpi::app
