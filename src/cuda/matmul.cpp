#include "cuda/matmul.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <span>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cuda/relu.hpp"
#include "cuda/sum.hpp"

namespace cifar_mpi::cuda {
namespace {

/// Alignment of every operand: blocks consist of lines of 64 bytes of fp32, 32 of bf16.
constexpr std::uint32_t kAlignment = 16;
/// Algorithms requested from cuBLASLt, the best one first.
constexpr int kMostProposals = 8;

cudaDataType cublas_type(ValueType type) { return type == ValueType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

/// The attributes that identify an algorithm of cuBLASLt, and their sizes in bytes.
struct Setting {
  const char* name;
  cublasLtMatmulAlgoConfigAttributes_t attribute;
  std::size_t bytes = sizeof(std::uint32_t);
};
constexpr Setting kSettings[] = {{"tile", CUBLASLT_ALGO_CONFIG_TILE_ID},
                                 {"stages", CUBLASLT_ALGO_CONFIG_STAGES_ID},
                                 {"split", CUBLASLT_ALGO_CONFIG_SPLITK_NUM},
                                 {"sum", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME},
                                 {"swizzle", CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING},
                                 {"option", CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION},
                                 {"inner", CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, sizeof(std::uint16_t)},
                                 {"cluster", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, sizeof(std::uint16_t)}};

template <class T>
void set(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, T value) {
  check(cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof value), "describing a matrix");
}

/// cuBLASLt uses column-major order: a row-major matrix is its transpose, and d' = op(b)' · op(a)'. There are
/// `count` matrices in sequence.
Owned<cublasLtMatrixLayout_t> transposed_layout(ValueType type, std::int64_t rows, std::int64_t columns,
                                                int count) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, cublas_type(type), static_cast<std::uint64_t>(columns),
                                   static_cast<std::uint64_t>(rows), columns),
        "describing a matrix");
  Owned<cublasLtMatrixLayout_t> layout(made);
  if (count == 1) return layout;
  set(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, std::int32_t{count});
  set(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, std::int64_t{rows * columns});
  return layout;
}

template <class T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, T value) {
  check(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value), "describing a product");
}

template <class T>
void set(cublasLtMatmulPreference_t wanted, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  check(cublasLtMatmulPreferenceSetAttribute(wanted, attribute, &value, sizeof value),
        "describing a preference");
}

Owned<cublasLtMatmulDesc_t> describe(const MatmulShape& shape, Epilogue epilogue) {
  cublasLtMatmulDesc_t made = nullptr;
  check(cublasLtMatmulDescCreate(&made, shape.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                 CUDA_R_32F),
        "describing a product");
  Owned<cublasLtMatmulDesc_t> operation(made);
  set(made, CUBLASLT_MATMUL_DESC_TRANSA, shape.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(made, CUBLASLT_MATMUL_DESC_TRANSB, shape.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (epilogue == Epilogue::none) return operation;
  set(made, CUBLASLT_MATMUL_DESC_EPILOGUE,
      epilogue == Epilogue::bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_RELU_BIAS);
  // An address that is never dereferenced: the choice of an algorithm depends on its alignment.
  set(made, CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(std::uintptr_t{kAlignment}));
  return operation;
}

Owned<cublasLtMatmulPreference_t> preference(std::size_t most_workspace) {
  cublasLtMatmulPreference_t made = nullptr;
  check(cublasLtMatmulPreferenceCreate(&made), "describing a preference");
  Owned<cublasLtMatmulPreference_t> wanted(made);
  set(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{most_workspace});
  // parts of a sum go through the workspace in fp32, never through a narrower result
  set(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(made, attribute, kAlignment);
  }
  return wanted;
}

/// 0 if the library does not report it.
std::uint32_t value_of(const cublasLtMatmulAlgo_t& algorithm, const Setting& setting) {
  std::array<std::byte, sizeof(std::uint32_t)> memory{};
  std::size_t written = 0;
  if (cublasLtMatmulAlgoConfigGetAttribute(&algorithm, setting.attribute, memory.data(), setting.bytes,
                                           &written) != CUBLAS_STATUS_SUCCESS) {
    return 0;
  }
  return std::bit_cast<std::uint32_t>(memory);  // hosts of GPUs are little-endian
}

/// Tensor cores process rows of bf16 in groups of 16 bytes. Other rows are not supported, so that every GPU
/// does what is tested.
bool has_whole_groups(const MatmulShape& shape) {
  const std::int64_t row_a = shape.transpose_a ? shape.m : shape.k,
                     row_b = shape.transpose_b ? shape.k : shape.n;
  constexpr std::int64_t kGroup = kAlignment / 2;
  return shape.in != ValueType::bf16 || (row_a % kGroup == 0 && row_b % kGroup == 0);
}

}  // namespace

std::size_t Matmul::slices_bytes() const {
  return shape_.slices == 1 ? 0 : static_cast<std::size_t>(shape_.slices) * bytes_d();
}

bool Matmul::find_algorithm(const Trial& trial) {
  rung_ = 0;
  if (!has_whole_groups(shape_)) return false;
  operation_ = describe(shape_, relu_behind_ ? Epilogue::bias : shape_.epilogue);
  const int slices = shape_.slices;
  const std::int64_t depth = shape_.k / slices;
  layout_a_ = shape_.transpose_a ? transposed_layout(shape_.in, depth, shape_.m, slices)
                                 : transposed_layout(shape_.in, shape_.m, depth, slices);
  layout_b_ = shape_.transpose_b ? transposed_layout(shape_.in, shape_.n, depth, slices)
                                 : transposed_layout(shape_.in, depth, shape_.n, slices);
  layout_d_ = transposed_layout(shape_.out, shape_.m, shape_.n, slices);
  if (first_rung_ >= kPlainRung) return false;
  for (std::size_t most = kMostProductWorkspace;;) {
    std::optional<std::size_t> refused;
    if (take_first(trial, most, refused)) return true;
    // The library returns few proposals, so a smaller workspace may appear with a lower limit.
    if (!refused || *refused == 0) return false;
    most = *refused - 1;
  }
}

/// A column of the result is contiguous biases, so any of its values will do.
bool Matmul::keeps_nan(const Trial& trial) const {
  if (static_cast<std::size_t>(shape_.n) * bytes_per(shape_.out) > trial.nan_bytes) return false;
  void* const workspace = trial.workspace(workspace_bytes_);
  if (launch(trial.stream, trial.operand, trial.operand, trial.result, trial.nans, workspace) !=
      CUBLAS_STATUS_SUCCESS)
    return false;
  check(cudaStreamSynchronize(trial.stream), "trying a matrix product");
  std::array<std::uint16_t, 8> values{};
  const std::size_t bytes = std::min(bytes_d(), sizeof values);
  trial.read(values.data(), trial.result, bytes);
  // the upper half of a value suffices for either type; with fp32 it is every second element
  constexpr std::uint16_t kSign = 0x8000, kInfinity = 0x7F80;
  const std::size_t half = bytes_per(shape_.out) / sizeof values[0];
  return (values[half - 1] & ~kSign) > kInfinity;
}

bool Matmul::take_first(const Trial& trial, std::size_t most_workspace,
                        std::optional<std::size_t>& refused_workspace) {
  const Owned<cublasLtMatmulPreference_t> wanted = preference(most_workspace);
  std::array<cublasLtMatmulHeuristicResult_t, kMostProposals> found{};
  int count = 0;
  if (cublasLtMatmulAlgoGetHeuristic(blas_, operation_.get(), layout_b_.get(), layout_a_.get(),
                                     layout_d_.get(), layout_d_.get(), wanted.get(), kMostProposals,
                                     found.data(), &count) != CUBLAS_STATUS_SUCCESS) {
    return false;
  }
  for (const cublasLtMatmulHeuristicResult_t& proposal :
       std::span(found).first(std::min(count, kMostProposals))) {
    if (proposal.state != CUBLAS_STATUS_SUCCESS || proposal.workspaceSize > most_workspace) continue;
    if (rung_ < first_rung_) {
      ++rung_;
      continue;
    }
    algorithm_ = proposal.algo;
    workspace_bytes_ = slices_bytes() + proposal.workspaceSize;
    void* const workspace = trial.workspace(workspace_bytes_);
    if (workspace == nullptr && workspace_bytes_ > 0) {
      refused_workspace =
          std::min(refused_workspace.value_or(proposal.workspaceSize), proposal.workspaceSize);
    } else if (launch(trial.stream, trial.operand, trial.operand, trial.result, trial.operand, workspace) ==
               CUBLAS_STATUS_SUCCESS) {
      return true;
    } else {
      static_cast<void>(cudaGetLastError());  // else the next call would report it
    }
    ++rung_;
  }
  return false;
}

void Matmul::plan(const Trial& trial, int rung) {
  blas_ = trial.blas;
  first_rung_ = rung;
  relu_behind_ = false;
  planned_ = find_algorithm(trial);
  if (planned_ && shape_.epilogue == Epilogue::bias_relu && !keeps_nan(trial)) {
    relu_behind_ = true;
    planned_ = find_algorithm(trial);
  }
  if (!planned_) {
    relu_behind_ = false;
    rung_ = has_whole_groups(shape_) ? kPlainRung : 0;
    workspace_bytes_ = slices_bytes();
    static_cast<void>(cudaGetLastError());
    void* const workspace = trial.workspace(workspace_bytes_);
    if (workspace == nullptr && workspace_bytes_ > 0)
      throw Error(ErrorKind::device, "no GPU memory is left for ", workspace_bytes_, " bytes of a product");
    run(trial.stream, trial.operand, trial.operand, trial.result, trial.operand, workspace);
  }
  check(cudaStreamSynchronize(trial.stream), "trying a matrix product");
}

cublasStatus_t Matmul::launch(cudaStream_t stream, const void* a, const void* b, void* d, const void* bias,
                              void* workspace) const {
  const float one = 1.0f, zero = 0.0f;
  if (shape_.epilogue != Epilogue::none) {
    set(operation_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  auto* const library = static_cast<std::byte*>(workspace) + slices_bytes();
  if (shape_.slices > 1) d = workspace;
  return cublasLtMatmul(blas_, operation_.get(), &one, b, layout_b_.get(), a, layout_a_.get(), &zero, d,
                        layout_d_.get(), d, layout_d_.get(), &algorithm_, library, workspace_of_library(),
                        stream);
}

void Matmul::run(cudaStream_t stream, const void* a, const void* b, void* d, const void* bias,
                 void* workspace) const {
  if (planned_) {
    check(launch(stream, a, b, d, bias, workspace), "starting a matrix product");
    if (relu_behind_) relu_forward(stream, shape_.out, d, d, shape_.m * shape_.n);
  } else {
    plain_matmul(stream, shape_, a, b, shape_.slices > 1 ? workspace : d, bias);
  }
  if (shape_.slices == 1) return;
  add_ranks(stream, static_cast<float*>(d), static_cast<const float*>(workspace),
            static_cast<std::size_t>(shape_.m * shape_.n), shape_.slices);
}

std::string Matmul::text() const {
  std::string shape = concat(shape_.m, 'x', shape_.n, 'x', shape_.k, ' ', name_of(shape_.in));
  if (shape_.slices > 1) shape += concat(" in ", shape_.slices, " slices");
  if (!planned_) return concat(shape, ": plain kernel");
  std::string text = concat(shape, ": cuBLASLt ", value_of(algorithm_, {"", CUBLASLT_ALGO_CONFIG_ID}));
  for (const Setting& setting : kSettings)
    text += concat(", ", setting.name, ' ', value_of(algorithm_, setting));
  if (relu_behind_) text += ", our ReLU after it (that of cuBLASLt hides NaN)";
  return text;
}

}  // namespace cifar_mpi::cuda
