#pragma once

#include <CLI/CLI.hpp>
#include <limits>
#include <string>

/// Validators of option values; the programs check every value with one of these.
namespace cifar_mpi::app {

/// The whole text must be a decimal number between `low` and `high` (by default an integer from 0 on); the
/// error states which. Empty text, trailing characters, leading zeros, other bases, NaN and infinity are
/// rejected. T: int, std::int64_t, std::uint64_t or double.
template <class T>
CLI::Validator number(T low = std::numeric_limits<T>::is_integer ? T{0} : std::numeric_limits<T>::lowest(),
                      T high = std::numeric_limits<T>::max());

/// Options of the benchmarks that a run also has.
void add_wire(CLI::App& app, std::string& wire);
void add_bucket_mib(CLI::App& app, double& mib);

/// One of these names.
CLI::Validator one_of(const std::vector<std::string>& names);

/// Values of --threads: a number, or auto, which becomes 0. For CLI::Option::transform.
CLI::Validator threads();

/// Values of --timeout, in seconds: at least 2, because a watchdog checks only now and then, or never, which
/// becomes 0. For CLI::Option::transform.
CLI::Validator timeout();

/// The name of a model of the catalog.
CLI::Validator model_name();

}  // namespace cifar_mpi::app
