#include "cifar_mpi/cuda/backend.hpp"

#include <algorithm>
#include <list>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/comm/collective.hpp"
#include "cuda/count.hpp"
#include "cuda/device.hpp"
#include "cuda/device_runner.hpp"
#include "cuda/kernels.hpp"
#include "cuda/matrix_tasks.hpp"
#include "cuda/nccl.hpp"
#include "cuda/step_tasks.hpp"

namespace cifar_mpi::cuda {
namespace {

using engine::Precision;

class CudaBackend final : public engine::Backend {
 public:
  explicit CudaBackend(const engine::BackendOptions& options)
      : device_(options), nccl_{options.share_gpus, options.nccl_algorithm, options.nccl_nvls} {}

  std::string description() const override { return concat("cuda: ", device_.text()); }

  Precision resolve(Precision precision) const override {
    if (precision == Precision::automatic) return device_.has_bf16() ? Precision::bf16 : Precision::fp32;
    if (precision != Precision::fp32 && !device_.has_bf16()) {
      throw Error(ErrorKind::device, "--precision ", to_string(precision),
                  ": needs compute capability 8.0; this is ", device_.text(), "; use fp32");
    }
    return precision;
  }

  Buffer allocate(std::size_t bytes) override { return device_.allocate(bytes); }
  Buffer allocate_pinned(std::size_t bytes) override { return cuda::allocate_pinned(bytes); }
  void copy(void* dst, const void* src, std::size_t bytes) override { device_.copy(dst, src, bytes); }

  engine::TowerKernels plan(const engine::TowerSpec& spec) override {
    engine::TowerSpec resolved = spec;
    resolved.precision = resolve(spec.precision);
    if (spec.conv == engine::ConvMethod::fft || spec.conv == engine::ConvMethod::winograd) {
      throw Error(ErrorKind::device, "--conv ", to_string(spec.conv),
                  ": only the cpu computes convolutions so; leave it auto on a CUDA device");
    }
    return plan_kernels(resolved, plan_context(device_, ladder_));
  }

  engine::Task update_task(const engine::UpdateBinding& binding, const model::ParamTable& params,
                           const engine::ParamLayout& layout) override {
    const auto* const partials = keep(device_.allocate(kUpdateBlocks * sizeof(double)));
    const auto* const counter = keep(device_.allocate(sizeof(unsigned)));
    return plan_update(binding, params, layout, partials->as<double>(), counter->as<unsigned>());
  }

  std::vector<engine::Task> matrix_tasks(const engine::UpdateBinding& update, const engine::Matrix& matrix,
                                         engine::Arena& arena) override {
    if (matrix_scratch_ == nullptr) matrix_scratch_ = keep(device_.allocate(MatrixProducts::kScratchBytes));
    return matrix_products_.tasks(device_, update, matrix, matrix_scratch_->data(), arena);
  }

  engine::Task gradient_norm_task(const engine::GradientNormBinding& binding) override {
    const auto* const partials = keep(device_.allocate(kUpdateBlocks * sizeof(double)));
    const auto* const counter = keep(device_.allocate(sizeof(unsigned)));
    return plan_gradient_norm(binding, partials->as<double>(), counter->as<unsigned>());
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
    const RecordRing& ring = device_.link().add_ring(binding.control_layout.slots_floats(), binding.steps,
                                                     device_.allocate(sizeof(std::uint64_t)), records);
    Advance place;
    place.replays = ring.replays.as<std::uint64_t>();
    place.entries = ring.entries.as<DeviceRecord>();
    place.slots = ring.slots.as<float>();
    return plan_advance(binding, place);
  }

  /// Parameters are in logical order, with padding after them or after each row.
  engine::Task count_task(std::string name, const std::vector<engine::CountBinding>& bindings) override {
    std::vector<CountedTensor> tensors;
    for (const engine::CountBinding& binding : bindings) {
      const auto& runs = binding.runs;
      const std::size_t columns = runs.front().count, rows = runs.size();
      const std::size_t pitch = rows > 1 ? runs[1].begin - runs[0].begin : columns;
      for (std::size_t i = 1; i < rows; ++i) {
        if (!(runs[i] == engine::ValueRun{runs[0].begin + i * pitch, columns}))
          throw std::logic_error(concat(name, ": values do not lie in rows"));
      }
      tensors.push_back({binding.values + runs[0].begin, rows * columns, binding.counts,
                         static_cast<unsigned>(columns), static_cast<unsigned>(pitch)});
    }
    const auto held = static_cast<int>(std::min<std::size_t>(tensors.size(), kMostCounted));
    const auto* const scratch = keep(device_.allocate(count_scratch_bytes(held)));
    return plan_count(std::move(name), ValueType::fp32, tensors, scratch->data());
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

  std::unique_ptr<engine::Runner> runner(engine::StepProgram program, engine::RunnerKind kind,
                                         std::vector<engine::Bytes> regions) override {
    return make_runner(device_, std::move(program), kind, std::move(regions));
  }

  std::unique_ptr<comm::Collective> make_collective(std::string_view name, const comm::World& world,
                                                    comm::Wire wire) {
    return make_nccl(device_, name, world, wire, nccl_);
  }

  Ladder& ladder() { return ladder_; }

  void compare_devices(const comm::World& world) { cuda::compare_devices(device_, world, nccl_.share_gpus); }

 private:
  const Buffer* keep(Buffer buffer) {
    scratch_.push_back(std::move(buffer));
    return &scratch_.back();
  }

  Device device_;
  NcclOptions nccl_;
  Ladder ladder_;              ///< of the last plan
  std::list<Buffer> scratch_;  ///< of tasks, which know its address
  MatrixProducts matrix_products_;
  const Buffer* matrix_scratch_ = nullptr;  ///< of `scratch_`
};

}  // namespace

std::string describe() { return library_versions(); }

std::unique_ptr<engine::Backend> make_backend(const engine::BackendOptions& options) {
  return make_platform(options).backend;
}

comm::Platform make_platform(const engine::BackendOptions& options) {
  auto backend = std::make_unique<CudaBackend>(options);
  auto make = [device = backend.get()](std::string_view name, const comm::World& world, comm::Wire wire) {
    return device->make_collective(name, world, wire);
  };
  auto compare = [device = backend.get()](const comm::World& world) { device->compare_devices(world); };
  auto agree = [ladder = &backend->ladder()](const comm::World& world) {
    const bool again = ladder->agree(world);
    return comm::KernelAgreement{again, ladder->lines()};
  };
  return {std::move(backend), {std::move(make), true, std::move(compare), std::move(agree)}};
}

}  // namespace cifar_mpi::cuda
