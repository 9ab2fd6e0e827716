#pragma once

#include <CLI/CLI.hpp>
#include <set>
#include <string>

namespace cifar_mpi::app {

/// Whether the option takes no value.
bool is_flag(const CLI::Option& option);

/// Gives `app` and its commands --version, which prints the version and the git revision, and a --help of at most 80
/// columns that shows the value of each option in brackets and ends with `ending`. Where `everyday` names options,
/// --help shows those alone and --help-all shows all.
void add_help(CLI::App& app, const std::string& ending, const std::set<std::string>& everyday = {});

}  // namespace cifar_mpi::app
