#include "cifar_mpi/cpu/backend.hpp"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cpu/control.hpp"
#include "cpu/copy.hpp"
#include "cpu/count.hpp"
#include "cpu/dnnl.hpp"
#include "cpu/optimizer.hpp"
#include "cpu/parallel.hpp"
#include "cpu/planning.hpp"
#include "cpu/simd.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::Precision;
using engine::RunnerKind;

/// "AMD EPYC 9755 128-Core Processor", or "unknown processor" where Linux does not say.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

std::string machine_text() {
  return concat(processor_name(), ", ", instruction_set_text(), ", ", dnnl_version_text());
}

class CpuBackend final : public engine::Backend {
 public:
  explicit CpuBackend(const engine::BackendOptions& options) : options_(options) { use_threads(); }

  std::string description() const override {
    return concat("cpu: ", machine_text(), ", ", counted(options_.threads, "thread"));
  }

  Precision resolve(Precision precision) const override {
    if (precision == Precision::automatic) return Precision::fp32;
    if (precision == Precision::tf32) {
      throw Error(ErrorKind::device,
                  "--precision tf32: only CUDA devices have it; use fp32 or bf16 on the cpu");
    }
    if (precision == Precision::bf16 && !has_bf16()) {
      throw Error(ErrorKind::device,
                  "--precision bf16: this cpu has no bf16 arithmetic that oneDNN may use (", machine_text(),
                  "); use fp32");
    }
    return precision;
  }

  Buffer allocate(std::size_t bytes) override { return allocate_on_huge_pages(bytes); }

  Buffer allocate_pinned(std::size_t bytes) override { return allocate_host(bytes); }

  void copy(void* dst, const void* src, std::size_t bytes) override {
    if (bytes != 0) std::memcpy(dst, src, bytes);
  }

  engine::TowerKernels plan(const engine::TowerSpec& spec) override {
    use_threads();
    engine::TowerSpec resolved = spec;
    resolved.precision = resolve(spec.precision);
    return plan_kernels(resolved, options_.conv_threads);
  }

  engine::Task update_task(const engine::UpdateBinding& binding, const model::ParamTable& params,
                           const engine::ParamLayout& layout) override {
    return plan_update(binding, params, layout);
  }

  std::vector<engine::Task> matrix_tasks(const engine::UpdateBinding& update, const engine::Matrix& matrix,
                                         engine::Arena& arena) override {
    use_threads();
    return plan_matrix(update, matrix, arena);
  }

  engine::Task gradient_norm_task(const engine::GradientNormBinding& binding) override {
    return plan_gradient_norm(binding);
  }

  engine::Task running_task(const engine::RunningBinding& binding, const model::ParamTable& params,
                            const engine::ParamLayout& layout) override {
    return plan_running(binding, params, layout);
  }

  engine::Task lookahead_task(const engine::LookaheadBinding& binding) override {
    return plan_lookahead(binding);
  }

  engine::Task advance_task(const engine::AdvanceBinding& binding,
                            std::vector<engine::StepRecord>& records) override {
    return plan_advance(binding, records);
  }

  engine::Task count_task(std::string name, const std::vector<engine::CountBinding>& bindings) override {
    std::vector<Counted> tensors;
    for (const engine::CountBinding& binding : bindings) {
      tensors.push_back({reinterpret_cast<const std::byte*>(binding.values), data_type_of(Precision::fp32),
                         binding.runs, binding.counts});
    }
    return plan_count(std::move(name), std::move(tensors));
  }

  engine::Task sum_task(std::string name, const engine::SumBinding& binding) override {
    return plan_sum(std::move(name), binding);
  }

  engine::Task copy_task(std::string name, const std::vector<engine::CopyBinding>& bindings) override {
    return plan_copy(std::move(name), bindings);
  }

  engine::Task increment_task(std::string name, std::uint64_t* counter) override {
    return plan_increment(std::move(name), counter);
  }

  std::unique_ptr<engine::Runner> runner(engine::StepProgram program, RunnerKind kind,
                                         std::vector<engine::Bytes> regions) override {
    const auto waiting = options_.oversubscribed ? engine::WhileWaiting::yield : engine::WhileWaiting::spin;
    return engine::make_host_runner(std::move(program), kind, waiting, std::move(regions));
  }

 private:
  /// oneDNN fixes a kernel's number of threads at planning, so set it first.
  void use_threads() const { set_loop_threads(options_.threads); }

  engine::BackendOptions options_;
};

}  // namespace

std::string unusable() { return {}; }

std::string describe() { return machine_text(); }

void limit_instructions(InstructionSet most) {
  if (most == InstructionSet::automatic) return;
  const bool portable = most == InstructionSet::portable;
  if (!portable && !has_avx2()) {
    throw Error(ErrorKind::device, "--isa avx2: this processor lacks AVX2, FMA or BMI; leave --isa at auto");
  }
  if (!limit_dnnl(portable)) {
    throw Error(ErrorKind::device, "--isa ", to_string(most), ": ", dnnl_version_text(),
                " cannot be limited here; leave --isa at auto");
  }
  limit_vectors(portable ? VectorSet::portable : VectorSet::avx2);
}

std::unique_ptr<engine::Backend> make_backend(const engine::BackendOptions& options) {
  if (options.threads < 1) {
    throw Error(ErrorKind::usage, "--threads must be at least 1, found ", options.threads);
  }
  return std::make_unique<CpuBackend>(options);
}

}  // namespace cifar_mpi::cpu
