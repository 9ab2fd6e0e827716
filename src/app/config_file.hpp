#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "app/recipes.hpp"

/// Options from a file, and as a file. Our own reader, so that what is accepted does not depend on CLI11's
/// version; see toml.hpp for what a file may hold.
namespace cifar_mpi::app {

/// Adds --config FILE; `parse` of program.hpp then reads it.
void add_config(CLI::App& app);

/// Where the value of an option stands that was not given on the command line: "--lr" to "FILE:LINE".
using Places = std::map<std::string, std::string>;

/// Gives the options of `app` that the command line left out their values from the file of --config, if any. Where
/// the command line has --batch-size or --epochs, the file's --global-batch or --steps does not override it.
///
/// Throws Error{usage} that begins "FILE:LINE: " for what is no option and for a value that the option
/// refuses.
Places read_config(CLI::App& app);

/// The same from a recipe for what is still left out, and notes the places. Lines of a recipe without an empty one
/// between them are a block that belongs together: where its first option has been given another value, none of
/// the block is taken (the boundaries of a schedule that was replaced, say).
void take_recipe(CLI::App& app, const Recipe& recipe, Places& places);

/// All options as a file that reads back to the same values; `explained` adds headings and descriptions.
std::string write_config(const CLI::App& app, bool explained);

}  // namespace cifar_mpi::app
