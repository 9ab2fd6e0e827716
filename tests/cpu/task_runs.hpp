#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "cifar_mpi/engine/program.hpp"
#include "cifar_mpi/engine/runner.hpp"
#include "cpu/parallel.hpp"
#include "support/draws.hpp"

/// Ways to run a single task in a test.
namespace cifar_mpi::cpu::testing {

inline void run(const engine::Task& task) {
  engine::Lane lane;
  task.start(lane);
}

/// Runs the task while every byte of `regions` that it does not declare is NaN; throws when it writes one.
inline void run_audited(engine::Task task, std::vector<engine::Bytes> regions) {
  engine::StepProgram program("one task");
  program.run(engine::kCompute, std::move(task));
  program.finalize();
  const auto runner = engine::make_host_runner(std::move(program), engine::RunnerKind::audit,
                                               engine::WhileWaiting::spin, std::move(regions));
  runner->replay();
  runner->finish();
}

template <class T>
engine::Bytes region(const std::vector<T>& values) {
  return engine::bytes_of(values.data(), values.size());
}

/// Sets the number of threads that share loops during its lifetime.
class Threads {
 public:
  explicit Threads(int count) : before_(loop_threads()) { set_loop_threads(count); }
  ~Threads() { set_loop_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

using test::noise;
using test::noise_of;

/// The largest relative rounding errors of one operation.
constexpr double kFp32Unit = 0x1.0p-24;
constexpr double kBf16Unit = 0x1.0p-8;

}  // namespace cifar_mpi::cpu::testing
