#pragma once

#include <span>
#include <string>

#include "cifar_mpi/model/net_spec.hpp"

/// The properties of a layer in its graph: one function per layer, in layer_facts.cpp.
namespace cifar_mpi::model {

struct LayerFacts {
  const char* kind = "";  ///< for messages
  Extent out;
  Flops forward;
  std::vector<Param> params;  ///< without places in the table
};

/// The layer's name, or its kind if it has none.
std::string name_of(const Layer& layer);

/// What is wrong with a layer at its place: "needs a kernel of at least 1, found 0".
struct Misfit {
  std::string text;
};

/// `in` are the extents of its inputs, at least one. Throws Misfit.
LayerFacts facts_of(const Layer& layer, std::span<const Extent> in, int classes);

}  // namespace cifar_mpi::model
