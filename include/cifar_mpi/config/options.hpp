#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cifar_mpi/config/config.hpp"

/// The options of a training run, one row each. The command line, files, `--help`, the checks of single
/// values and a run's fingerprint all use this table: a new option is a member of TrainConfig, a row, and the
/// code that reads it.
namespace cifar_mpi::config {

/// A member of TrainConfig as text.
struct OptionValue {
  std::string takes;               ///< "N", "X" (a real number), "NAME", "TEXT"; empty for a flag
  std::vector<std::string> names;  ///< all values; empty if others are possible
  /// The value; reading it gives the same value again. Fingerprints hold this text.
  std::function<std::string(const TrainConfig&)> text;
  /// Sets the value and returns an empty text, or changes nothing and returns what the value "must be".
  std::function<std::string(TrainConfig&, const std::string&)> read;
  /// What the value must be ("must be above 0") if it is out of range; else empty.
  std::function<std::string(const TrainConfig&)> out_of_range;
};

/// An option that has an effect only with certain values of another.
struct Needs {
  std::string_view option = {};
  std::vector<std::string_view> values = {};
  const char* reason = "";
};

/// An option's part in the fingerprint of a run.
struct Identity {
  int place = 0;        ///< its order in the fingerprint, from 1; 0: not in it
  bool always = false;  ///< even if its `needs` are not met
  /// The value of runs whose fingerprint lacks it. Unless `always` is set, the fingerprint omits this value.
  const char* unrecorded = nullptr;
  bool may_change = false;  ///< with --allow-change: a resumed state stays valid with any value
};

struct Option {
  std::string_view name;  ///< "--lr"
  std::string_view help;  ///< an imperative or a noun phrase
  OptionValue value;
  bool everyday = false;       ///< shown by --help; the others by --help-all
  std::string_view zero = {};  ///< the word for 0; the only way to give it if 0 is out of range
  Needs needs = {};
  Identity identity = {};
  std::string_view group = {};
};

/// All of them, group after group.
const std::vector<Option>& options();

/// The value as users write it, with the word for 0.
std::string shown(const Option& option, const TrainConfig& config);
/// As OptionValue::read, but also accepts the word for 0.
std::string read(const Option& option, TrainConfig& config, const std::string& text);

/// The options that --allow-change may name, without their dashes.
std::vector<std::string> changeable_options();
/// The items of a fingerprint that may differ if --allow-change names these options: their own, and those of
/// options that act only with one of them.
std::vector<std::string> items_of(const std::vector<std::string>& names);

/// Whether the values that `option` needs, and those that these need, are chosen.
bool is_used(const Option& option, const TrainConfig& config);

/// Throws Error{usage} naming the first option whose value is out of range, or that has no effect because an
/// option it needs is unset.
void check_options(const TrainConfig& config);

/// The same for an option without effect that a user gave with its default value; `given` says whether an option was.
/// Accepts such options with other models, whose recipes may set them to something else.
void refuse_without_effect(const TrainConfig& config, const std::function<bool(std::string_view)>& given);

/// The shortest text that reads back as the same double.
std::string exact(double value);

}  // namespace cifar_mpi::config
