#include "cpu/shared_pieces.hpp"

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "cpu/parallel.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::Task;

constexpr std::size_t kCacheLine = 64;

std::size_t scratch_of_thread(const Kernel& kernel) {
  return (kernel.scratch_bytes() + kCacheLine - 1) / kCacheLine * kCacheLine;
}

/// The first exception of a loop's bodies, which must not throw.
class FirstError {
 public:
  template <class Body>
  void guard(const Body& body) {
    try {
      body();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

int samples_per_shared_piece(int batch, int threads) {
  constexpr int kLeast = 4, kMost = 16, kPiecesPerThread = 4;
  constexpr double kWell = 1.15;
  if (threads == 1) return 0;
  for (int samples = std::max(kMost, batch / (kPiecesPerThread * threads)); samples >= kLeast; --samples) {
    if (batch % samples == 0 && slowdown(batch / samples, threads) <= kWell) return samples;
  }
  return 0;
}

Desc piece_of(const Desc& whole, int samples) {
  dnnl::memory::dims dims = dims_of(whole);
  dims[0] = samples;
  return whole.submemory_desc(dims, dnnl::memory::dims(dims.size(), 0));
}

std::size_t shared_scratch_bytes(const Kernel& kernel, int threads) {
  return scratch_of_thread(kernel) * static_cast<std::size_t>(threads);
}

Task shared_kernel_task(std::string name, const Dnnl& dnnl, const Kernel& kernel,
                        const std::vector<std::vector<Operand>>& pieces, int threads, std::byte* scratch) {
  Task task;
  auto calls = std::make_shared<std::vector<KernelCall>>();
  for (const std::vector<Operand>& operands : pieces) {
    calls->emplace_back(name, dnnl, kernel, operands);
    for (const Operand& operand : operands)
      (operand.written ? task.writes : task.reads).push_back({operand.data, operand.desc.get_size()});
  }
  const std::size_t stride = scratch_of_thread(kernel);
  if (stride != 0) task.writes.push_back({scratch, shared_scratch_bytes(kernel, threads)});
  task.name = std::move(name);
  task.start = [calls, scratch, stride](engine::Lane& lane) {
    run_pieces(
        lane, static_cast<std::ptrdiff_t>(calls->size()),
        [&](std::ptrdiff_t piece, int thread, const std::function<void()>& progress) {
          (*calls)[static_cast<std::size_t>(piece)].run(scratch + stride * static_cast<std::size_t>(thread));
          progress();
        });
  };
  return task;
}

void run_pieces(engine::Lane& lane, std::ptrdiff_t pieces, const RunPiece& run) {
  FirstError error;
  parallel_for(pieces, [&](std::ptrdiff_t piece) {
    const int thread = loop_thread();
    error.guard([&] {
      run(piece, thread, [&] {
        if (thread == 0) lane.make_progress();
      });
    });
  });
  error.rethrow();
}

}  // namespace cifar_mpi::cpu
