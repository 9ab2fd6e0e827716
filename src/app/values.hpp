#pragma once

#include <CLI/CLI.hpp>
#include <limits>
#include <string>

/// What an option's value must look like; the programs check every value with one of these.
namespace cifar_mpi::app {

/// The whole text must be a decimal number between `low` and `high` (whole ones from 0 by default); the
/// sentence that refuses it says which. Empty text, trailing characters, leading zeros, other bases, NaN and
/// infinity are refused. T: int, std::int64_t, std::uint64_t or double.
template <class T>
CLI::Validator number(T low = std::numeric_limits<T>::is_integer ? T{0} : std::numeric_limits<T>::lowest(),
                      T high = std::numeric_limits<T>::max());

/// Those of the benchmarks that a run has, too.
void add_wire(CLI::App& app, std::string& wire);
void add_bucket_mib(CLI::App& app, double& mib);

/// What --threads may be: a number, or auto, which becomes 0. To be given to CLI::Option::transform.
CLI::Validator threads();

/// What --timeout may be, in seconds: at least 2, for a watchdog looks only now and then, or never, which becomes 0. To
/// be given to CLI::Option::transform.
CLI::Validator timeout();

/// The name of a model of the catalog.
CLI::Validator model_name();

/// Any text but none.
CLI::Validator not_empty();

}  // namespace cifar_mpi::app
