#pragma once

#include <string>
#include <string_view>
#include <vector>

/// TOML as a flat list of options needs it: lines `key = value`, read strictly.
namespace cifar_mpi::app {

struct TomlItem {
  std::string key;
  std::string value;  ///< a text without its quotes, a number as it is written
  int line = 0;       ///< from 1
};

/// Reads a TOML document of texts, decimal numbers, true and false, in the order of their lines. `name` is the
/// file's, for errors.
///
/// Throws Error{usage} that begins "NAME:LINE: ": what is not TOML, a key that stands twice, a section, a list,
/// a table or a date, a NUL in a text.
std::vector<TomlItem> parse_toml(std::string_view text, const std::string& name);

/// `value` as a basic string: any UTF-8 text without NUL comes back from parse_toml.
std::string toml_text(std::string_view value);

}  // namespace cifar_mpi::app
