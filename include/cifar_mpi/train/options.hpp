#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cifar_mpi/train/config.hpp"

/// The options of a training run, one row each. The command line, files, `--help`, the checks of single values and the
/// fingerprint of a run walk this table: a new option is a member of TrainConfig, a row, and the code that reads it.
namespace cifar_mpi::train {

/// A member of TrainConfig as text.
struct OptionValue {
  std::string takes;               ///< "N", "X" (a real number), "NAME", "TEXT"; empty for a flag
  std::vector<std::string> names;  ///< all values; empty where there are others
  /// The value; reading it gives the same value again. Fingerprints hold this text.
  std::function<std::string(const TrainConfig&)> text;
  /// Takes a value over, and returns an empty text; else what the value "must be", and changes nothing.
  std::function<std::string(TrainConfig&, const std::string&)> read;
  /// What the value must be ("must be above 0"), where it is out of range; else empty.
  std::function<std::string(const TrainConfig&)> out_of_range;
};

/// An option that only acts with certain values of another.
struct Needs {
  std::string_view option = {};
  std::vector<std::string_view> values = {};
  const char* reason = "";
};

/// How an option belongs to what makes a run this run and no other.
struct Identity {
  int place = 0;                     ///< its order in the fingerprint, from 1; 0: it is no part of it
  bool always = false;               ///< also where its `needs` are not met
  const char* unrecorded = nullptr;  ///< the value of runs whose fingerprint lacks it
  bool may_change = false;           ///< with --allow-change: a resumed state is right with any value
};

struct Option {
  std::string_view name;  ///< "--lr"
  std::string_view help;  ///< an imperative or a noun phrase
  OptionValue value;
  bool everyday = false;       ///< shown by --help; the others by --help-all
  std::string_view zero = {};  ///< the word for 0
  Needs needs = {};
  Identity identity = {};
  std::string_view group = {};
};

/// All of them, group after group.
const std::vector<Option>& options();

/// The value as users read it, with the word for 0.
std::string shown(const Option& option, const TrainConfig& config);
/// As OptionValue::read, also for the word for 0.
std::string read(const Option& option, TrainConfig& config, const std::string& text);

/// The options that --allow-change may name, without their dashes.
std::vector<std::string> changeable_options();
/// The items of a fingerprint that may differ where --allow-change names these options: theirs, and those of the options
/// that only act with one of them.
std::vector<std::string> items_of(const std::vector<std::string>& names);

/// Whether the values that `option` needs, and those that these need, are chosen.
bool is_used(const Option& option, const TrainConfig& config);

/// Throws Error{usage} naming the first option whose value is out of range, or was changed without what it needs.
void check_options(const TrainConfig& config);

/// The shortest text that reads back as the same double.
std::string exact(double value);

}  // namespace cifar_mpi::train
