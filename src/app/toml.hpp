#pragma once

#include <string>
#include <string_view>
#include <vector>

/// The part of TOML that a flat list of options needs, read strictly and written so that it reads back.
namespace cifar_mpi::app {

struct TomlItem {
  std::string key;
  std::string value;  ///< what was meant: without quotes, escapes resolved
  int line = 0;       ///< from 1
};

/// Reads lines `key = value`, empty lines and lines that begin with # or ;. A value is a "basic string" with
/// TOML's escapes, a 'literal string', or a bare word or number, which holds no space, quote, # or bracket.
/// A comment may follow a value. `name` is the file's, for errors.
///
/// Throws Error{usage} that begins "NAME:LINE: ": a missing value, a section, a list or table, a key that
/// stands twice, text after the value, control characters.
std::vector<TomlItem> parse_toml(std::string_view text, const std::string& name);

/// `value` as a basic string: any bytes but NUL come back from parse_toml.
std::string toml_text(std::string_view value);

}  // namespace cifar_mpi::app
