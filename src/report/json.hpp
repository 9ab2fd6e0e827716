#pragma once

#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

/// The subset of JSON that metrics.jsonl needs: objects of numbers, lists of numbers, texts, true, false,
/// null, and nested objects of these.
namespace cifar_mpi::report {

/// `text` in quotes. Bytes that are not UTF-8 become U+FFFD, so that the result is always JSON; `<`, `>` and
/// `&` are escaped too, so that it may be placed in an HTML page's <script>.
std::string json_text(std::string_view text);

/// NaN and infinities, which JSON cannot express, become null.
std::string json_number(double value);

/// One object. A member of an object in it is named "outer.inner".
class JsonObject {
 public:
  using Numbers = std::vector<double>;
  using Value = std::variant<std::monostate, bool, double, std::string, Numbers>;  ///< monostate: null

  /// Reads all of `text`; returns an empty string if it is an object, else the error; members are then those
  /// before the error. Refuses lists of anything but numbers, repeated names, numbers that a double cannot
  /// hold, objects more than four deep, and more than 64 members.
  std::string parse(std::string_view text);

  const std::vector<std::pair<std::string, Value>>& members() const { return members_; }
  /// Null when there is no such member.
  const Value* find(std::string_view name) const;
  /// NaN if it is missing or not a number.
  double number(std::string_view name) const {
    return value_or(name, std::numeric_limits<double>::quiet_NaN());
  }
  /// Empty if it is missing or not a text.
  std::string text(std::string_view name) const { return value_or(name, std::string()); }
  /// Empty if it is missing or not a list.
  Numbers numbers(std::string_view name) const { return value_or(name, Numbers()); }

 private:
  template <class T>
  T value_or(std::string_view name, const T& otherwise) const {
    const Value* const value = find(name);
    const T* const found = value == nullptr ? nullptr : std::get_if<T>(value);
    return found == nullptr ? otherwise : *found;
  }

  std::vector<std::pair<std::string, Value>> members_;
};

}  // namespace cifar_mpi::report
