#include <algorithm>
#include <cctype>
#include <numeric>
#include <vector>

#include "app/help.hpp"

namespace cifar_mpi::app {
namespace {

/// "--Batch_Size=8" as "batch-size".
std::string plain(std::string word) {
  word.erase(0, std::min(word.find_first_not_of('-'), word.size()));
  word.resize(std::min(word.find('='), word.size()));
  for (char& c : word) c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return word;
}

/// "lr" of "learning-rate".
std::string initials(const std::string& name) {
  std::string text;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (i == 0 || name[i - 1] == '-') text += name[i];
  }
  return text;
}

/// Characters to insert, delete or replace (Levenshtein).
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

void collect_names(const CLI::App& app, const std::function<bool(const CLI::Option*)>& counts,
                   std::vector<std::string>& names) {
  for (const CLI::Option* option : app.get_options(counts)) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    collect_names(*command, counts, names);
}

}  // namespace

std::string similar_option(const CLI::App& app, const std::string& word,
                           const std::function<bool(const CLI::Option*)>& counts) {
  const std::string asked = plain(word);
  std::vector<std::string> names;
  collect_names(app, counts, names);
  // at most a third may differ, or two letters that are exchanged, but not all
  std::size_t least = std::min(std::max(asked.size() / 3, std::size_t{2}) + 1, asked.size());
  std::string best;
  for (const std::string& name : names) {
    const std::size_t found = name == initials(asked) && name.size() > 1 ? 0 : distance(asked, name);
    if (found >= least) continue;
    least = found;
    best = "--" + name;
  }
  return best;
}

}  // namespace cifar_mpi::app
