#include "app/config_file.hpp"

#include "app/toml.hpp"
#include "app/values.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/input_file.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::app {
namespace {

constexpr const char* kOption = "--config";

bool is_flag(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

bool may_stand_in_file(const CLI::Option* option) {
  return option != nullptr && option->get_configurable() && !option->get_lnames().empty() &&
         !option->check_name("--help");
}

/// Whether it may stand in a file without quotes: on the command line numbers may be written in more ways.
bool is_toml_number(const std::string& value) {
  try {
    return parse_toml(concat("value = ", value), "").size() == 1;
  } catch (const Error&) {
    return false;
  }
}

std::string value_text(const CLI::Option& option) {
  if (is_flag(option)) return option.count() > 0 && option.as<bool>() ? "true" : "false";
  const std::string value = option.count() > 0 ? option.results().back() : option.get_default_str();
  // CLI11's name for an option's type, before what the checks add.
  const bool is_text = option.get_type_name().rfind("TEXT", 0) == 0;
  return is_text || !is_toml_number(value) ? toml_text(value) : value;
}

}  // namespace

void add_config(CLI::App& app) {
  app.add_option_function<std::string>(
         kOption, [](const std::string&) {},
         "Read options from a file, lines of key = value (TOML); the command line overrides it")
      ->type_name("FILE")
      ->check(not_empty())
      ->configurable(false);
}

std::map<std::string, std::string> read_config(CLI::App& app) {
  std::map<std::string, std::string> places;
  const CLI::Option* const config = app.get_option_no_throw(kOption);
  if (config == nullptr || config->count() == 0) return places;
  const std::string path = config->results().back();
  for (const TomlItem& item : parse_toml(read_text_file(path, ErrorKind::usage), path)) {
    const std::string name = "--" + item.key;
    const std::string place = concat(path, ':', item.line);
    CLI::Option* const option = app.get_option_no_throw(name);
    if (!may_stand_in_file(option)) {
      throw Error(ErrorKind::usage, concat(place, ": '", item.key,
                                           "' is no option that a file can hold; --print-config lists them"));
    }
    if (is_flag(*option) && item.value != "true" && item.value != "false")
      throw Error(ErrorKind::usage,
                  concat(place, ": ", name, " must be true or false, not '", item.value, "'"));
    if (option->count() > 0) continue;  // the command line has it
    try {
      option->add_result(item.value);
      option->run_callback();
    } catch (const CLI::ParseError& error) {
      throw Error(ErrorKind::usage, concat(place, ": ", error.what()));
    }
    places.emplace(name, place);
  }
  return places;
}

std::string write_config(const CLI::App& app, bool explained) {
  std::string text;
  std::string group;
  for (const CLI::Option* option : app.get_options()) {
    if (!may_stand_in_file(option)) continue;
    if (explained && option->get_group() != group) {
      group = option->get_group();
      text += concat(text.empty() ? "" : "\n", "# ", group, "\n");
    }
    if (explained) text += concat("\n# ", option->get_description(), '\n');
    text += concat(option->get_lnames().front(), '=', value_text(*option), '\n');
  }
  return text;
}

}  // namespace cifar_mpi::app
