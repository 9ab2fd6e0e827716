#include "cpu/pieces.hpp"

#include <algorithm>
#include <utility>

namespace cifar_mpi::cpu {
namespace {

using engine::Task;

constexpr int kLeastPerThread = 4;

}  // namespace

int samples_per_piece(int batch, int threads, int rows, int most) {
  int samples = std::min(batch, std::max(1, most / rows) * threads);
  while (batch % samples != 0) --samples;
  return samples * rows < kLeastPerThread * threads ? batch : samples;
}

std::size_t offset_of_piece(const Desc& desc, int piece) {
  return desc.get_size() * static_cast<std::size_t>(piece);
}

Task in_one(const std::string& name, std::vector<Task> parts) {
  Task task;
  task.name = name;
  for (const Task& part : parts) {
    task.reads.insert(task.reads.end(), part.reads.begin(), part.reads.end());
    task.writes.insert(task.writes.end(), part.writes.begin(), part.writes.end());
  }
  task.start = [parts = std::move(parts)](engine::Lane& lane) {
    for (const Task& part : parts) {
      part.start(lane);
      lane.make_progress();
    }
  };
  return task;
}

Task add_task(const float* part, float* sum, std::size_t count) {
  const auto add = [part, sum, count](engine::Lane&) {
#pragma omp simd
    for (std::size_t i = 0; i < count; ++i) sum[i] += part[i];
  };
  return {"add", {engine::bytes_of(part, count)}, {engine::bytes_of(sum, count)}, add, {}};
}

}  // namespace cifar_mpi::cpu
