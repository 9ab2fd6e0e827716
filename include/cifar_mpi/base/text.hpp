#pragma once

#include <cstddef>
#include <sstream>
#include <string>
#include <string_view>

/// Text from values. Where a number has a fixed number of digits, fmt::format writes it.
namespace cifar_mpi {

/// All arguments written one after another with `operator<<`.
template <class... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

/// "1 rank", "4 ranks".
template <class Count>
std::string counted(Count count, std::string_view thing) {
  return concat(count, ' ', thing, count == 1 ? "" : "s");
}

/// The bytes that the first character of `text`, which is not empty, takes in UTF-8, 1 to 4; 0 when it is none.
std::size_t utf8_length(std::string_view text);

}  // namespace cifar_mpi
