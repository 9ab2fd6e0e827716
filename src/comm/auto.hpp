#pragma once

#include <cstddef>
#include <string_view>

#include "comm/nodes.hpp"

namespace cifar_mpi::comm {

/// Which collective sums which arrays.
struct AutoChoice {
  std::size_t short_bytes = 0;    ///< arrays of at most this many bytes are short
  std::string_view for_short;     ///< unused when `short_bytes` is 0
  std::string_view for_the_rest;  ///< its memory is what `allocate` gives
};

/// A fixed rule, so that a run sums alike whenever it is started on the same distribution of ranks.
AutoChoice choose_collective(const Nodes& nodes);

}  // namespace cifar_mpi::comm
