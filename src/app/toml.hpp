#pragma once

#include <string>
#include <string_view>
#include <vector>

/// Strict parser of TOML for a flat list of options: lines `key = value`.
namespace cifar_mpi::app {

struct TomlItem {
  std::string key;
  std::string value;  ///< a text without its quotes, a number as written
  int line = 0;       ///< from 1
};

/// Reads a TOML document of texts, decimal numbers, true and false, in the order of the lines. `name` is the
/// file's name for errors.
///
/// Throws Error{usage} that begins "NAME:LINE: " for invalid TOML, a repeated key, a section, a list, a
/// table, a date, or a NUL in a text.
std::vector<TomlItem> parse_toml(std::string_view text, const std::string& name);

/// `value` as a basic string: any UTF-8 text without NUL comes back from parse_toml.
std::string toml_text(std::string_view value);

}  // namespace cifar_mpi::app
