#include "app/config_file.hpp"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include "app/help.hpp"
#include "app/toml.hpp"
#include "app/usage.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/input_file.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/comm/world.hpp"

namespace cifar_mpi::app {
namespace {

constexpr const char* kOption = "--config";

bool may_stand_in_file(const CLI::Option* option) {
  return option != nullptr && option->get_configurable() && !option->get_lnames().empty() &&
         !option->check_name("--help");
}

/// Whether it needs no quotes: TOML's integers have 64 bits with a sign, and auto is no number.
bool is_toml_number(const std::string& value) {
  try {
    return parse_toml(concat("value = ", value), "").size() == 1;
  } catch (const Error&) {
    return false;
  }
}

/// Whether the beginning holds a NUL, as no text does.
bool is_binary(const std::string& path) {
  const InputFile file(path);
  std::string head(std::min<std::uint64_t>(file.size(), 512), '\0');
  return !head.empty() && file.read(std::as_writable_bytes(std::span(head))) &&
         head.find('\0') != std::string::npos;
}

bool is_given(const CLI::App& app, const std::string& name) {
  const CLI::Option* const option = app.get_option_no_throw(name);
  return option != nullptr && option->count() > 0;
}

/// Two options that set the same thing: the first one holds unless it is auto.
struct Rivals {
  const char* first;
  const char* second;
  const char* what;
};
constexpr Rivals kRivals[] = {{"--steps", "--epochs", "the length of the run"},
                              {"--global-batch", "--batch-size", "the samples of a step"}};

constexpr const char* kAuto = "auto";

/// Holds for one start: from the file of a run, the next start must not take it unasked.
constexpr const char* kOfOneStart = "--allow-change";

/// The option that takes the place of `name`; null if there is none.
const char* replaced_by(const CLI::App& app, const std::string& name) {
  for (const Rivals& rivals : kRivals) {
    if (name == rivals.second && is_given(app, rivals.first) &&
        app.get_option(rivals.first)->results().back() != kAuto)
      return rivals.first;
  }
  return nullptr;
}

/// Of two rivals in the same source, neither is nearer.
void refuse_rivals(const std::vector<TomlItem>& items, const std::string& name) {
  const auto find = [&](const char* option) {
    return std::ranges::find_if(items, [&](const TomlItem& item) { return "--" + item.key == option; });
  };
  for (const Rivals& rivals : kRivals) {
    const auto first = find(rivals.first), second = find(rivals.second);
    if (first == items.end() || second == items.end() || first->value == kAuto) continue;
    throw Error(ErrorKind::usage, name, ':', std::max(first->line, second->line), ": ", first->key, " and ",
                second->key, " both set ", rivals.what, "; give one of them");
  }
}

/// Whether `name` would override another option that is already set: of two options for the same thing, the
/// one from the nearer source holds.
bool overrides_given(const CLI::App& app, const std::string& name) {
  return (name == "--global-batch" && (is_given(app, "--batch-size") || is_given(app, "--accumulate"))) ||
         (name == "--steps" && is_given(app, "--epochs"));
}

/// An empty value is refused unless it is the default, which --print-config writes.
CLI::Option& option_of(CLI::App& app, const TomlItem& item, const std::string& place) {
  const std::string name = "--" + item.key;
  CLI::Option* const option = app.get_option_no_throw(name);
  if (!may_stand_in_file(option)) {
    const std::string meant = similar_option(app, item.key, may_stand_in_file);
    throw Error(ErrorKind::usage, place, ": '", item.key, "' is no option that a file can hold",
                meant.empty() || meant == name ? "" : concat(" (did you mean ", meant.substr(2), "?)"),
                "; --print-config lists them");
  }
  if (item.value.empty() && (is_flag(*option) || !option->get_default_str().empty()))
    refuse_empty_value(concat(place, ": ", name));
  if (is_flag(*option) && item.value != "true" && item.value != "false")
    throw Error(ErrorKind::usage, place, ": ", name, " must be true or false, not '", item.value, "'");
  return *option;
}

/// Sets options that are still unset from lines of the text called `name`; `source` is that of each, if empty its
/// name and line.
void take(CLI::App& app, const std::vector<TomlItem>& items, const std::string& name, Places& places,
          const std::string& source = {}) {
  std::vector<std::pair<CLI::Option*, const TomlItem*>> chosen;
  for (const TomlItem& item : items) {
    CLI::Option& option = option_of(app, item, concat(name, ':', item.line));
    if (option.count() == 0 && !overrides_given(app, "--" + item.key)) chosen.emplace_back(&option, &item);
  }
  for (const auto& [option, item] : chosen) {
    const std::string place = concat(name, ':', item->line);
    try {
      option->add_result(item->value);
      option->run_callback();
    } catch (const CLI::ParseError& error) {
      throw Error(ErrorKind::usage, place, ": ", error.what());
    }
    places.emplace("--" + item->key, source.empty() ? place : source);
  }
}

/// Returns the items without the later lines of blocks whose first option has another value or is replaced by its rival.
std::vector<TomlItem> without_replaced_blocks(const CLI::App& app, const std::vector<TomlItem>& items) {
  std::vector<TomlItem> kept;
  bool replaced = false;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const bool is_first = i == 0 || items[i].line != items[i - 1].line + 1;
    if (is_first) {
      const std::string name = "--" + items[i].key;
      replaced = replaced_by(app, name) != nullptr ||
                 (is_given(app, name) && app.get_option(name)->results().back() != items[i].value);
    }
    if (is_first || !replaced) kept.push_back(items[i]);
  }
  return kept;
}

/// The text, preceded by the source of the option that it begins with.
std::string with_source(const Places& places, const std::string& text) {
  const auto place = places.find(text.substr(0, text.find_first_of(" :")));
  return place == places.end() ? text : concat(place->second, ": ", text);
}

std::string value_text(const CLI::Option& option) {
  if (is_flag(option)) return option.count() > 0 && option.as<bool>() ? "true" : "false";
  const std::string value = option.count() > 0 ? option.results().back() : option.get_default_str();
  const bool is_number = option.get_type_name() == "N" || option.get_type_name() == "X";
  return is_number && is_toml_number(value) ? value : toml_text(value);
}

}  // namespace

void name_sources(const Places& places, const std::function<void()>& action) {
  try {
    action();
  } catch (const comm::AgreedError& error) {
    throw comm::AgreedError(error.kind(), with_source(places, error.what()));
  } catch (const Error& error) {
    throw Error(error.kind(), with_source(places, error.what()));
  }
}

void add_config(CLI::App& app) {
  app.add_option_function<std::string>(
         kOption, [](const std::string&) {}, "File of lines key = value (TOML); options override it")
      ->type_name("FILE")
      ->configurable(false);
}

Places read_config(CLI::App& app) {
  Places places;
  const CLI::Option* const config = app.get_option_no_throw(kOption);
  if (config == nullptr || config->count() == 0) return places;
  const std::string path = config->results().back();
  std::error_code ignored;
  const bool bare = path.find('/') == std::string::npos && !std::filesystem::exists(path, ignored);
  if (bare) {
    throw Error(ErrorKind::usage, "there is no file '", path, "' for ", kOption,
                "; recipes are in jobs/recipes, as in ", kOption, " jobs/recipes/tutorial-fast.toml");
  }
  if (is_binary(path)) {
    throw Error(ErrorKind::usage, kOption, ' ', path, " is a binary file, not one in TOML; name a text file ",
                "with lines of key = value, such as the config.toml of a run");
  }
  const std::vector<TomlItem> items = parse_toml(read_text_file(path, ErrorKind::usage), path);
  refuse_rivals(items, path);
  take(app, items, path, places);
  return places;
}

void take_recipe(CLI::App& app, const Recipe& recipe, Places& places) {
  const std::string name(recipe.name);
  const std::vector<TomlItem> items = parse_toml(recipe.text, name);
  take(app, without_replaced_blocks(app, items), name, places,
       concat("in the recipe of --model ", items.front().value));
}

void take_recipe_of_optimizer(CLI::App& app, Places& places) {
  if (!is_given(app, "--optimizer") || app.get_option("--optimizer")->results().back() != "adamw") return;
  const std::string name = "--optimizer adamw";
  take(app, parse_toml("lr=0.001\n", name), name, places);
}

void refuse_rivals(const CLI::App& app) {
  for (const Rivals& rivals : kRivals) {
    if (is_given(app, rivals.second) && replaced_by(app, rivals.second) != nullptr) {
      throw Error(ErrorKind::usage, rivals.first, " and ", rivals.second, " both set ", rivals.what,
                  "; give one of them");
    }
  }
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
    const std::string& name = option->get_lnames().front();
    const std::string full = "--" + name;
    const bool is_record = replaced_by(app, full) != nullptr || (!explained && full == kOfOneStart);
    text += concat(is_record ? "# " : "", name, '=', value_text(*option), '\n');
  }
  return text;
}

}  // namespace cifar_mpi::app
