#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/engine/backend.hpp"

namespace cifar_mpi::test {

/// Forwards everything to another backend; a test derives a class that changes some of it.
class BackendWrapper : public engine::Backend {
 public:
  explicit BackendWrapper(std::unique_ptr<engine::Backend> real) : real_(std::move(real)) {}

  std::string description() const override { return real_->description(); }
  engine::Precision resolve(engine::Precision precision) const override { return real_->resolve(precision); }
  Buffer allocate(std::size_t bytes) override { return real_->allocate(bytes); }
  Buffer allocate_pinned(std::size_t bytes) override { return real_->allocate_pinned(bytes); }
  void copy(void* dst, const void* src, std::size_t bytes) override { real_->copy(dst, src, bytes); }
  engine::TowerKernels plan(const engine::TowerSpec& spec) override { return real_->plan(spec); }
  engine::Task update_task(const engine::UpdateBinding& binding, const model::ParamTable& params,
                           const engine::ParamLayout& layout) override {
    return real_->update_task(binding, params, layout);
  }
  std::vector<engine::Task> matrix_tasks(const engine::UpdateBinding& update, const engine::Matrix& matrix,
                                         engine::Arena& arena) override {
    return real_->matrix_tasks(update, matrix, arena);
  }
  engine::Task gradient_norm_task(const engine::GradientNormBinding& binding) override {
    return real_->gradient_norm_task(binding);
  }
  engine::Task running_task(const engine::RunningBinding& binding, const model::ParamTable& params,
                            const engine::ParamLayout& layout) override {
    return real_->running_task(binding, params, layout);
  }
  engine::Task lookahead_task(const engine::LookaheadBinding& binding) override {
    return real_->lookahead_task(binding);
  }
  engine::Task advance_task(const engine::AdvanceBinding& binding,
                            std::vector<engine::StepRecord>& records) override {
    return real_->advance_task(binding, records);
  }
  engine::Task count_task(std::string name, const std::vector<engine::CountBinding>& bindings) override {
    return real_->count_task(std::move(name), bindings);
  }
  engine::Task sum_task(std::string name, const engine::SumBinding& binding) override {
    return real_->sum_task(std::move(name), binding);
  }
  engine::Task copy_task(std::string name, const std::vector<engine::CopyBinding>& bindings) override {
    return real_->copy_task(std::move(name), bindings);
  }
  engine::Task increment_task(std::string name, std::uint64_t* counter) override {
    return real_->increment_task(std::move(name), counter);
  }
  std::unique_ptr<engine::Runner> runner(engine::StepProgram program, engine::RunnerKind kind,
                                         std::vector<engine::Bytes> regions) override {
    return real_->runner(std::move(program), kind, std::move(regions));
  }

 private:
  std::unique_ptr<engine::Backend> real_;
};

}  // namespace cifar_mpi::test
