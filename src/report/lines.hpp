#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "cifar_mpi/base/directory.hpp"

/// Untrusted files of lines that a program appends to.
namespace cifar_mpi::report {

/// How a line ended.
enum class LineEnd {
  whole,
  overlong,  ///< it has more than 64 KiB and is passed as empty
  torn,      ///< the file ends in the middle of it
};

/// Calls `take` for each line of an open file, without its line feed, until it returns false. Holds one line
/// at a time. Throws Error{io} with `path`, also for a file of more than 1 GiB.
void for_each_line(const Descriptor& file, const std::string& path,
                   const std::function<bool(const std::string& line, LineEnd end)>& take);

}  // namespace cifar_mpi::report
