#pragma once

#include <vector>

#include "cifar_mpi/base/shape.hpp"
#include "cifar_mpi/model/layer.hpp"

/// The models, one function and one file each; `catalog.cpp` gives them their names.
namespace cifar_mpi::model {

/// The layers of a model for images of `input` and `classes` classes; `make_net` checks that they fit.
using ModelFunction = std::vector<Layer> (*)(Extent input, int classes);

std::vector<Layer> tutorial(Extent input, int classes);

}  // namespace cifar_mpi::model
