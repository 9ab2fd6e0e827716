#include "cifar_mpi/forecast/links.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <span>
#include <string_view>
#include <system_error>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/input_file.hpp"
#include "cifar_mpi/base/text.hpp"
#include "report/json.hpp"

namespace cifar_mpi::forecast {
namespace {

using Unit = std::pair<std::string_view, double>;
constexpr std::array kTimes = {Unit{"ns", 1e-9}, Unit{"us", 1e-6}, Unit{"ms", 1e-3}, Unit{"s", 1.0}};
constexpr std::array kSpeeds = {Unit{"kbit", 125.0}, Unit{"mbit", 125e3}, Unit{"gbit", 125e6}};

/// NaN if `text` is not a number with one of the units.
template <class Units>
double read_quantity(std::string_view text, const Units& units) {
  double value = 0.0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit(rest, static_cast<std::size_t>(text.data() + text.size() - rest));
  std::ranges::transform(unit, unit.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; });
  const auto found = std::ranges::find(units, unit, &Unit::first);
  if (error != std::errc{} || found == units.end()) return std::numeric_limits<double>::quiet_NaN();
  return value * found->second;
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t comma = 0; comma != text.npos; text.remove_prefix(comma == text.npos ? 0 : comma + 1)) {
    comma = text.find(',');
    words.push_back(text.substr(0, comma));
  }
  return words;
}

/// The value of a member of the outermost object, as text; empty if there is none. It skips all else unread:
/// a study has lists of texts and many members, which JsonObject refuses.
std::string_view member_text(std::string_view json, std::string_view name) {
  int depth = 0;
  std::size_t begin = json.npos;
  std::string_view key;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '"') {
      const std::size_t open = i + 1;
      for (i = open; i < json.size() && json[i] != '"';) i += json[i] == '\\' ? 2 : 1;
      if (depth == 1 && begin == json.npos) key = json.substr(open, std::min(i, json.size()) - open);
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (depth == 1 && begin != json.npos && (c == ',' || c == '}')) {
      return json.substr(begin, i - begin);
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == ':' && depth == 1 && key == name && begin == json.npos) {
      begin = json.find_first_not_of(" \t\r\n", i + 1);
      i = std::min(begin, json.size()) - 1;
    }
  }
  return {};
}

bool positive(double value) { return value > 0.0 && std::isfinite(value); }
bool is_time(double value) { return value >= 0.0 && std::isfinite(value); }

}  // namespace

double Links::seconds(double bytes, int flows) const {
  const auto above = std::ranges::find_if(message, [&](const auto& m) { return m.first > bytes; });
  const double others = occupied_s(bytes, flows - 1);
  if (above == message.begin()) return above->second + others;
  const auto& [low, low_s] = *(above - 1);
  if (above == message.end()) return low_s + (bytes - low) / bytes_per_s + others;
  return low_s + (bytes - low) / (above->first - low) * (above->second - low_s) + others;
}

Links Links::without_bytes() const {
  Links links = *this;
  links.message.resize(1);
  links.bytes_per_s = std::numeric_limits<double>::infinity();
  return links;
}

Links Links::without_latency() const {
  Links links = *this;
  for (auto& [bytes, seconds] : links.message) seconds = bytes / bytes_per_s;
  return links;
}

Links parse_links(const std::string& text) {
  const std::vector<std::string_view> words = words_of(text);
  const double latency_s = read_quantity(words[0], kTimes);
  const double bytes_per_s = words.size() > 1 ? read_quantity(words[1], kSpeeds) : 0.0;
  const double message_s = words.size() > 2 ? read_quantity(words[2], kTimes) : 0.0;
  if (!is_time(latency_s) || !positive(bytes_per_s) || !is_time(message_s) || words.size() > 3)
    throw Error(ErrorKind::usage,
                "--link takes a latency of at least zero and a bandwidth above zero, as in 20us,10gbit, and "
                "optionally the time that each end spends on a message, as in 20us,10gbit,1us; not '",
                text, "'; units: ns, us, ms, s and kbit, mbit, gbit (per second)");
  return {.message = {{0.0, latency_s + 2.0 * message_s}}, .bytes_per_s = bytes_per_s};
}

Links read_links(const std::string& path) {
  const auto refuse = [&](const std::string& what,
                          const std::string& remedy =
                              "write it with cifar_mpi_bench links --json or tools/study on the cluster") {
    throw Error(ErrorKind::usage, "--links ", path, ": ", what, "; ", remedy);
  };
  std::error_code none;
  const bool is_folder = std::filesystem::is_directory(path, none);
  const InputFile file(is_folder ? path + "/study.json" : path);
  const std::string other = "name the folder of a study, or a file of links";
  if (is_folder && file.missing()) refuse("this folder has no study.json", other);
  if (!file.problem().empty()) refuse(file.problem(), other);
  if (file.size() > (64 << 20)) refuse("it is larger than 64 MiB", other);
  std::string content(file.size(), '\0');
  if (!file.read(std::as_writable_bytes(std::span(content)))) refuse("it cannot be read to its end", other);
  std::string_view text = content;
  if (member_text(text, "format") == "\"cifar_mpi study\"") {
    if (const auto version = member_text(text, "version"); version != "2")
      refuse(concat("a study of version ", version, ", not 2"), "rerun its command to write it anew");
    text = member_text(text, "links");
    if (text.empty()) refuse("the study has no links", "rerun its command to write it anew");
    if (text == "null")
      refuse("the study measured no links between nodes", "run its part links on two or more nodes");
  }
  report::JsonObject object;
  if (const std::string problem = object.parse(text); !problem.empty())
    refuse(concat("neither a study nor a file of links (", problem, ")"));
  if (object.text("format") != "cifar_mpi links") refuse("neither a study nor a file of links");
  if (object.number("version") != 1.0) refuse("not a file of links in format version 1");
  Links links{.message = {},
              .bytes_per_s = 125e6 * object.number("bandwidth_gbit_s"),
              .memory_bytes_per_s = 1e9 * object.number("memory_gb_s")};
  const auto bytes = object.numbers("message_bytes"), us = object.numbers("message_us");
  bool good = !bytes.empty() && bytes.size() == us.size();
  for (std::size_t i = 0; good && i < bytes.size(); ++i) {
    good = positive(us[i]) && (i == 0 ? bytes[i] >= 0.0 : bytes[i] > bytes[i - 1]);
    links.message.emplace_back(bytes[i], 1e-6 * us[i]);
  }
  if (!good || !positive(links.bytes_per_s) || !positive(links.memory_bytes_per_s))
    refuse("message lengths do not ascend, or a time or a bandwidth is not above zero");
  return links;
}

}  // namespace cifar_mpi::forecast
