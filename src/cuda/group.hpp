#pragma once

#include <memory>

#include "cifar_mpi/engine/backend.hpp"
#include "cuda/kernels.hpp"
#include "cuda/planner.hpp"

/// Groups of layers and their tasks. Making either needs no device: addresses are taken, not followed.
namespace cifar_mpi::cuda {

/// What the groups of one network share; outlives them.
struct SharedPlan {
  int batch = 0;
  engine::Precision precision = engine::Precision::fp32;
  NetKernels kernels;
  int counter_words = 0;  ///< so many words of `counters` belong to groups by now
  Buffer counters;        ///< zero before and after every program; there when all groups are planned

  ValueType type() const { return value_type(precision); }
};

/// Makes the group of a plan; takes a ReLU's mask by the same kernels that do its work.
std::unique_ptr<engine::Group> make_group(SharedPlan& shared, GroupPlan plan);

/// A convolution or a linear layer, and its tail where not null.
std::unique_ptr<engine::Group> make_affine_group(SharedPlan& shared, engine::Contract contract,
                                                 const Affine& affine, std::unique_ptr<engine::Group> tail);

std::unique_ptr<engine::Group> make_batch_norm_group(SharedPlan& shared, engine::Contract contract,
                                                     const BatchNorm& norm);

}  // namespace cifar_mpi::cuda
