#include "cpu/copy.hpp"

#include <cstring>
#include <utility>

namespace cifar_mpi::cpu {

engine::Task plan_copy(std::string name, const std::vector<engine::CopyBinding>& bindings) {
  engine::Task task;
  task.name = std::move(name);
  for (const engine::CopyBinding& copy : bindings) {
    task.reads.push_back({copy.src, copy.bytes});
    task.writes.push_back({copy.dst, copy.bytes});
  }
  task.start = [bindings](engine::Lane&) {
    for (const engine::CopyBinding& copy : bindings) {
      if (copy.bytes != 0) std::memcpy(copy.dst, copy.src, copy.bytes);
    }
  };
  return task;
}

engine::Task plan_increment(std::string name, std::uint64_t* counter) {
  const engine::Bytes bytes = engine::bytes_of(counter, 1);
  return {std::move(name), {bytes}, {bytes}, [counter](engine::Lane&) { ++*counter; }, {}};
}

}  // namespace cifar_mpi::cpu
