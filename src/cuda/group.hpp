#pragma once

#include <memory>

#include "cifar_mpi/engine/backend.hpp"
#include "cuda/kernels.hpp"
#include "cuda/planner.hpp"

/// Groups of layers and their tasks. Creating either needs no device: addresses are stored, not dereferenced.
namespace cifar_mpi::cuda {

using engine::Arena;
using engine::Bytes;
using engine::bytes_of;
using engine::Lane;
using engine::Operands;
using engine::Task;

/// Data shared by the groups of one network; outlives them.
struct SharedPlan {
  int batch = 0;
  engine::Precision precision = engine::Precision::fp32;
  NetKernels kernels;
  int counter_words = 0;  ///< words of `counters` that groups have reserved so far
  Buffer counters;        ///< zero before and after every program; allocated when all groups are planned

  ValueType type() const { return value_type(precision); }
};

/// Makes the group of a plan; its kernels also apply a ReLU's mask.
std::unique_ptr<engine::Group> make_group(SharedPlan& shared, GroupPlan plan);

/// A convolution or a linear layer, and its tail where not null.
std::unique_ptr<engine::Group> make_affine_group(SharedPlan& shared, engine::Contract contract,
                                                 const Affine& affine, std::unique_ptr<engine::Group> tail);

std::unique_ptr<engine::Group> make_batch_norm_group(SharedPlan& shared, engine::Contract contract,
                                                     const BatchNorm& norm);

}  // namespace cifar_mpi::cuda
