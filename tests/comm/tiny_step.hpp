#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cifar_mpi/comm/all_reduce_update.hpp"
#include "cifar_mpi/engine/kernels.hpp"
#include "support/mpi_world.hpp"

/// A step without a network, and collectives without ranks, to test AllReduceUpdate with.
namespace cifar_mpi::comm::tiny {

using engine::bytes_of;
using engine::Instruction;
using engine::Lane;
using engine::Op;
using engine::RunnerKind;
using engine::StepProgram;
using engine::Task;
using test::test_world;

constexpr std::size_t kControl = 16;

/// The gradient of rank `rank` for parameter element `i` of value `param`: an integer small enough for exact
/// sums of many steps.
inline float gradient(int rank, std::size_t i, float param) {
  const int p = static_cast<int>(param) % 5;
  return static_cast<float>((static_cast<int>(i % 11) * 3 + rank * 7 + p) % 9 - 4);
}

/// A step of five parameters that does nothing but arithmetic on integers.
class TinyStep {
 public:
  explicit TinyStep(std::unique_ptr<Collective> collective, std::size_t bucket_bytes = 1, bool overlap = true)
      : update_(std::move(collective), layout_,
                {static_cast<double>(bucket_bytes) / (1 << 20), Wire::fp32, overlap, 1, kSummed + 5}) {
    update_.allocate(kControl);
    params_.resize(layout_.floats);
    std::iota(params_.begin(), params_.end(), 1.0f);
  }

  AllReduceUpdate& update() { return update_; }
  std::span<float> control() { return update_.block().control(); }
  std::span<float> grads() { return update_.block().grads(); }
  const std::vector<float>& params() const { return params_; }
  const std::vector<float>& totals() const { return totals_; }
  const std::vector<float>& taken() const { return taken_; }
  StepProgram program(StepParts parts, Concurrency concurrent = {}) {
    StepProgram program("train");
    update_.append(program, std::move(parts), concurrent);
    program.finalize();
    return program;
  }
  std::vector<engine::Bytes> regions() {
    const std::span<float> block = update_.block().all();
    const std::span<float> sums = update_.rank_sums();
    return {bytes_of(block.data(), block.size()), param_bytes(0, params_.size()),
            bytes_of(sums.data(), sums.size()), bytes_of(taken_.data(), taken_.size())};
  }

  /// `order`: the order in which backward finishes the parameters.
  StepParts parts(const std::vector<std::size_t>& order = {0, 1, 2, 3, 4}) {
    StepParts parts;
    parts.compute.push_back({"control",
                             {},
                             {bytes_of(control().data(), kControl)},
                             [this](Lane&) {
                               for (float& value : control()) value = 0;
                             },
                             {}});
    parts.compute.push_back({"loss",
                             {param_bytes(0, params_.size())},
                             {bytes_of(control().data(), 1)},
                             [this](Lane&) { control()[0] = static_cast<float>(test_world().rank() + 1); },
                             {}});
    for (const std::size_t p : order) parts.compute.push_back(backward(p));
    for (const ParamSpan& span : update_.spans()) parts.update.push_back({update_task(span)});
    parts.finish = {{"advance",
                     {bytes_of(control().data(), kControl)},
                     {bytes_of(&step_, 1)},
                     [this](Lane&) {
                       totals_.push_back(control()[0]);
                       ++step_;
                     },
                     {}}};
    return parts;
  }

  /// The same with two sums over the ranks in the same memory: before the backward tasks and among them.
  StepParts parts_with_sums() {
    StepParts made = parts();
    for (const std::ptrdiff_t at : {5, 2}) {
      const std::array<Task, 3> between = sum_between(at == 2 ? 0 : kSummed);
      made.compute.insert(made.compute.begin() + at, between.begin(), between.end());
    }
    return made;
  }
  /// The same with a sum over the ranks among the update tasks of each span: value i of `taken` is the sum of rank + i,
  /// once the first summed gradient of span i is there.
  StepParts parts_with_sums_of_updates() {
    StepParts made = parts();
    for (std::size_t i = 0; i < made.update.size(); ++i) {
      float* const sum = update_.rank_sums().data() + i;
      const float* const total = grads().data() + update_.spans()[i].begin;
      made.update[i] = {Task{"term",
                             {bytes_of(total, 1)},
                             {bytes_of(sum, 1)},
                             [=](Lane&) {
                               *sum = *total - *total + static_cast<float>(i) +
                                      static_cast<float>(test_world().rank());
                             },
                             {}},
                        engine::sum_over_ranks("sum", {sum, test_world().size()}, 1),
                        Task{"take",
                             {bytes_of(sum, 1)},
                             {bytes_of(taken_.data() + i, 1)},
                             [this, sum, i](Lane&) { taken_[i] = *sum; },
                             {}},
                        std::move(made.update[i].front())};
    }
    return made;
  }
  /// Value i of both sums together is the sum of rank + i.
  static constexpr std::size_t kSummed = 3;

 private:
  /// Writes terms, sums them, and takes the totals.
  std::array<Task, 3> sum_between(std::size_t first) {
    float* const sums = update_.rank_sums().data();
    const engine::Bytes summed = bytes_of(sums, kSummed), taken = bytes_of(taken_.data() + first, kSummed);
    return {Task{"terms",
                 {},
                 {summed},
                 [=](Lane&) {
                   for (std::size_t i = 0; i < kSummed; ++i)
                     sums[i] = static_cast<float>(test_world().rank()) + static_cast<float>(first + i);
                 },
                 {}},
            engine::sum_over_ranks("sum", {sums, test_world().size()}, kSummed),
            Task{"take",
                 {summed},
                 {taken},
                 [this, sums, first](Lane&) { std::copy_n(sums, kSummed, taken_.data() + first); },
                 {}}};
  }

  engine::Bytes param_bytes(std::size_t begin, std::size_t count) const {
    return bytes_of(params_.data() + begin, count);
  }

  Task backward(std::size_t p) {
    const auto [offset, floats] = layout_.entries[p];
    return {"backward",
            {param_bytes(offset, floats)},
            {bytes_of(grads().data() + offset, floats)},
            [this, begin = offset, end = offset + floats](Lane&) {
              for (std::size_t i = begin; i < end; ++i)
                grads()[i] = gradient(test_world().rank(), i, params_[i]);
            },
            {}};
  }

  Task update_task(const ParamSpan& span) {
    const std::size_t count = span.end - span.begin;
    return {"update",
            {bytes_of(control().data(), kControl), bytes_of(grads().data() + span.begin, count),
             param_bytes(span.begin, count)},
            {param_bytes(span.begin, count)},
            [this, span](Lane&) {
              for (std::size_t i = span.begin; i < span.end; ++i) params_[i] += grads()[i] * control()[0];
            },
            {}};
  }

  static engine::ParamLayout five_parameters() {
    engine::ParamLayout layout;
    for (const std::size_t floats : {16u, 48u, 1024u, 32u, 160u}) engine::append(layout, floats);
    return layout;
  }

  const engine::ParamLayout layout_ = five_parameters();
  AllReduceUpdate update_;
  std::vector<float> params_;
  std::vector<float> totals_;
  std::vector<float> taken_ = std::vector<float>(2 * kSummed);
  int step_ = 0;
};

/// The parameters after `steps` steps over all ranks, computed by one.
inline std::vector<float> expected_params(std::size_t count, int steps) {
  std::vector<float> params(count);
  std::iota(params.begin(), params.end(), 1.0f);
  const int ranks = test_world().size();
  for (int step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (int r = 0; r < ranks; ++r) sum += gradient(r, i, params[i]);
      params[i] += sum * static_cast<float>(ranks * (ranks + 1) / 2);
    }
  }
  return params;
}

/// Pretends to have three ranks, for programs that are inspected and not run.
class ThreeRanks : public Collective {
 public:
  explicit ThreeRanks(std::vector<std::size_t>* exact = nullptr) : exact_(exact) {}
  std::string_view name() const override { return "three"; }
  int ranks() const override { return 3; }
  Buffer allocate(std::size_t bytes) override { return allocate_host(bytes); }
  Task all_reduce(std::string name, std::span<float> data, std::size_t exact) override {
    if (exact_ != nullptr) exact_->push_back(exact);
    return {std::move(name),
            {bytes_of(data.data(), data.size())},
            {bytes_of(data.data(), data.size())},
            [](Lane&) {},
            [] { return true; }};
  }

 private:
  std::vector<std::size_t>* exact_;  ///< of the requested tasks
};

class OneRank : public ThreeRanks {
 public:
  int ranks() const override { return 1; }
};

/// The program without its line `left_out`.
inline StepProgram without(const StepProgram& program, std::size_t left_out) {
  StepProgram copy("copy");
  for (std::size_t i = 0; i < program.instructions().size(); ++i) {
    const Instruction& line = program.instructions()[i];
    if (i == left_out) continue;
    if (line.op == Op::run) copy.run(line.lane, program.tasks()[static_cast<std::size_t>(line.target)]);
    if (line.op == Op::set) copy.set(line.lane);
    if (line.op == Op::wait) copy.wait(line.lane, line.target);
  }
  return copy;
}

}  // namespace cifar_mpi::comm::tiny
