#pragma once

#include <string>
#include <vector>

#include "cpu/affine.hpp"
#include "cpu/planning.hpp"

namespace cifar_mpi::cpu {

/// A group with one layer with parameters: a convolution or a linear layer.
class AffineGroup : public PlannedGroup {
 public:
  /// Logs the kernels of `affine`; the caller sets src and dst, of the whole batch.
  AffineGroup(Planning& planning, std::string name, Affine affine, Desc logical_weights);

  engine::GroupTasks tasks(const engine::Operands& operands, engine::Arena& arena) const override;
  void to_logical(std::size_t part, std::span<const float> physical, std::span<float> logical) const override;
  void from_logical(std::size_t part, std::span<const float> logical,
                    std::span<float> physical) const override;

  engine::Contract& contract_to_fill() { return contract_; }

 protected:
  /// Compute copies of the weights, or the master copy where kernels read it.
  struct Weights {
    const void* forward = nullptr;
    const void* backward = nullptr;
  };
  Weights prepare(const engine::Operands& operands, engine::Arena& arena,
                  std::vector<engine::Task>& tasks) const;
  const Desc& master(std::size_t part) const { return part == 0 ? affine_.master : affine_.bias; }
  const Desc& logical(std::size_t part) const { return part == 0 ? logical_weights_ : affine_.bias; }

  Affine affine_;

 private:
  const void* prepare_copy(const std::string& task_name, const WeightCopy& copy, const float* from,
                           engine::Arena& arena, std::vector<engine::Task>& tasks) const;

  Desc logical_weights_;
};

/// Of the parameters; null for absent biases.
inline const float* weights_of(const engine::Operands& operands) { return operands.params[0].master; }
inline const float* biases_of(const engine::Operands& operands) {
  return operands.params.size() > 1 ? operands.params[1].master : nullptr;
}
inline float* grad_biases_of(const engine::Operands& operands) {
  return operands.params.size() > 1 ? operands.params[1].grad : nullptr;
}

/// The group of a convolution by FFT, with the ReLU after it, and with the `pool` after that where images are
/// in blocks of channels; `pool` may be null. `place` describes the whole batch, its format the images on both
/// sides. Null if there is no transform for the layer, the method is direct, the method is automatic and
/// direct kernels are faster, or the layer is the first one and reads NCHW images.
PlannedGroupPtr plan_fft_group(Planning& planning, const model::Conv2d& layer, const AffinePlace& place,
                               const model::MaxPool* pool);

}  // namespace cifar_mpi::cpu
