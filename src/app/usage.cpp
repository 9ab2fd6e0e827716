#include "app/usage.hpp"

#include <algorithm>
#include <filesystem>

#include "app/help.hpp"
#include "app/recipes.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::app {
namespace {

/// A group of options has no name.
bool is_command(const CLI::App* part) { return !part->get_name().empty(); }

std::vector<const CLI::App*> parts_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

/// The commands of `app`, first those that were given.
std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  std::vector<const CLI::App*> commands = app.get_subcommands(is_command);
  std::ranges::stable_partition(commands, [](const CLI::App* command) { return command->parsed(); });
  return commands;
}

using Counts = std::function<bool(const CLI::Option*)>;

/// The names of the options of `app`, its groups and, of its commands, those that were given or all.
void collect_names(const CLI::App& app, const Counts& counts, bool all, std::vector<std::string>& names) {
  for (const CLI::Option* option : app.get_options(counts)) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  for (const CLI::App* part : parts_of(app)) {
    if (all || !is_command(part) || part->parsed()) collect_names(*part, counts, all, names);
  }
}

std::string similar_option(const CLI::App& app, const std::string& word, const Counts& counts, bool all) {
  std::vector<std::string> names;
  collect_names(app, counts, all, names);
  const std::string name = similar(word, names);
  return name.empty() ? name : "--" + name;
}

/// The option of that name in `app`, its groups or commands; null if there is none.
const CLI::Option* find_option(const CLI::App& app, const std::string& name) {
  if (const CLI::Option* const option = app.get_option_no_throw(name)) return option;
  for (const CLI::App* part : parts_of(app)) {
    if (const CLI::Option* const option = find_option(*part, name)) return option;
  }
  return nullptr;
}

/// What the unknown word may mean: never the word itself.
std::string meaning(const CLI::App& app, const std::string& word) {
  const Counts any = [](const CLI::Option*) { return true; };
  const std::vector<const CLI::App*> commands = commands_of(app);
  if (!word.starts_with('-') && !commands.empty()) {
    std::vector<std::string> names;
    for (const CLI::App* command : commands) names.push_back(command->get_name());
    return commands.front()->parsed() ? std::string() : similar(word, names);
  }
  if ((word + '=').starts_with("--recipe=") && find_option(app, "--config") != nullptr)
    return "--model NAME or --config jobs/recipes/NAME.toml";
  const std::string meant = similar_option(app, word, any, false);
  if (!meant.empty() && meant != word.substr(0, word.find('='))) return meant;
  for (const CLI::App* command : commands) {
    const std::string theirs = similar_option(*command, word, any, true);
    if (!theirs.empty()) return concat(app.get_name(), ' ', command->get_name(), ' ', theirs);
  }
  return {};
}

/// CLI11 lists unknown words in reverse order.
std::string explain_unknown(const CLI::App& app, const std::string& word) {
  const std::vector<const CLI::App*> commands = commands_of(app);
  const bool is_place_of_command = !commands.empty() && !commands.front()->parsed();
  const char* const kind = word.starts_with('-') ? "option" : is_place_of_command ? "command" : "word";
  const std::string meant = meaning(app, word);
  return concat("unknown ", kind, " '", word, "'",
                meant.empty() ? "" : concat(" (did you mean ", meant, "?)"));
}

std::string list(const std::vector<std::string>& names, const char* last) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += concat(i == 0 ? "" : i + 1 < names.size() ? ", " : last, names[i]);
  return text;
}

/// What `app` lacks of what it requires; empty if nothing.
std::string what_is_missing(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands()) {
    if (const std::string theirs = what_is_missing(*command); !theirs.empty()) return theirs;
  }
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_required() && option->count() == 0)
      return concat(option->get_name(option->get_positional()), " is missing");
  }
  for (const CLI::App* part : parts_of(app)) {
    if (is_command(part)) continue;
    std::vector<std::string> given, all;
    for (const CLI::Option* option : part->get_options()) {
      all.push_back(option->get_name());
      if (option->count() > 0) given.push_back(option->get_name());
    }
    if (given.size() < part->get_require_option_min()) return concat(list(all, " or "), " is missing");
    if (part->get_require_option_max() > 0 && given.size() > part->get_require_option_max())
      return concat(list(given, " and "), " cannot be combined");
  }
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(app)) names.push_back(command->get_name());
  return names.empty() ? std::string() : concat("the command is missing: ", list(names, " or "));
}

/// "; example: " and the first example of --help.
std::string example_of(const CLI::App& app) {
  constexpr std::string_view kBefore = "Examples:\n  ";
  const std::string help = app.help();
  const std::size_t at = help.find(kBefore);
  if (at == std::string::npos) return {};
  const std::size_t begin = at + kBefore.size();
  return concat("; example: ", help.substr(begin, help.find('\n', begin) - begin));
}

/// `text` with `theirs` as `ours`.
std::string reworded(const std::string& text, const std::string& theirs, const std::string& ours) {
  const std::size_t at = text.find(theirs);
  return at == std::string::npos ? text : concat(text.substr(0, at), ours, text.substr(at + theirs.size()));
}

template <class Kind>
bool is(const CLI::ParseError& error) {
  return dynamic_cast<const Kind*>(&error) != nullptr;
}

}  // namespace

std::string similar_option(const CLI::App& app, const std::string& word, const Counts& counts) {
  return similar_option(app, word, counts, true);
}

void refuse_empty_value(const std::string& name, const std::string& list) {
  throw Error(ErrorKind::usage, name, " has an empty value", list.empty() ? "" : " in '" + list + "'",
              ", as from an unset variable; give one, or leave it out");
}

void refuse_wrong_values(const CLI::App& app, int argc, const char* const* argv) {
  std::string name;
  const CLI::Option* option = nullptr;
  bool only_words = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool follows_option =
        !only_words && i > 1 && name == argv[i - 1] && option != nullptr && !is_flag(*option);
    if (word.empty()) {
      if (follows_option) refuse_empty_value(name);
      throw Error(ErrorKind::usage,
                  "a word of the command line is empty, as from an unset variable; leave it out");
    }
    only_words = only_words || word == "--";
    if (only_words) continue;
    const bool is_option = word.starts_with("--");
    const std::size_t equals = is_option ? word.find('=') : word.npos;
    if (is_option) {
      name = word.substr(0, equals);
      option = find_option(app, name);
    }
    if (equals != word.npos && equals + 1 == word.size()) refuse_empty_value(name);
    if (option == nullptr || (is_option && equals == word.npos)) continue;
    const std::string value = equals == word.npos ? word : word.substr(equals + 1);
    if (value.starts_with('=') && (equals != word.npos || follows_option))
      throw Error(ErrorKind::usage, name, " has a value that begins with '='; give it as ", name,
                  " VALUE or ", name, "=VALUE");
    const auto is_value = [&](const char* known) { return value == known; };
    constexpr const char* kFlagValues[] = {"true", "false", "on", "off", "yes", "no", "1", "0"};
    if (equals != word.npos && is_flag(*option) && std::ranges::none_of(kFlagValues, is_value))
      throw Error(ErrorKind::usage, name, " must be true or false, not '", value, "'; see --help");
    std::error_code none;
    const bool follows_flag = equals == word.npos && name == argv[i - 1] && is_flag(*option);
    if (follows_flag && std::ranges::any_of(kFlagValues, is_value) && !std::filesystem::exists(word, none))
      throw Error(ErrorKind::usage, name, " takes no value; give it alone, or as ", name, '=', word,
                  "; see --help");
    const bool is_list = option->get_delimiter() == ',';
    if (is_list && concat(",", value, ",").find(",,") != std::string::npos) refuse_empty_value(name, value);
  }
}

std::string explain(const CLI::ParseError& error, const CLI::App& app) {
  const std::string text = error.what();
  const bool lacks = is<CLI::RequiredError>(error);
  const std::vector<std::string> rest = app.remaining(true);
  if (!rest.empty() && (lacks || is<CLI::ExtrasError>(error))) return explain_unknown(app, rest.front());
  if (lacks) {
    const std::string missing = what_is_missing(app);
    return missing.empty() ? text : missing + example_of(app);
  }
  if (is<CLI::RequiresError>(error)) return reworded(text, " requires ", " needs ") + "; add it";
  if (is<CLI::ExcludesError>(error))
    return reworded(text, " excludes ", " cannot be combined with ") + "; leave one of them out";
  if (is<CLI::ValidationError>(error) && text.starts_with("--model: ") &&
      find_option(app, "--config") != nullptr) {
    const std::string name = app.get_option("--model")->results().back();
    return recipe_of(name) ? concat(text, "; its recipe is --config jobs/recipes/", name, ".toml") : text;
  }
  const bool cut_off =
      is<CLI::ArgumentMismatch>(error) && text.ends_with(" missing");  // "--lr: 1 required X missing"
  return cut_off ? concat(text.substr(0, text.find(':')), " has no value") : text;
}

}  // namespace cifar_mpi::app
