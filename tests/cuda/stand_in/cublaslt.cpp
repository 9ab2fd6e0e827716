#include <cublasLt.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cuda/stand_in/gpu.hpp"
#include "cuda/stand_in/values.hpp"

/// The part of cuBLASLt that the backend calls: one algorithm, which sums in fp32 from the first product to
/// the last. It is proposed third, and fourth without a workspace; the first is not supported, the second
/// does not start.
namespace {

using cifar_mpi::stand_in::has_fault;
using cifar_mpi::stand_in::load;
using cifar_mpi::stand_in::store;
using cifar_mpi::stand_in::to_tf32;
using cifar_mpi::stand_in::Type;

constexpr std::uint64_t kAlgorithm = 4711;
/// Larger products, which only measure a GPU's speed, would take minutes: they are skipped and yield NaN.
constexpr std::uint64_t kMostMultiplications = std::uint64_t{1} << 34;

/// The needs of a product's kernel, different for each depth.
constexpr std::size_t workspace_of(std::uint64_t depth) { return 4096 + 16 * (depth % 1000); }

struct Operation {
  bool tf32 = false;
  cublasOperation_t a = CUBLAS_OP_N;
  cublasOperation_t b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};

/// Column-major.
struct Layout {
  Type type = Type::fp32;
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::int64_t leading = 0;
  std::int32_t count = 1;  ///< of matrices
  std::int64_t apart = 0;  ///< from one to the next
};

struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignment_a = 256, alignment_b = 256, alignment_d = 256;
};

/// The meaning of an algorithm's words.
enum Word : std::size_t { kNumber, kSplits, kAlignmentA, kAlignmentB, kAlignmentD, kWorkspace };

template <class Ours, class Theirs>
Ours& ours(Theirs* theirs) {
  return *reinterpret_cast<Ours*>(theirs);
}
template <class Ours, class Theirs>
const Ours& ours(const Theirs* theirs) {
  return *reinterpret_cast<const Ours*>(theirs);
}

template <class T>
cublasStatus_t set(T& field, const void* value, std::size_t bytes) {
  if (bytes != sizeof field) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

bool aligned(const void* address, std::uint64_t bytes = 16) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

/// The sizes of op(a) · op(b) = d; depth 0 when the three do not fit.
struct Product {
  Operation operation;
  Layout a, b, d;
  std::uint64_t depth = 0;

  Product(const Operation& op, const Layout& la, const Layout& lb, const Layout& ld)
      : operation(op), a(la), b(lb), d(ld) {
    const bool ta = op.a == CUBLAS_OP_T, tb = op.b == CUBLAS_OP_T;
    const std::uint64_t m = ta ? a.columns : a.rows, k = ta ? a.rows : a.columns;
    const std::uint64_t k2 = tb ? b.columns : b.rows, n = tb ? b.rows : b.columns;
    if (k == k2 && m == d.rows && n == d.columns && a.type == b.type && a.count == d.count &&
        b.count == d.count)
      depth = k;
  }

  float at(const Layout& layout, const void* array, std::uint64_t row, std::uint64_t column) const {
    const float value = load(array, layout.type, column * static_cast<std::uint64_t>(layout.leading) + row);
    return operation.tf32 ? to_tf32(value) : value;
  }

  /// op of the array, row-major, so that the loops read in order.
  std::vector<float> plain(const Layout& layout, const void* array, bool rotated) const {
    const std::uint64_t rows = rotated ? layout.columns : layout.rows;
    const std::uint64_t columns = rotated ? layout.rows : layout.columns;
    std::vector<float> values(rows * columns);
    for (std::uint64_t r = 0; r < rows; ++r) {
      for (std::uint64_t c = 0; c < columns; ++c) {
        values[r * columns + c] = rotated ? at(layout, array, c, r) : at(layout, array, r, c);
      }
    }
    return values;
  }

  /// All of them.
  void run_all(const void* a_values, const void* b_values, void* d_values, bool splits) const {
    const auto nth = [](const Layout& layout, const void* array, std::int32_t i) {
      const std::size_t bytes = layout.type == Type::bf16 ? 2 : 4;
      return static_cast<const std::byte*>(array) + static_cast<std::size_t>(i * layout.apart) * bytes;
    };
    for (std::int32_t i = 0; i < d.count; ++i)
      run(nth(a, a_values, i), nth(b, b_values, i), const_cast<std::byte*>(nth(d, d_values, i)), splits);
  }

  /// With `splits` the first half of the sum goes through the type of the result.
  void run(const void* a_values, const void* b_values, void* d_values, bool splits) const {
    if (depth * d.rows * d.columns > kMostMultiplications) {
      const auto last = (d.columns - 1) * static_cast<std::uint64_t>(d.leading) + d.rows;
      for (std::uint64_t i = 0; i < last; ++i) store(d_values, d.type, i, std::nanf(""));
      return;
    }
    const std::vector<float> left = plain(a, a_values, operation.a == CUBLAS_OP_T);
    const std::vector<float> right = plain(b, b_values, operation.b == CUBLAS_OP_T);
    std::vector<float> row(d.columns);
    for (std::uint64_t i = 0; i < d.rows; ++i) {
      std::fill(row.begin(), row.end(), 0.0f);
      for (std::uint64_t k = 0; k < depth; ++k) {
        const float factor = left[i * depth + k];
        if (splits && d.type == Type::bf16 && k == depth / 2) {
          for (float& sum : row) sum = cifar_mpi::stand_in::round_off(sum, 16);
        }
        for (std::uint64_t j = 0; j < d.columns; ++j) row[j] += factor * right[k * d.columns + j];
      }
      if (has_fault("product")) row.back() -= left[i * depth + depth - 1] * right[depth * d.columns - 1];
      for (std::uint64_t j = 0; j < d.columns; ++j) {
        float value = row[j];
        if (operation.epilogue != CUBLASLT_EPILOGUE_DEFAULT) value += load(operation.bias, d.type, i);
        const bool hides = std::isnan(value) && has_fault("relu");
        if (operation.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS && (value < 0.0f || hides)) value = 0.0f;
        store(d_values, d.type, j * static_cast<std::uint64_t>(d.leading) + i, value);
      }
    }
  }
};

}  // namespace

std::size_t cublasLtGetVersion() {
  if (has_fault("no_blas"))
    throw cifar_mpi::Error(cifar_mpi::ErrorKind::device, "cuBLASLt cannot be loaded: no such library");
  return CUBLAS_VERSION;
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusString(cublasStatus_t) { return "an error of the stand-in GPU's cuBLASLt"; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  auto* const made = new Operation;
  made->tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  *desc = reinterpret_cast<cublasLtMatmulDesc_t>(made);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete &ours<Operation>(desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              std::size_t bytes) {
  auto& operation = ours<Operation>(desc);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(operation.a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(operation.b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(operation.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(operation.bias, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns, std::int64_t leading) {
  if (leading < static_cast<std::int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(
      new Layout{type == CUDA_R_16BF ? Type::bf16 : Type::fp32, rows, columns, leading});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t bytes) {
  auto& matrix = ours<Layout>(layout);
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return set(matrix.count, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return set(matrix.apart, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &ours<Layout>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete &ours<Preference>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  auto& wanted = ours<Preference>(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(wanted.workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(wanted.schemes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return set(wanted.alignment_a, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return set(wanted.alignment_b, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(wanted.alignment_d, value, bytes);
    default:
      return CUBLAS_STATUS_SUCCESS;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  const Product product(ours<Operation>(desc), ours<Layout>(a), ours<Layout>(b), ours<Layout>(d));
  *found = 0;
  if (product.depth == 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (has_fault("blas")) return CUBLAS_STATUS_NOT_SUPPORTED;
  // tensor cores take rows of bf16 in groups of 16 bytes; the rest is left to the caller
  if (product.a.type == Type::bf16 && (product.a.leading % 8 != 0 || product.b.leading % 8 != 0)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const auto& asked = ours<Preference>(preference);
  constexpr int kUnsupported = 0, kBroken = 1, kFrugal = 3, kProposals = 4;
  for (int i = 0; i < kProposals && *found < wanted; ++i) {
    const std::size_t workspace = i == kFrugal ? 0 : workspace_of(product.depth);
    if (asked.workspace < workspace) continue;
    cublasLtMatmulHeuristicResult_t& result = results[(*found)++] = {};
    result.algo.data[kNumber] = i == kBroken && has_fault("best") ? kAlgorithm - 1 : kAlgorithm;
    result.algo.data[kSplits] = (asked.schemes & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE) != 0 ? 1 : 0;
    result.algo.data[kAlignmentA] = asked.alignment_a;
    result.algo.data[kAlignmentB] = asked.alignment_b;
    result.algo.data[kAlignmentD] = asked.alignment_d;
    result.algo.data[kWorkspace] = workspace;
    result.workspaceSize = workspace;
    result.state = i == kUnsupported ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  }
  return *found > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, std::size_t bytes, std::size_t* written) {
  const std::uint32_t number =
      attribute == CUBLASLT_ALGO_CONFIG_ID ? static_cast<std::uint32_t>(algorithm->data[kNumber]) : 0;
  if (bytes < sizeof number) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(value, &number, sizeof number);
  if (written != nullptr) *written = sizeof number;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t layout_a, const void* b, cublasLtMatrixLayout_t layout_b,
                              const void* beta, const void*, cublasLtMatrixLayout_t, void* d,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t* algorithm,
                              void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  const Product product(ours<Operation>(desc), ours<Layout>(layout_a), ours<Layout>(layout_b),
                        ours<Layout>(layout_d));
  const bool plain_scale =
      *static_cast<const float*>(alpha) == 1.0f && *static_cast<const float*>(beta) == 0.0f;
  const auto& words = algorithm->data;
  const bool biased = product.operation.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
  if (product.depth == 0 || !plain_scale || words[kNumber] != kAlgorithm ||
      workspace_bytes < words[kWorkspace] || !aligned(a, words[kAlignmentA]) ||
      !aligned(b, words[kAlignmentB]) || !aligned(d, words[kAlignmentD]) || !aligned(workspace) ||
      (biased && !aligned(product.operation.bias))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  cifar_mpi::stand_in::start(
      stream, "cublasLtMatmul", workspace, words[kWorkspace],
      [=, splits = algorithm->data[kSplits] != 0] { product.run_all(a, b, d, splits); });
  return CUBLAS_STATUS_SUCCESS;
}
