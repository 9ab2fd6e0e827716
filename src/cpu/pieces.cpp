#include "cpu/pieces.hpp"

#include <algorithm>
#include <utility>

#include "cpu/parallel.hpp"

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

Task add_parts_task(const float* parts, std::size_t stride, int number, float* sum, std::size_t count) {
  const auto add = [=](engine::Lane&) {
    parallel_values(count, [=](std::size_t begin, std::size_t end) {
      for (int part = 0; part < number; ++part) {
        const float* const from = parts + stride * static_cast<std::size_t>(part);
#pragma omp simd
        for (std::size_t i = begin; i < end; ++i) sum[i] += from[i];
      }
    });
  };
  const std::size_t floats = number == 0 ? 0 : stride * static_cast<std::size_t>(number - 1) + count;
  return {"add", {engine::bytes_of(parts, floats)}, {engine::bytes_of(sum, count)}, add, {}};
}

}  // namespace cifar_mpi::cpu
