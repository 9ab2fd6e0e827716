#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

/// Options from a file, and as a file. Our own reader, so that what is accepted does not depend on CLI11's
/// version; see toml.hpp for what a file may hold.
namespace cifar_mpi::app {

/// Adds --config FILE; `parse` of program.hpp then reads it.
void add_config(CLI::App& app);

/// Gives the options of `app` that the command line left out their values from the file of --config, if any.
/// Returns where each of those stands: "--lr" to "FILE:LINE".
///
/// Throws Error{usage} that begins "FILE:LINE: " for what is no option and for a value that the option
/// refuses.
std::map<std::string, std::string> read_config(CLI::App& app);

/// All options as a file that reads back to the same values; `explained` adds headings and descriptions.
std::string write_config(const CLI::App& app, bool explained);

}  // namespace cifar_mpi::app
