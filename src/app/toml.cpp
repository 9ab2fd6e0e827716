#include "app/toml.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::app {
namespace {

constexpr std::string_view kBlank = " \t";
constexpr std::string_view kEscapes = "b\bt\tn\nf\fr\r\"\"\\\\";  // pairs of the letter and what it means

bool is_control(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; }

bool is_key_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

void append_utf8(std::string& text, std::uint32_t code) {
  const auto tail = [&](unsigned shift) { text += static_cast<char>(0x80 | ((code >> shift) & 0x3f)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xc0 | (code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    text += static_cast<char>(0xe0 | (code >> 12));
    tail(6), tail(0);
  } else {
    text += static_cast<char>(0xf0 | (code >> 18));
    tail(12), tail(6), tail(0);
  }
}

/// One line, read from left to right.
class Line {
 public:
  Line(std::string_view rest, const std::string& name, int number)
      : rest_(rest), name_(name), number_(number) {}

  [[noreturn]] void fail(const std::string& text) const {
    throw Error(ErrorKind::usage, concat(name_, ':', number_, ": ", text));
  }

  bool at_end() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(kBlank), rest_.size()));
    return rest_.empty() || rest_.front() == '#';
  }

  TomlItem item() {
    if (rest_.front() == '[') fail("sections are not known here; give one option per line as key = value");
    const auto end = std::find_if_not(rest_.begin(), rest_.end(), is_key_char);
    TomlItem item{std::string(rest_.begin(), end), {}, number_};
    rest_.remove_prefix(item.key.size());
    if (item.key.empty() || at_end() || rest_.front() != '=')
      fail("expected key = value, with the name of an option as the key");
    rest_.remove_prefix(1);
    if (at_end()) fail(concat("'", item.key, "' has no value; an empty text is written \"\""));
    item.value = value(item.key);
    if (!at_end()) fail(concat("unexpected text after the value of '", item.key, "': ", rest_));
    return item;
  }

 private:
  std::string value(const std::string& key) {
    switch (rest_.front()) {
      case '"':
        return basic(key);
      case '\'':
        return literal(key);
      default:
        return bare(key);
    }
  }

  std::string bare(const std::string& key) {
    const std::size_t end = std::min(rest_.find_first_of(" \t\"'#[]{},="), rest_.size());
    if (end == 0 || (end < rest_.size() && kBlank.find(rest_[end]) == std::string_view::npos)) {
      fail(
          concat("the value of '", key,
                 "' must be a number, true, false or a text in quotes; lists and tables are not known here"));
    }
    return take(end);
  }

  std::string literal(const std::string& key) {
    const std::size_t end = rest_.find('\'', 1);
    if (end == std::string_view::npos) fail(concat("the text of '", key, "' has no closing quote"));
    return take(end + 1).substr(1, end - 1);
  }

  std::string basic(const std::string& key) {
    std::string text;
    for (std::size_t at = 1; at < rest_.size(); ++at) {
      if (rest_[at] == '"') {
        take(at + 1);
        return text;
      }
      if (rest_[at] == '\\') {
        at = escape(at + 1, text);
      } else {
        text += rest_[at];
      }
    }
    fail(concat("the text of '", key, "' has no closing quote"));
  }

  /// Appends what the escape whose letter stands at `at` means; returns the place of its last character.
  std::size_t escape(std::size_t at, std::string& text) const {
    const char letter = at < rest_.size() ? rest_[at] : '\0';
    for (std::size_t i = 0; i < kEscapes.size(); i += 2) {
      if (kEscapes[i] != letter) continue;
      text += kEscapes[i + 1];
      return at;
    }
    const std::size_t digits = letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    const std::string_view code_text = rest_.substr(std::min(at + 1, rest_.size()), digits);
    std::uint32_t code = 0;
    const auto [end, error] =
        std::from_chars(code_text.data(), code_text.data() + code_text.size(), code, 16);
    const bool whole = end == code_text.data() + digits && error == std::errc{};
    if (digits == 0 || !whole || code == 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
      fail(concat("unknown escape '\\", rest_.substr(std::min(at, rest_.size()), 1 + digits),
                  "'; write \\\\ for a backslash, or the text in 'single quotes'"));
    }
    append_utf8(text, code);
    return at + digits;
  }

  std::string take(std::size_t count) {
    const std::string taken(rest_.substr(0, count));
    rest_.remove_prefix(count);
    return taken;
  }

  std::string_view rest_;
  const std::string& name_;
  int number_;
};

}  // namespace

std::vector<TomlItem> parse_toml(std::string_view text, const std::string& name) {
  constexpr std::string_view kMark = "\xef\xbb\xbf";  // some editors begin files with it
  if (text.substr(0, kMark.size()) == kMark) text.remove_prefix(kMark.size());
  std::vector<TomlItem> items;
  std::map<std::string, int> first_lines;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view content = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!content.empty() && content.back() == '\r') content.remove_suffix(1);
    Line line(content, name, number);
    if (std::any_of(content.begin(), content.end(), is_control)) line.fail("control characters are not text");
    if (line.at_end() || content[content.find_first_not_of(kBlank)] == ';') continue;
    items.push_back(line.item());
    const std::string& key = items.back().key;
    if (const auto [first, added] = first_lines.emplace(key, number); !added)
      line.fail(concat("'", key, "' stands here again; line ", first->second, " has it already"));
  }
  return items;
}

std::string toml_text(std::string_view value) {
  std::string text = "\"";
  for (const char c : value) {
    std::size_t i = 0;
    while (i < kEscapes.size() && kEscapes[i + 1] != c) i += 2;
    if (i < kEscapes.size()) {
      text += {'\\', kEscapes[i]};
    } else if (is_control(c)) {
      text += format("\\u%04X", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      text += c;
    }
  }
  return text + '"';
}

}  // namespace cifar_mpi::app
