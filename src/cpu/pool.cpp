#include "cpu/pool.hpp"

namespace cifar_mpi::cpu {

Pool plan_pool(const Dnnl& dnnl, const model::MaxPool& layer, int batch, const Desc& src, const Extent& in,
               const Extent& out, dnnl::memory::data_type type) {
  const Desc dst = activations(batch, out, type, dnnl::memory::format_tag::any);
  const Window window{layer.kernel, layer.stride, in.height, in.width};
  Pool pool{make_max_pool(dnnl, src, dst, window), {}};
  pool.workspace = pool.kernels.forward.describe(dnnl::query::workspace_md);
  return pool;
}

}  // namespace cifar_mpi::cpu
