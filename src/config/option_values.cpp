#include "config/option_values.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cifar_mpi::config {

OptionValue path_or_none(std::string TrainConfig::*at) {
  return parsed(
      "PATH", "must not be empty", in(at),
      [](const std::string& text) {
        return text.empty() ? std::nullopt : std::optional(text == "none" ? std::string() : text);
      },
      [](const std::string& path) { return path.empty() ? "none" : path; });
}

OptionValue number_or_none(std::optional<std::uint64_t> comm::Aggregation::*at) {
  using Found = std::optional<std::uint64_t>;
  return parsed(
      "N", "must be a whole number of at least 0, or none", in(&TrainConfig::aggregation, at),
      [](const std::string& text) -> std::optional<Found> {
        if (text == "none") return Found();
        const Found found = parse_number<std::uint64_t>(text);
        return found ? std::optional<Found>(found) : std::nullopt;
      },
      [](const Found& value) { return value ? std::to_string(*value) : "none"; });
}

OptionValue option_names(std::vector<std::string> TrainConfig::*at) {
  const auto text = [=](const TrainConfig& c) {
    return (c.*at).empty() ? std::string("none") : fmt::format("{}", fmt::join(c.*at, ","));
  };
  const auto read = [=](TrainConfig& c, const std::string& given) -> std::string {
    const std::vector<std::string> known = changeable_options();
    std::vector<std::string> names;
    for (std::size_t from = 0; given != "none" && from <= given.size();) {
      const std::size_t end = std::min(given.find(',', from), given.size());
      std::string name = given.substr(from, end - from);
      name.erase(0, name.starts_with("--") ? 2 : 0);
      if (std::ranges::find(known, name) == known.end())
        return fmt::format(
            "must be none or a comma-separated list of options that a resumed run may change: {}",
            fmt::join(known, ", "));
      names.push_back(std::move(name));
      from = end + 1;
    }
    c.*at = std::move(names);
    return {};
  };
  return {"NAME,NAME", {}, text, read, never_out_of_range};
}

OptionValue aggregate() {
  const auto text = [](const TrainConfig& c) {
    const comm::Aggregation& a = c.aggregation;
    return a.asynchronous ? "async" : a.pushes == 0 ? "all" : std::to_string(a.pushes);
  };
  const auto read = [](TrainConfig& c, const std::string& given) -> std::string {
    const auto pushes = parse_number<int>(given);
    if (given != "all" && given != "async" && pushes.value_or(0) < 1)
      return "must be a whole number of at least 1, all or async";
    c.aggregation.pushes = pushes.value_or(0);
    c.aggregation.asynchronous = given == "async";
    return {};
  };
  return {"N", {}, text, read, never_out_of_range};
}

OptionValue fractions(std::vector<double> TrainConfig::*at) {
  return parsed(
      "X,X", "must be numbers separated by commas, such as 0.5,0.75", in(at),
      [](const std::string& text) -> std::optional<std::vector<double>> {
        std::vector<double> values;
        for (std::size_t from = 0; !text.empty() && from <= text.size();) {
          const std::size_t end = std::min(text.find(',', from), text.size());
          from += text[from] == ' ' && from > 0 ? 1 : 0;
          const auto value = parse_number<double>(std::string_view(text).substr(from, end - from));
          if (!value || !std::isfinite(*value)) return std::nullopt;
          values.push_back(*value);
          from = end + 1;
        }
        return values;
      },
      [](const std::vector<double>& values) {
        std::string text;
        for (const double value : values) text += (text.empty() ? "" : ", ") + exact(value);
        return text;
      });
}

OptionValue image_sizes(std::vector<ImageSize> TrainConfig::*at) {
  return parsed(
      "SIZES",
      "must be full, or sides in pixels with their epochs, the last without and none twice in a row, such as "
      "24x3,28x3,32",
      in(at), read_image_sizes, [](const std::vector<ImageSize>& sizes) { return describe(sizes); });
}

OptionValue trace_window(TraceWindow TrainConfig::*at) {
  return parsed(
      "A-B", "must be the first and the last step to trace, such as 1000-1009, or none", in(at),
      [](const std::string& text) -> std::optional<TraceWindow> {
        if (text == "none") return TraceWindow{};
        const std::size_t dash = std::min(text.find('-'), text.size());
        const auto first = parse_number<std::uint64_t>(std::string_view(text).substr(0, dash));
        const auto last =
            parse_number<std::uint64_t>(std::string_view(text).substr(std::min(dash + 1, text.size())));
        if (!first || !last || *first == 0) return std::nullopt;
        return TraceWindow{*first, *last};
      },
      [](const TraceWindow& window) { return describe(window); });
}

}  // namespace cifar_mpi::config
