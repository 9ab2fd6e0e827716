#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <set>
#include <string>

namespace cifar_mpi::app {

/// Whether the option takes no value.
bool is_flag(const CLI::Option& option);

/// Gives `app` and its commands --version, which prints the version and the git revision, and a --help of at most 80
/// columns that shows the value of each option in brackets and ends with `ending`. Where `everyday` names options,
/// --help shows those alone and --help-all shows all.
void add_help(CLI::App& app, const std::string& ending, const std::set<std::string>& everyday = {});

/// The option of `app` or its commands that an unknown `word` most likely means, such as --lr for --learning-rate and
/// --batch-size for batch_size; empty if none is like it that `counts`.
std::string similar_option(
    const CLI::App& app, const std::string& word,
    const std::function<bool(const CLI::Option*)>& counts = [](const CLI::Option*) { return true; });

}  // namespace cifar_mpi::app
