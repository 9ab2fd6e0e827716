#include "cpu/dnnl.hpp"

#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cpu/parallel.hpp"

namespace cifar_mpi::cpu {
namespace {

// Version 2 describes the operation first.
#if DNNL_VERSION_MAJOR >= 3
void append_relu(dnnl::post_ops& ops) { ops.append_eltwise(dnnl::algorithm::eltwise_relu, 0.0f, 0.0f); }
auto type_in(const Desc& desc) { return desc.get_data_type(); }
auto dims_in(const Desc& desc) { return desc.get_dims(); }

template <class Primitive, class... Args>
auto describe_forward(const Dnnl& dnnl, const dnnl::primitive_attr& attr, const Args&... args) {
  return typename Primitive::primitive_desc(dnnl.engine, args..., attr);
}

template <class Primitive, class Hint, class... Args>
auto describe_backward(const Dnnl& dnnl, const dnnl::primitive_attr& attr, const Hint& hint,
                       const Args&... args) {
  return typename Primitive::primitive_desc(dnnl.engine, args..., hint, attr);
}
#else
void append_relu(dnnl::post_ops& ops) { ops.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f); }
auto type_in(const Desc& desc) { return desc.data_type(); }
auto dims_in(const Desc& desc) { return desc.dims(); }

template <class Primitive, class... Args>
auto describe_forward(const Dnnl& dnnl, const dnnl::primitive_attr& attr, const Args&... args) {
  return typename Primitive::primitive_desc(typename Primitive::desc(args...), attr, dnnl.engine);
}

template <class Primitive, class Hint, class... Args>
auto describe_backward(const Dnnl& dnnl, const dnnl::primitive_attr& attr, const Hint& hint,
                       const Args&... args) {
  return typename Primitive::primitive_desc(typename Primitive::desc(args...), attr, dnnl.engine, hint);
}
#endif

dnnl::primitive_attr attributes(bool relu) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (relu) {
    dnnl::post_ops ops;
    append_relu(ops);
    attr.set_post_ops(ops);
  }
  return attr;
}

Kernel kernel_of(const dnnl::primitive_desc_base& desc) {
  return {dnnl::primitive(desc.get()), desc, omp_get_max_threads() == 1};
}

/// {height, width} as oneDNN takes them.
struct Spread {
  explicit Spread(const Window& window) : strides{window.stride, window.stride} {
    for (const model::Padding& padding : {window.rows, window.columns}) {
      before.push_back(padding.before);
      after.push_back(padding.after);
    }
  }
  dnnl::memory::dims strides, before, after;
};

Kernel unless(bool unwanted, const auto& make) { return unwanted ? Kernel{} : kernel_of(make()); }

/// In oneDNN each instruction set is one bit in addition to those of the sets that it includes.
bool may_use(dnnl::cpu_isa wanted) {
  const auto bits = static_cast<unsigned>(wanted);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & bits) == bits;
}

}  // namespace

AffineKernels make_convolution(const Dnnl& dnnl, const AffineFormats& f, const Window& window) {
  constexpr auto kDirect = dnnl::algorithm::convolution_direct;
  const Spread s(window);
  const dnnl::primitive_attr plain = attributes(false);
  const auto forward = describe_forward<dnnl::convolution_forward>(
      dnnl, attributes(f.relu), dnnl::prop_kind::forward_training, kDirect, f.src, f.weights, f.biases, f.dst,
      s.strides, s.before, s.after);
  const Desc grad_dst = f.grad_dst == Desc() ? forward.dst_desc() : f.grad_dst;
  const auto weight_gradient = describe_backward<dnnl::convolution_backward_weights>(
      dnnl, plain, forward, kDirect, f.src, f.grad_weights, f.biases, grad_dst, s.strides, s.before, s.after);
  return {kernel_of(forward), kernel_of(weight_gradient), unless(!f.wants_grad_src, [&] {
            return describe_backward<dnnl::convolution_backward_data>(
                dnnl, plain, forward, kDirect, f.src, f.weights, grad_dst, s.strides, s.before, s.after);
          })};
}

Kernel make_rotated_convolution(const Dnnl& dnnl, const Desc& src, const Desc& weights, const Desc& dst,
                                const Window& window) {
  Window back = window;
  for (model::Padding* const padding : {&back.rows, &back.columns}) {
    padding->before = window.kernel - 1 - padding->before;
    padding->after = window.kernel - 1 - padding->after;
  }
  const Spread s(back);
  return kernel_of(describe_forward<dnnl::convolution_forward>(
      dnnl, attributes(false), dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct, src,
      weights, dst, s.strides, s.before, s.after));
}

AffineKernels make_inner_product(const Dnnl& dnnl, const AffineFormats& f) {
  const dnnl::primitive_attr plain = attributes(false);
  const auto forward = describe_forward<dnnl::inner_product_forward>(
      dnnl, attributes(f.relu), dnnl::prop_kind::forward_training, f.src, f.weights, f.biases, f.dst);
  const Desc grad_dst = f.grad_dst == Desc() ? forward.dst_desc() : f.grad_dst;
  const auto weight_gradient = describe_backward<dnnl::inner_product_backward_weights>(
      dnnl, plain, forward, f.src, f.grad_weights, f.biases, grad_dst);
  return {kernel_of(forward), kernel_of(weight_gradient), unless(!f.wants_grad_src, [&] {
            return describe_backward<dnnl::inner_product_backward_data>(dnnl, plain, forward, f.src,
                                                                        f.weights, grad_dst);
          })};
}

Kernel make_product(const Dnnl& dnnl, const Desc& a, const Desc& b, const Desc& c) {
  return kernel_of(describe_forward<dnnl::matmul>(dnnl, attributes(false), a, b, c));
}

Kernel make_reorder(const Dnnl& dnnl, const Desc& from, const Desc& to) {
  return kernel_of(dnnl::reorder::primitive_desc(dnnl.engine, from, dnnl.engine, to, attributes(false)));
}

Operand reads(int argument, const Desc& desc, const void* data) {
  return {argument, desc, const_cast<std::byte*>(static_cast<const std::byte*>(data)), false};
}

Operand writes(int argument, const Desc& desc, void* data) {
  return {argument, desc, static_cast<std::byte*>(data), true};
}

KernelCall::KernelCall(std::string name, const Dnnl& dnnl, const Kernel& kernel,
                       const std::vector<Operand>& operands)
    : name_(std::move(name)),
      primitive_(kernel.primitive),
      one_thread_(kernel.one_thread),
      stream_(dnnl.engine) {
  for (const Operand& operand : operands)
    arguments_.emplace(operand.argument, dnnl::memory(operand.desc, dnnl.engine, operand.data));
  if (kernel.scratch_bytes() == 0) return;
  arguments_.emplace(DNNL_ARG_SCRATCHPAD, dnnl::memory(kernel.describe(dnnl::query::scratchpad_md),
                                                       dnnl.engine, DNNL_MEMORY_NONE));
}

void KernelCall::run(std::byte* scratch) const {
  try {
    const auto own = arguments_.find(DNNL_ARG_SCRATCHPAD);
    if (own != arguments_.end()) own->second.set_data_handle(scratch);
    const OneThread one(one_thread_);
    primitive_.execute(stream_, arguments_);
  } catch (const dnnl::error& error) {
    throw Error(ErrorKind::device, "cpu: '", name_, "' failed in ", dnnl_version_text(), ": ", error.what());
  }
}

OneThread::OneThread(bool holds) : before_(omp_get_max_threads()) {
  if (holds) omp_set_num_threads(1);
}
OneThread::~OneThread() { omp_set_num_threads(before_); }

engine::Task kernel_task(std::string name, const Dnnl& dnnl, const Kernel& kernel,
                         std::vector<Operand> operands, std::byte* scratch) {
  engine::Task task;
  const KernelCall call(name, dnnl, kernel, operands);
  if (kernel.scratch_bytes() != 0)
    operands.push_back(writes(DNNL_ARG_SCRATCHPAD, kernel.describe(dnnl::query::scratchpad_md), scratch));
  for (const Operand& operand : operands)
    (operand.written ? task.writes : task.reads).push_back({operand.data, operand.desc.get_size()});
  task.start = [call, scratch](engine::Lane&) {
    if (LoopObserver* const observer = LoopObserver::here(); observer != nullptr && !observer->on_kernel())
      return;
    call.run(scratch);
  };
  task.name = std::move(name);
  return task;
}

void reorder_now(const Dnnl& dnnl, const Desc& from, const void* src, const Desc& to, void* dst) {
  const Operand source = reads(DNNL_ARG_FROM, from, src);
  const dnnl::memory input(from, dnnl.engine, source.data);
  const dnnl::memory output(to, dnnl.engine, dst);
  dnnl::reorder(input, output).execute(dnnl.stream, {{DNNL_ARG_FROM, input}, {DNNL_ARG_TO, output}});
}

dnnl::memory::data_type data_type_of(const Desc& desc) { return type_in(desc); }
dnnl::memory::dims dims_of(const Desc& desc) { return dims_in(desc); }

dnnl::memory::data_type data_type_of(engine::Precision precision) {
  return precision == engine::Precision::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

Desc activations(int batch, const Extent& extent, dnnl::memory::data_type type,
                 dnnl::memory::format_tag tag) {
  return {{batch, extent.channels, extent.height, extent.width}, type, tag};
}

Desc matrix(std::int64_t rows, std::int64_t columns, dnnl::memory::data_type type,
            dnnl::memory::format_tag tag) {
  return {{rows, columns}, type, tag};
}

std::string dnnl_version_text() {
  const dnnl_version_t* const version = dnnl_version();
  return concat("oneDNN ", version->major, ".", version->minor, ".", version->patch);
}

bool limit_dnnl(bool to_sse41) {
  const dnnl::cpu_isa most = to_sse41 ? dnnl::cpu_isa::sse41 : dnnl::cpu_isa::avx2;
  return dnnl::set_max_cpu_isa(most) == dnnl::status::success;
}

bool has_bf16() { return may_use(dnnl::cpu_isa::avx512_core_bf16); }

bool has_amx() {
// Linux on x86-64 has this call.
#if defined(SYS_arch_prctl)
  constexpr long kRequestState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, the tiles' state
  return may_use(dnnl::cpu_isa::avx512_core_amx) && syscall(SYS_arch_prctl, kRequestState, kTileData) == 0;
#else
  return false;
#endif
}

int widest_block() { return may_use(dnnl::cpu_isa::avx512_core) ? 16 : 8; }

std::string instruction_set_text() {
  if (has_bf16()) return "AVX-512 + bf16";
  if (may_use(dnnl::cpu_isa::avx512_core)) return "AVX-512";
  return may_use(dnnl::cpu_isa::avx2) ? "AVX2" : "SSE4.1";
}

}  // namespace cifar_mpi::cpu
