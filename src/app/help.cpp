#include "app/help.hpp"

#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "cifar_mpi/base/build_info.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::app {
namespace {

constexpr std::size_t kColumns = 80, kIndent = 26;
constexpr const char* kUsualGroup = "Options";  // of options without a group

/// `text` in lines of at most kColumns, indented by `indent` after the first, which begins at column `start`.
std::string wrapped(std::string start, const std::string& text, std::size_t indent) {
  std::string lines = start.size() + 2 > indent && indent > 0 ? start + "\n" : "";
  std::string line = lines.empty() ? std::move(start) : "";
  line.resize(std::max(indent, line.size()), ' ');
  std::istringstream words(text);
  bool first = true;
  for (std::string word; words >> word; first = false) {
    if (!first && line.size() + 1 + word.size() > kColumns) {
      lines += line + "\n";
      line = std::string(indent, ' ');
      first = true;
    }
    line += (first ? "" : " ") + word;
  }
  return lines + line + "\n";
}

/// The type is "TEXT:{a, b}" for a choice of names.
struct Type {
  std::string word;
  std::string names;
};
Type type_of(const CLI::Option& option) {
  const std::string written = option.get_type_name();
  Type type{written.substr(0, written.find(':')), {}};
  const std::size_t open = written.find('{');
  if (open != std::string::npos) return {"NAME", written.substr(open + 1, written.rfind('}') - open - 1)};
  if (type.word == "INT" || type.word == "UINT") type.word = "N";
  if (type.word == "FLOAT") type.word = "X";
  return type;
}

std::string value_of(const CLI::Option& option) {
  std::string value = option.get_default_str();
  if (option.count() > 0 && !is_flag(option))
    value = option.get_items_expected_max() == 1 ? option.results().back()
                                                 : CLI::detail::join(option.results(), ",");
  if (value.empty() || is_flag(option)) return {};
  return value.front() == '[' ? " " + value : concat(" [", value, ']');
}

std::string describe(const CLI::Option& option) {
  const Type type = is_flag(option) ? Type{} : type_of(option);
  std::string start = "  " + option.get_name(option.get_positional());
  if (!type.word.empty() && !option.get_positional()) start += " " + type.word;
  std::string text = option.get_description();
  if (!type.names.empty()) text += concat(" (", type.names, ')');
  if (option.get_required()) text += " (required)";
  return wrapped(std::move(start), text + value_of(option), kIndent);
}

std::string usage(const CLI::App& app, const std::string& name) {
  std::string text = concat("Usage: ", name, app.get_options().empty() ? "" : " [OPTIONS]");
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    const std::string word = option->get_name(true);
    text += option->get_required() ? " " + word : concat(" [", word, ']');
  }
  return text + (app.get_require_subcommand_max() > 0 ? " COMMAND\n" : "\n");
}

class Help : public CLI::FormatterBase {
 public:
  Help(std::string ending, std::set<std::string> everyday)
      : ending_(std::move(ending)), everyday_(std::move(everyday)) {}

  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    const bool all = everyday_.empty() || mode == CLI::AppFormatMode::All;
    std::string text = usage(*app, name) + "\n" + wrapped("", app->get_description(), 0);
    std::string commands;
    for (const CLI::App* part : app->get_subcommands([](const CLI::App*) { return true; })) {
      if (part->get_name().empty()) {
        text += concat("\n", part->get_description(), ":\n", options_of(*part, "", all));
      } else {
        commands += wrapped("  " + part->get_name(), part->get_description(), 14);
      }
    }
    std::vector<std::string> groups;
    for (const CLI::Option* option : app->get_options()) {
      const std::string& group = option->get_group();
      if (group != kUsualGroup && std::ranges::find(groups, group) == groups.end()) groups.push_back(group);
    }
    groups.emplace_back(kUsualGroup);
    for (const std::string& group : groups) {
      const std::string options = options_of(*app, group, all);
      if (!options.empty()) text += concat("\n", group, ":\n", options);
    }
    if (!commands.empty()) text += "\nCommands:\n" + commands;
    if (!all) text += concat("\nAll ", app->get_options().size(), " options: ", name, " --help-all\n");
    return ending_.empty() ? text : concat(text, "\n", ending_);
  }

 private:
  /// The options of a group, or of all groups if `group` is empty.
  std::string options_of(const CLI::App& app, const std::string& group, bool all) const {
    std::string text;
    for (const CLI::Option* option : app.get_options()) {
      if ((group.empty() || option->get_group() == group) && (all || everyday_.count(option->get_name()) > 0))
        text += describe(*option);
    }
    return text;
  }

  std::string ending_;
  std::set<std::string> everyday_;
};

}  // namespace

bool is_flag(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

void add_help(CLI::App& app, const std::string& ending, const std::set<std::string>& everyday) {
  app.set_help_flag("-h,--help", "Print this help and exit");
  std::set<std::string> names = everyday;
  if (!everyday.empty()) {
    app.set_help_all_flag("--help-all", "Print all options and exit");
    names.insert({"--help", "--help-all", "--version"});
  }
  app.set_version_flag("--version", concat(app.get_name(), ' ', version(), " (", git_revision(), ')'),
                       "Print the version and the git revision and exit")
      ->configurable(false);
  app.formatter(std::make_shared<Help>(ending, names));
  for (CLI::App* part : app.get_subcommands([](const CLI::App*) { return true; })) {
    const bool is_command = !part->get_name().empty();  // else an option group, which inherited --help
    part->formatter(std::make_shared<Help>("", std::set<std::string>()));
    part->set_help_flag(is_command ? "-h,--help" : "", "Print this help and exit");
  }
}

}  // namespace cifar_mpi::app
