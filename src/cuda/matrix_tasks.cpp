#include "cuda/matrix_tasks.hpp"

#include <algorithm>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/engine/step_tasks.hpp"
#include "cuda/device.hpp"
#include "cuda/lane.hpp"
#include "cuda/optimizer.hpp"

namespace cifar_mpi::cuda {
namespace {

using engine::bytes_of;
using engine::Lane;
using engine::Task;

MatrixMove move_of(const engine::UpdateBinding& binding, const engine::Matrix& matrix, std::byte* scratch) {
  MatrixMove work;
  work.params = binding.params + matrix.begin;
  work.grads = binding.grads + matrix.begin;
  work.momenta = binding.states[0] + matrix.begin;
  work.moves = binding.moves + matrix.begin;
  work.places = matrix.places;
  work.values = matrix.rest * matrix.out;
  work.floats = static_cast<std::int64_t>(matrix.floats);
  work.out = matrix.out;
  work.scale = optim::matrix_scale(static_cast<double>(matrix.out), static_cast<double>(matrix.rest),
                                   optim::HostMath{});
  work.loss_sum = binding.control + engine::ControlLayout::loss_sum;
  work.step = binding.step;
  work.optimizer = binding.optimizer;
  work.clip_norm = binding.clip_norm;
  work.gradient_norm = binding.gradient_norm;
  work.average_steps = binding.average_steps;
  work.partials = reinterpret_cast<double*>(scratch);
  work.sum = work.partials + kUpdateBlocks;
  work.counter = reinterpret_cast<unsigned*>(work.sum + 1);
  return work;
}

/// The three products of an iteration; `b` is the polynomial.
struct Shapes {
  explicit Shapes(const engine::Matrix& matrix) {
    const std::int64_t rest = matrix.rest, out = matrix.out, n = std::min(rest, out);
    tall = out <= rest;
    gram = {.m = n, .n = n, .k = std::max(rest, out), .transpose_a = tall, .transpose_b = !tall};
    square = {.m = n, .n = n, .k = n};
    step = {.m = rest, .n = out, .k = n};
  }
  bool tall = false;  ///< in terms of XᵀX, the smaller one
  MatmulShape gram, square, step;
};

}  // namespace

const Matmul& MatrixProducts::plan(Device& device, const std::string& name, const MatmulShape& shape) {
  const auto known = std::ranges::find(products_, shape, &Matmul::shape);
  if (known != products_.end()) return *known;
  Matmul product(shape);
  const TrialMemory memory(device, std::max({product.bytes_a(), product.bytes_b(), product.bytes_d()}));
  product.plan(memory.trial());
  if (product.rung() != 0) {
    throw Error(ErrorKind::device, "--optimizer muon: the first choice of cuBLASLt for a product of ", name,
                " does not run, and all ranks need the same; free memory of the GPU, or give --device cpu");
  }
  return products_.emplace_back(std::move(product));
}

std::vector<Task> MatrixProducts::tasks(Device& device, const engine::UpdateBinding& binding,
                                        const engine::Matrix& matrix, std::byte* scratch,
                                        engine::Arena& arena) {
  const auto values = static_cast<std::size_t>(matrix.rest * matrix.out);
  const auto n = static_cast<std::size_t>(std::min(matrix.rest, matrix.out));
  const MatrixMove work = move_of(binding, matrix, scratch);
  auto *x = arena.take_array<float>(values), *y = arena.take_array<float>(values);
  auto *a = arena.take_array<float>(n * n), *aa = arena.take_array<float>(n * n);
  const Shapes shapes(matrix);
  const auto product_task = [&](const char* what, const Matmul& product, std::byte* workspace,
                                const float* left, const float* right, float* result) {
    Task task{concat("muon ", what, " of ", matrix.name),
              {{reinterpret_cast<const std::byte*>(left), product.bytes_a()},
               {reinterpret_cast<const std::byte*>(right), product.bytes_b()}},
              {{reinterpret_cast<const std::byte*>(result), product.bytes_d()},
               {workspace, product.workspace_bytes()}},
              [&product, workspace, left, right, result](Lane& lane) {
                product.run(stream_of(lane), left, right, result, nullptr, workspace);
              },
              {}};
    const MatmulShape& shape = product.shape();
    task.cost.flops = 2.0 * static_cast<double>(shape.m * shape.n * shape.k);
    return task;
  };
  const Matmul& gram = plan(device, matrix.name, shapes.gram);
  const Matmul& square = plan(device, matrix.name, shapes.square);
  const Matmul& step = plan(device, matrix.name, shapes.step);
  std::byte* const workspace =
      arena.take(std::max({gram.workspace_bytes(), square.workspace_bytes(), step.workspace_bytes()}));

  std::vector<Task> tasks;
  const engine::Bytes shared{scratch, kScratchBytes};
  if (binding.optimizer.normalize_every > 0) {
    Task& task = tasks.emplace_back(engine::declare_normalize(binding, matrix));
    task.writes.push_back(shared);
    task.start = [work](Lane& lane) { normalize_matrix(stream_of(lane), work); };
  }
  Task& gather = tasks.emplace_back(engine::declare_gather(binding, matrix, x));
  gather.writes.push_back(shared);
  gather.start = [work, x](Lane& lane) { gather_matrix(stream_of(lane), work, x); };
  for (int i = 0; i < optim::NewtonSchulz::kIterations; ++i) {
    tasks.push_back(product_task("gram matrix", gram, workspace, x, x, a));
    tasks.push_back(product_task("its square", square, workspace, a, a, aa));
    Task& polynomial = tasks.emplace_back(engine::declare_polynomial(matrix, n, a, aa));
    polynomial.start = [n, a, aa](Lane& lane) {
      muon_polynomial(stream_of(lane), static_cast<std::int64_t>(n), a, aa);
    };
    tasks.push_back(shapes.tall ? product_task("iteration", step, workspace, x, aa, y)
                                : product_task("iteration", step, workspace, aa, x, y));
    std::swap(x, y);
  }
  Task& scatter = tasks.emplace_back(engine::declare_scatter(binding, matrix, x));
  scatter.start = [work, x](Lane& lane) { scatter_matrix(stream_of(lane), work, x); };
  return tasks;
}

}  // namespace cifar_mpi::cuda
