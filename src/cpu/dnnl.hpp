#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

#include "cifar_mpi/base/shape.hpp"
#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/model/layer.hpp"
#include "oneapi/dnnl/dnnl.hpp"

/// oneDNN as this module uses it; only dnnl.cpp knows the differences between versions 2 and 3.
///
/// Functions that make kernels throw dnnl::error when oneDNN has none. All kernels get their scratch memory
/// from the caller, so running one allocates nothing.
namespace cifar_mpi::cpu {

using Desc = dnnl::memory::desc;

/// oneDNN's engine and its immediate stream; a copy shares both.
struct Dnnl {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

/// A kernel with fixed formats, without its operands; a copy shares the code.
struct Kernel {
  dnnl::primitive primitive;
  dnnl::primitive_desc_base desc;
  bool one_thread = false;  ///< planned for it, and runs on it

  Desc describe(dnnl::query what) const { return desc.query_md(what); }
  std::size_t scratch_bytes() const { return describe(dnnl::query::scratchpad_md).get_size(); }
  /// "brgconv:avx512_core"
  std::string implementation() const { return desc.impl_info_str(); }
  /// True for plain loops, which are a hundred times slower than other kernels.
  bool is_reference() const { return implementation().starts_with("ref"); }
};

/// A square window over an image, with the padding of each axis.
struct Window {
  int kernel = 1;
  int stride = 1;
  model::Padding rows, columns;
};

/// Formats of a convolution or a linear layer; biases and the gradients of parameters are fp32.
struct AffineFormats {
  Desc src;           ///< fixed
  Desc weights;       ///< {out, in, height, width} or {out, in}, format `any`: each kernel chooses its own
  Desc grad_weights;  ///< the same, fp32
  Desc biases;        ///< {out} fp32; empty: none
  Desc dst;           ///< fixed, or format `any`
  Desc grad_dst;      ///< fixed; empty: the format that the forward kernel chose for `dst`
  bool relu = false;  ///< the forward kernel ends with a ReLU
  bool wants_grad_src = true;  ///< false: no data-gradient kernel
};

struct AffineKernels {
  Kernel forward;          ///< SRC, WEIGHTS, BIAS → DST
  Kernel weight_gradient;  ///< SRC, DIFF_DST → DIFF_WEIGHTS, DIFF_BIAS
  Kernel data_gradient;    ///< DIFF_DST, WEIGHTS → DIFF_SRC; unset when not wanted
};

AffineKernels make_convolution(const Dnnl& dnnl, const AffineFormats& formats, const Window& window);
/// A convolution SRC, WEIGHTS → DST without biases, with what its padding leaves of kernel − 1 on each side:
/// with weights rotated by 180 degrees and channels swapped, it computes the data gradient of the convolution
/// over `window`, whose stride is 1.
Kernel make_rotated_convolution(const Dnnl& dnnl, const Desc& src, const Desc& weights, const Desc& dst,
                                const Window& window);
AffineKernels make_inner_product(const Dnnl& dnnl, const AffineFormats& formats);

/// SRC [m, k], WEIGHTS [k, n] → DST [m, n].
Kernel make_product(const Dnnl& dnnl, const Desc& a, const Desc& b, const Desc& c);

/// FROM → TO: another format, another type, or both.
Kernel make_reorder(const Dnnl& dnnl, const Desc& from, const Desc& to);

/// One operand of a kernel; `data` has the size of `desc`.
struct Operand {
  int argument = 0;  ///< DNNL_ARG_…
  Desc desc;
  std::byte* data = nullptr;
  bool written = false;
};
Operand reads(int argument, const Desc& desc, const void* data);
Operand writes(int argument, const Desc& desc, void* data);

/// A kernel with its operands, except for the scratch memory. `name` is that of the task, for errors.
class KernelCall {
 public:
  KernelCall(std::string name, const Dnnl& dnnl, const Kernel& kernel, const std::vector<Operand>& operands);
  /// `scratch` is [kernel.scratch_bytes()]. Only one thread may run a call at a time.
  void run(std::byte* scratch) const;

 private:
  std::string name_;
  dnnl::primitive primitive_;
  bool one_thread_;
  dnnl::stream stream_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

/// While it lives, and if `holds`, the calling thread plans and runs kernels for one thread.
class OneThread {
 public:
  explicit OneThread(bool holds = true);
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

/// The task that runs `kernel`; it declares all operands and the scratch memory [kernel.scratch_bytes()].
engine::Task kernel_task(std::string name, const Dnnl& dnnl, const Kernel& kernel,
                         std::vector<Operand> operands, std::byte* scratch);

/// Runs a reorder now.
void reorder_now(const Dnnl& dnnl, const Desc& from, const void* src, const Desc& to, void* dst);

dnnl::memory::data_type data_type_of(engine::Precision precision);
/// Of the values of a tensor.
dnnl::memory::data_type data_type_of(const Desc& desc);
dnnl::memory::dims dims_of(const Desc& desc);

/// Activations [batch, channels, height, width] in one of oneDNN's formats.
Desc activations(int batch, const Extent& extent, dnnl::memory::data_type type, dnnl::memory::format_tag tag);
/// A matrix [rows, columns], or with tag `ba` its transpose in memory.
Desc matrix(std::int64_t rows, std::int64_t columns, dnnl::memory::data_type type,
            dnnl::memory::format_tag tag);

/// "oneDNN 2.6.3"
std::string dnnl_version_text();
/// Limits oneDNN to SSE4.1 or AVX2, before its first use. False: it was already used, or cannot be limited.
bool limit_dnnl(bool to_sse41);
/// Whether oneDNN may use the bf16 dot products of this CPU (its own limit, ONEDNN_MAX_CPU_ISA, counts).
bool has_bf16();
/// Whether this process may use the matrix unit of AMX for bf16, and oneDNN too.
bool has_amx();
/// Channels per block in the formats that oneDNN's fp32 convolutions prefer here.
int widest_block();
/// "AVX-512 + bf16", "AVX-512", "AVX2" or "SSE4.1": the widest instructions oneDNN may use here.
std::string instruction_set_text();

}  // namespace cifar_mpi::cpu
