#pragma once

#include "cifar_mpi/model/net_spec.hpp"

/// The models, one function and one file each; `catalog.cpp` gives them their names.
namespace cifar_mpi::model {

/// A model for images of `image` and `classes` classes.
using ModelFunction = NetSpec (*)(Extent image, int classes);

NetSpec tutorial(Extent image, int classes);
NetSpec resnet20(Extent image, int classes);
NetSpec resnet18(Extent image, int classes);

}  // namespace cifar_mpi::model
