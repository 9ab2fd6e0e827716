#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

/// As much of JSON as metrics.jsonl needs: an object of numbers, lists of numbers, texts, true, false, null, and objects of such.
namespace cifar_mpi::report {

/// `text` in quotes. What is no UTF-8 becomes U+FFFD, so that the result is always JSON; `<`, `>` and `&` are escaped
/// too, so that it may stand in an HTML page's <script>.
std::string json_text(std::string_view text);

/// NaN and infinities, which JSON does not have, become null.
std::string json_number(double value);

/// One object. A member of an object in it is named "outer.inner".
class JsonObject {
 public:
  using Numbers = std::vector<double>;
  using Value = std::variant<std::monostate, bool, double, std::string, Numbers>;  ///< monostate: null

  /// Reads all of `text`; the empty string when it is an object, else what is wrong with it. Members are then those
  /// found before. Lists of anything but numbers are refused, and so are a name that comes twice, numbers that a double
  /// cannot hold, objects more than four deep, and more than 64 members.
  std::string parse(std::string_view text);

  const std::vector<std::pair<std::string, Value>>& members() const { return members_; }
  /// Null when there is no such member.
  const Value* find(std::string_view name) const;
  /// NaN when it is not there, or no number.
  double number(std::string_view name) const;
  /// Empty when it is not there, or no text.
  std::string text(std::string_view name) const;
  /// Empty when it is not there, or no list.
  Numbers numbers(std::string_view name) const;

 private:
  std::vector<std::pair<std::string, Value>> members_;
};

}  // namespace cifar_mpi::report
