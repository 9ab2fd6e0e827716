#include "app/train_options.hpp"

#include <vector>

#include "app/device.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/config/options.hpp"
#include "config/option_values.hpp"

namespace cifar_mpi::app {
namespace {

/// The table, plus the collectives of GPUs, which only the programs know.
std::vector<config::Option> rows() {
  std::vector<config::Option> rows = config::options();
  for (config::Option& row : rows) {
    if (row.name == "--all-reduce")
      row.value = config::name_among(&config::TrainConfig::all_reduce, collective_names());
  }
  return rows;
}

/// Rejects what `row` rejects, and normalizes numbers to the form of --print-config, because ranks compare
/// them.
CLI::Validator validator(const config::Option& row) {
  const bool is_number = row.value.takes == "N" || row.value.takes == "X";
  return CLI::Validator(
      [row, is_number](std::string& text) -> std::string {
        config::TrainConfig scratch;
        const std::string refusal = config::read(row, scratch, text);
        if (!refusal.empty()) return concat(refusal, ", not '", text, "'");
        if (is_number) text = config::shown(row, scratch);
        return {};
      },
      "");
}

}  // namespace

void TrainOptions::add_to(CLI::App& app) {
  for (const config::Option& row : rows()) {
    const std::string name(row.name);
    std::string help(row.help);
    for (const std::string& choice : row.value.names)
      help += concat(choice == row.value.names.front() ? " (" : ", ", choice);
    if (!row.value.names.empty()) help += ')';
    const auto set = [this, row](const std::string& text) { config::read(row, config_, text); };
    CLI::Option* const option =
        row.value.takes.empty()
            ? app.add_flag_function(
                  name, [set](std::int64_t given) { set(given > 0 ? "true" : "false"); }, help)
            : app.add_option_function<std::string>(name, set, help)
                  ->transform(validator(row))
                  ->type_name(row.value.takes)
                  ->default_str(config::shown(row, config_));
    option->group(std::string(row.group));
  }
}

std::set<std::string> TrainOptions::everyday() {
  std::set<std::string> names;
  for (const config::Option& row : config::options()) {
    if (row.everyday) names.emplace(row.name);
  }
  return names;
}

}  // namespace cifar_mpi::app
