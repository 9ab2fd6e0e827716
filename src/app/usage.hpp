#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

/// What programs say about a command line that they refuse.
namespace cifar_mpi::app {

/// The one of `names` that the unknown `word` most likely means, such as lr for --learning-rate, batch-size for
/// batch_size and model for --model-name; empty if none is like it. Dashes before the word do not count.
std::string similar(const std::string& word, const std::vector<std::string>& names);

/// The same among the options of `app` and of its commands that count, with its dashes.
std::string similar_option(
    const CLI::App& app, const std::string& word,
    const std::function<bool(const CLI::Option*)>& counts = [](const CLI::Option*) { return true; });

/// Throws Error{usage} for an empty value, because such a value would count as not given: the command line and
/// files share this rule and its words. `list`: in which it is.
[[noreturn]] void refuse_empty_value(const std::string& name, const std::string& list = {});

/// Throws Error{usage} for an empty word, for "--option=", where CLI11 would use the next word as the value, for a
/// list with an empty value ("16,"), which CLI11 would skip, for a flag with a value that is neither true nor false
/// or that is the next word, and for a value that begins with "=", as in "--option = value".
void refuse_wrong_values(const CLI::App& app, int argc, const char* const* argv);

/// One sentence about the error of `app`'s parsing: the first unknown word and what it may mean, or what is missing
/// and an example, which is the first of the examples of --help.
std::string explain(const CLI::ParseError& error, const CLI::App& app);

}  // namespace cifar_mpi::app
