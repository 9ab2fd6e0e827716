#include "report/json.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::report {
namespace {

void append_utf8(std::string& text, std::uint32_t c) {
  const auto put = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

/// Reads from the front of a text; stores the first error, and reads nothing after it.
class Parser {
 public:
  using Members = std::vector<std::pair<std::string, JsonObject::Value>>;
  Parser(std::string_view text, Members& members) : rest_(text), size_(text.size()), members_(members) {}

  std::string run() {
    object("", 1);
    skip_blanks();
    if (wrong_.empty() && !rest_.empty()) fail("nothing more");
    return wrong_;
  }

 private:
  static constexpr int kDeepest = 4;
  static constexpr std::size_t kMost = 64;

  bool fail(std::string_view expected) {
    if (wrong_.empty()) wrong_ = concat("expected ", expected, " at character ", size_ - rest_.size() + 1);
    return false;
  }
  void skip_blanks() {
    while (!rest_.empty() && std::string_view(" \t\r\n").find(rest_.front()) != std::string_view::npos)
      rest_.remove_prefix(1);
  }
  bool take(std::string_view word) {
    skip_blanks();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  bool object(const std::string& prefix, int depth) {
    if (!take("{")) return fail("{");
    if (depth > kDeepest) return fail("no deeper object");
    if (take("}")) return true;
    do {
      std::string name;
      if (!string(name)) return false;
      name.insert(0, prefix);
      if (members_.size() >= kMost) return fail("no more than 64 members");
      for (const auto& member : members_) {
        if (member.first == name) return fail("no second \"" + name + "\"");
      }
      if (!take(":")) return fail(":");
      if (!value(name, depth)) return false;
    } while (take(","));
    return take("}") || fail(", or }");
  }

  bool value(const std::string& name, int depth) {
    skip_blanks();
    const char first = rest_.empty() ? '\0' : rest_.front();
    if (first == '{') return object(name + ".", depth + 1);
    JsonObject::Value value;
    if (first == '"') {
      std::string text;
      if (!string(text)) return false;
      value = std::move(text);
    } else if (starts_number()) {
      double number = 0.0;
      if (!read_number(number)) return false;
      value = number;
    } else if (first == '[') {
      JsonObject::Numbers numbers;
      if (!read_list(numbers)) return false;
      value = std::move(numbers);
    } else if (take("true")) {
      value = true;
    } else if (take("false")) {
      value = false;
    } else if (!take("null")) {
      return fail("a value");
    }
    members_.emplace_back(name, std::move(value));
    return true;
  }

  bool starts_number() const {
    return !rest_.empty() && (rest_.front() == '-' || (rest_.front() >= '0' && rest_.front() <= '9'));
  }

  bool read_list(JsonObject::Numbers& numbers) {
    take("[");
    if (take("]")) return true;
    do {
      skip_blanks();
      if (!starts_number()) return fail("a number");
      if (!read_number(numbers.emplace_back())) return false;
    } while (take(","));
    return take("]") || fail(", or ]");
  }

  /// from_chars also accepts "inf", which cannot occur here, and "1." and leading zeros, which are harmless.
  bool read_number(double& number) {
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
    if (error != std::errc() || !std::isfinite(number)) return fail("a number of double precision");
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return true;
  }

  bool string(std::string& text) {
    if (!take("\"")) return fail("\"");
    for (;;) {
      if (rest_.empty() || static_cast<unsigned char>(rest_.front()) < 0x20) return fail("the end of a text");
      const char c = rest_.front();
      rest_.remove_prefix(1);
      if (c == '"') return true;
      if (c != '\\') {
        text += c;
      } else if (!escape(text)) {
        return fail("a valid escape");
      }
    }
  }

  bool escape(std::string& text) {
    constexpr std::string_view kNames = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    if (rest_.empty()) return false;
    const std::size_t known = kNames.find(rest_.front());
    if (known == std::string_view::npos && rest_.front() != 'u') return false;
    rest_.remove_prefix(1);
    if (known != std::string_view::npos) {
      text += kMeanings[known];
      return true;
    }
    std::optional<std::uint32_t> c = four_digits();
    if (c && *c >= 0xD800 && *c < 0xDC00 && rest_.starts_with("\\u")) {
      rest_.remove_prefix(2);
      const std::optional<std::uint32_t> low = four_digits();
      if (!low || *low < 0xDC00 || *low >= 0xE000) return false;
      c = 0x10000 + ((*c - 0xD800) << 10) + (*low - 0xDC00);
    }
    if (!c || (*c >= 0xD800 && *c < 0xE000)) return false;
    append_utf8(text, *c);
    return true;
  }

  std::optional<std::uint32_t> four_digits() {
    std::uint32_t value = 0;
    if (rest_.size() < 4) return std::nullopt;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + 4, value, 16);
    if (error != std::errc() || end != rest_.data() + 4) return std::nullopt;
    rest_.remove_prefix(4);
    return value;
  }

  std::string_view rest_;
  std::size_t size_;
  Members& members_;
  std::string wrong_;
};

}  // namespace

std::string json_text(std::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char c = text.front();
    if (length == 0) {
      quoted += "\\ufffd";
    } else if (length == 1 && (static_cast<unsigned char>(c) < 0x20 || c == 0x7F ||
                               std::string_view("\"\\<>&").find(c) != std::string_view::npos)) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else if (length == 3 && (text.starts_with("\xE2\x80\xA8") || text.starts_with("\xE2\x80\xA9"))) {
      quoted += text[2] == '\xA8' ? "\\u2028" : "\\u2029";  // ends a line in old JavaScript
    } else {
      quoted += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return quoted + "\"";
}

std::string json_number(double value) { return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null"; }

std::string JsonObject::parse(std::string_view text) {
  members_.clear();
  return Parser(text, members_).run();
}

const JsonObject::Value* JsonObject::find(std::string_view name) const {
  for (const auto& member : members_) {
    if (member.first == name) return &member.second;
  }
  return nullptr;
}

}  // namespace cifar_mpi::report
