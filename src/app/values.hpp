#pragma once

#include <CLI/CLI.hpp>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/train/config.hpp"

/// What an option's value must look like; the programs check every value with one of these.
namespace cifar_mpi::app {

/// The whole text must be a decimal number between `low` and `high` (whole ones from 0 unless told); the
/// sentence that refuses it says which. Empty text, trailing characters, leading zeros, other bases, NaN and
/// infinity are refused. T: int, std::int64_t, std::uint64_t or double.
template <class T>
CLI::Validator number(T low = std::numeric_limits<T>::is_integer ? T{0} : std::numeric_limits<T>::lowest(),
                      T high = std::numeric_limits<T>::max());

/// Numbers with commas between them, each as `number` has it; or nothing at all.
CLI::Validator number_list();
/// The numbers of a text that number_list accepts.
std::vector<double> numbers_of(const std::string& text);

/// Two steps as in 1000-1009, or none; whether they make sense train::check says.
CLI::Validator trace_window();
/// The steps of a text that trace_window accepts.
train::TraceWindow trace_window_of(const std::string& text);

/// What --aggregate may be: a number of at least 1, all or async.
CLI::Validator aggregate();
/// What a text says that `aggregate` accepts.
comm::Aggregation aggregation_of(const std::string& text);

/// A number from 0 on, or none.
CLI::Validator number_or_none();
/// The number of a text that number_or_none accepts.
std::optional<std::uint64_t> number_or_none_of(const std::string& text);

/// What --bucket-mib may be, see train::TrainConfig.
CLI::Validator bucket_mib();

/// Those of the benchmarks that a run has, too.
void add_wire(CLI::App& app, std::string& wire);
void add_bucket_mib(CLI::App& app, double& mib);

/// What --timeout may be, in seconds: 0, or at least 2, for a watchdog looks only now and then.
CLI::Validator timeout();

/// The name of a model of the catalog.
CLI::Validator model_name();

/// Any text but none.
CLI::Validator not_empty();

}  // namespace cifar_mpi::app
