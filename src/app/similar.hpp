#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace cifar_mpi::app {

/// The option of `app` or its commands that an unknown `word` most likely means, such as --lr for --learning-rate and
/// --batch-size for batch_size; empty if none is like it that `counts`.
std::string similar_option(
    const CLI::App& app, const std::string& word,
    const std::function<bool(const CLI::Option*)>& counts = [](const CLI::Option*) { return true; });

}  // namespace cifar_mpi::app
