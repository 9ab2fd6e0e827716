#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <string>

#include "app/recipes.hpp"

/// Reads options from a file and writes them to one. We have our own reader, so that the accepted files do
/// not depend on CLI11's version; toml.hpp describes the format.
namespace cifar_mpi::app {

/// Adds --config FILE; `parse` of program.hpp then reads it.
void add_config(CLI::App& app);

/// Source of an option that was not set on the command line: "--lr" to "FILE:LINE", or to "in the recipe of
/// --model NAME".
using Places = std::map<std::string, std::string>;

/// Runs `action`. An Error that begins with the name of such an option then begins with its source.
void name_sources(const Places& places, const std::function<void()>& action);

/// Sets the options of `app` that the command line left unset from the file of --config, if any. With
/// --batch-size or --epochs on the command line, the file's --global-batch or --steps does not override it.
///
/// Throws Error{usage} that begins "FILE:LINE: " for an unknown option and for a value that the option
/// rejects.
Places read_config(CLI::App& app);

/// The same from a recipe for options that are still unset; records their sources. Consecutive lines of a
/// recipe are a block: if its first option has another value or is replaced by its rival, the others are dropped (the
/// boundaries of a replaced schedule, the tail of a run of another length).
void take_recipe(CLI::App& app, const Recipe& recipe, Places& places);

/// The same for an optimizer chosen on the command line or in the file whose usual rate is another one than the models'.
void take_recipe_of_optimizer(CLI::App& app, Places& places);

/// Throws Error{usage} if the command line has two options that set the same thing. `read_config` does so for its file.
void refuse_rivals(const CLI::App& app);

/// All options as a file that sets the same values, with those that another one replaces as comments;
/// `explained` adds headings and descriptions. Without them it is the record of a start, and --allow-change,
/// which holds for that start alone, is a comment too.
std::string write_config(const CLI::App& app, bool explained);

}  // namespace cifar_mpi::app
