#include "cpu/affine.hpp"

#include <utility>

namespace cifar_mpi::cpu {
namespace {

WeightCopy plan_copy(const Dnnl& dnnl, const Desc& master, const Desc& wanted) {
  if (wanted == master) return {wanted, std::nullopt};
  return {wanted, make_reorder(dnnl, master, wanted)};
}

}  // namespace

Affine settle_affine(const Dnnl& dnnl, const AffineFormats& formats, AffineKernels kernels) {
  Affine affine;
  affine.src = formats.src;
  affine.bias = formats.biases;
  affine.dst = kernels.forward.describe(dnnl::query::dst_md);
  affine.grad_dst = kernels.weight_gradient.describe(dnnl::query::diff_dst_md);
  affine.master = kernels.weight_gradient.describe(dnnl::query::diff_weights_md);
  affine.forward_weights = plan_copy(dnnl, affine.master, kernels.forward.describe(dnnl::query::weights_md));
  affine.wants_grad_src = formats.wants_grad_src;
  affine.relu = formats.relu;
  if (affine.wants_grad_src) {
    const Desc wanted = kernels.data_gradient.describe(dnnl::query::weights_md);
    affine.backward_weights = plan_copy(dnnl, affine.master, wanted);
  }
  affine.kernels = std::move(kernels);
  return affine;
}

}  // namespace cifar_mpi::cpu
