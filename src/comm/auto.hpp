#pragma once

#include <cstddef>
#include <string_view>

#include "comm/nodes.hpp"

namespace cifar_mpi::comm {

/// The choice of a collective by length.
struct AutoChoice {
  std::size_t short_bytes = 0;    ///< arrays of at most this many bytes are short
  std::string_view for_short;     ///< unused when `short_bytes` is 0
  std::string_view for_the_rest;  ///< `allocate` returns its memory
};

/// A fixed rule, so that runs with the same distribution of ranks sum in the same way.
AutoChoice choose_collective(const Nodes& nodes);

}  // namespace cifar_mpi::comm
