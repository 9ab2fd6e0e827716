#include <algorithm>
#include <cctype>
#include <numeric>
#include <utility>
#include <vector>

#include "app/usage.hpp"

namespace cifar_mpi::app {
namespace {

/// "--Batch_Size=8" as "batch-size".
std::string plain(std::string word) {
  word.erase(0, std::min(word.find_first_not_of('-'), word.size()));
  word.resize(std::min(word.find('='), word.size()));
  for (char& c : word) c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return word;
}

/// "learning" and "rate" of "learning-rate".
std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts(1);
  for (const char c : name) {
    if (c == '-')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

/// "lr" of "learning-rate".
std::string initials(const std::string& name) {
  std::string text;
  for (const std::string& part : parts_of(name)) text += part.substr(0, 1);
  return text;
}

/// Characters to insert, delete or replace, and neighbours to exchange.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before, above, row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    before = std::exchange(above, row);
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      row[j + 1] = std::min({above[j] + (a[i] == b[j] ? 0 : 1), row[j] + 1, above[j + 1] + 1});
      if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j])
        row[j + 1] = std::min(row[j + 1], before[j - 1] + 1);
    }
  }
  return row.back();
}

/// At most a third of the characters may differ; one if the first does, which is seldom mistyped.
bool is_typing_error(const std::string& asked, const std::string& name, std::size_t errors) {
  const std::size_t most = asked.front() == name.front() ? std::max(asked.size() / 3, std::size_t{1}) : 1;
  return errors <= std::min(most, asked.size() - 1);
}

/// The last part of "batch-size" is missing, "model-name" has one too many, and "lr0.1" a value.
bool shares_parts(const std::string& asked, const std::string& name) {
  const std::vector<std::string> given = parts_of(asked), parts = parts_of(name);
  const bool begins = given.size() < parts.size() && std::equal(given.begin(), given.end(), parts.begin());
  const bool contains =
      std::ranges::all_of(parts, [&](const auto& part) { return std::ranges::count(given, part) > 0; });
  if (begins || contains) return true;
  constexpr std::size_t kWord = 4;  // "data" of "dataset"
  return asked.starts_with(name) &&
         (name.size() >= kWord || std::isdigit(static_cast<unsigned char>(asked[name.size()])) != 0);
}

constexpr std::size_t kShort = 1, kTyped = 2, kShared = 1000, kOther = 1'000'000;

/// How unlike the name is; kOther: it is another one.
std::size_t unlikeness(const std::string& asked, const std::string& name) {
  if (asked == name) return 0;
  if (asked.empty() || name.size() < 2) return kOther;
  if (name == initials(asked) || (asked.size() > 1 && asked == initials(name))) return kShort;
  const std::size_t errors = distance(asked, name);
  if (is_typing_error(asked, name, errors)) return kTyped + errors;
  return shares_parts(asked, name) ? kShared + errors : kOther;
}

}  // namespace

std::string similar(const std::string& word, const std::vector<std::string>& names) {
  const std::string asked = plain(word);
  std::size_t least = kOther;
  std::string best;
  for (const std::string& name : names) {
    const std::size_t found = unlikeness(asked, name);
    if (found == kShort && least == kShort) best.clear();  // initials of several
    if (found >= least) continue;
    least = found;
    best = name;
  }
  return best;
}

}  // namespace cifar_mpi::app
