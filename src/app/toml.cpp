#include "app/toml.hpp"

#include <fmt/core.h>
#include <toml++/toml.h>

#include <algorithm>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::app {
namespace {

constexpr std::string_view kMark = "\xef\xbb\xbf";  // some editors begin files with it

bool is_key_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/// `text` from a line on, which counts from 1.
std::string_view from_line(std::string_view text, toml::source_index line) {
  for (toml::source_index i = 1; i < line; ++i) text.remove_prefix(text.find('\n') + 1);
  return text;
}

/// Part of a line of `text`. Columns count characters from 1; everything before an option's number is ASCII.
std::string written(std::string_view text, const toml::source_region& source) {
  return std::string(from_line(text, source.begin.line)
                         .substr(source.begin.column - 1, source.end.column - source.begin.column));
}

std::string_view trimmed(std::string_view text) {
  constexpr const char* kBlank = " \t\r";
  text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
  return text.substr(0, text.find_last_not_of(kBlank) + 1);
}

/// The line with quotes, if it would be an option with a text in them; else empty.
std::string with_quotes(std::string_view line) {
  const std::size_t equals = line.find('=');
  if (equals == line.npos) return {};
  const std::string_view key = trimmed(line.substr(0, equals));
  std::string_view value = line.substr(equals + 1);
  value = trimmed(value.substr(0, value.find('#')));
  const auto is_plain = [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\''; };
  const bool is_word = !value.empty() && (value[0] == '/' || (is_key_char(value[0]) && value[0] > '9')) &&
                       std::ranges::all_of(value, is_plain);
  return is_word && !key.empty() && std::ranges::all_of(key, is_key_char)
             ? concat(key, " = ", toml_text(value))
             : "";
}

/// What may help against an error of the parser, whose text has `error`.
struct Remedy {
  std::string_view error;
  const char* remedy;
};
constexpr Remedy kRemedies[] = {
    {"cannot redefine", "give each option once"},
    {"could not be interpreted as a value", "the number is too large"},
    {"not representable in 64 bits", "write a number as large as this in quotes"},
};

std::string with_remedy(std::string_view error, std::string_view line) {
  for (const Remedy& known : kRemedies) {
    if (error.find(known.error) != error.npos) return concat(error, "; ", known.remedy);
  }
  // The parser takes a text without quotes for a number, true or false.
  const std::string quoted = with_quotes(line);
  return quoted.empty() ? concat(error, "; expected key = value, with texts in \"quotes\"")
                        : concat("a text needs quotes: ", quoted);
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& name) : text_(text), name_(name) {
    if (text_.starts_with(kMark)) text_.remove_prefix(kMark.size());
  }

  TomlItem item(const toml::key& key, const toml::node& node) const {
    const std::string name(key.str());
    const auto line = static_cast<int>(key.source().begin.line);
    if (!std::ranges::all_of(name, is_key_char)) fail(key, concat("'", name, "' is not an option name"));
    if (node.is_table())
      fail(node, "sections and tables are not supported; give one option per line as key = value");
    if (node.is_string()) {
      std::string value = node.ref<std::string>();
      if (value.find('\0') != std::string::npos) fail(key, concat("the text of '", name, "' holds a NUL"));
      return {name, std::move(value), line};
    }
    if (node.is_boolean()) return {name, node.ref<bool>() ? "true" : "false", line};
    if (!node.is_number())
      fail(key,
           concat("the value of '", name,
                  "' must be a number, true, false or a text in quotes; lists and dates are not supported"));
    // Passes a number on as text, because the option checks it.
    std::string value = written(text_, node.source());
    if (value.find_first_not_of("0123456789+-.eE") != std::string::npos)
      fail(key, concat("the number of '", name, "' must be decimal, like 1000 or 1e-3, not ", value));
    return {name, std::move(value), line};
  }

 private:
  template <class Place>
  [[noreturn]] void fail(const Place& place, const std::string& what) const {
    throw Error(ErrorKind::usage, name_, ':', place.source().begin.line, ": ", what);
  }

  std::string_view text_;
  const std::string& name_;
};

}  // namespace

std::vector<TomlItem> parse_toml(std::string_view text, const std::string& name) {
  std::vector<TomlItem> items;
  try {
    const Reader reader(text, name);
    const toml::table table = toml::parse(text, std::string_view(name));
    std::vector<std::pair<const toml::key*, const toml::node*>> in_order;  // the table sorts by name
    for (const auto& [key, node] : table) in_order.emplace_back(&key, &node);
    std::ranges::sort(in_order, {}, [](const auto& entry) { return entry.first->source().begin.line; });
    for (const auto& [key, node] : in_order) items.push_back(reader.item(*key, *node));
  } catch (const toml::parse_error& error) {
    const toml::source_index line = error.source().begin.line;
    const std::string_view rest = from_line(text, line);
    throw Error(ErrorKind::usage, name, ':', line, ": ",
                with_remedy(error.description(), rest.substr(0, rest.find('\n'))));
  }
  return items;
}

std::string toml_text(std::string_view value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      text += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      text += fmt::format("\\u{:04X}", static_cast<unsigned>(c));
    } else {
      text += c;
    }
  }
  return text + '"';
}

}  // namespace cifar_mpi::app
