#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/run/checkpoint.hpp"

/// Checkpoints that no run has written.
namespace cifar_mpi::run {

/// A table as `make_param_table` gives it, of few weights: last layer first, weights before biases. More than
/// eight layers.
inline model::ParamTable make_table() {
  model::ParamTable table;
  const auto add = [&](const std::string& name, Shape shape, const std::string& dims) {
    model::Param param;
    param.name = name;
    param.shape = shape;
    param.dims = dims;
    table.push_back(std::move(param));
  };
  add("softmax_linear/weights", {6, 10}, "[in, out]");
  add("softmax_linear/biases", {10}, "[out]");
  for (int i = 10; i > 0; --i) {
    add(concat("conv", i, "/weights"), {3, 3, 2, 4}, "[height, width, in, out]");
    add(concat("conv", i, "/biases"), {4}, "[out]");
  }
  return table;
}

/// No two tensors begin alike, so that each is found in the file by its bytes.
inline std::vector<NamedTensor> make_tensors(const model::ParamTable& table, float first) {
  std::vector<NamedTensor> tensors;
  for (const model::Param& param : table) {
    NamedTensor tensor{param.name, param.shape, param.dims, {}};
    for (std::int64_t i = 0; i < param.shape.count(); ++i) {
      tensor.values.push_back(first + static_cast<float>(i) / 128.0f);
    }
    tensors.push_back(std::move(tensor));
    first += 3.0f;
  }
  tensors.front().values.back() = std::numeric_limits<float>::denorm_min();
  tensors.back().values.back() = -0.0f;
  return tensors;
}

inline Checkpoint make_checkpoint() {
  Checkpoint checkpoint;
  checkpoint.state[optim::StateRole::weights] = make_tensors(make_table(), 1.0f);
  checkpoint.state[optim::StateRole::average] = make_tensors(make_table(), 1000.0f);
  Progress& progress = checkpoint.progress;
  progress.step = 18'000'000'000'000'000'001u;
  progress.epoch = 0.1;
  progress.samples_seen = 384'000;
  progress.seed = std::numeric_limits<std::uint64_t>::max();
  progress.identity = {{"model", "tutorial"}, {"note", "a = b"}, {"empty", ""}};
  progress.resolved = {{"collective", "ring"}, {"threads", "2"}};
  Provenance& from = checkpoint.provenance;
  from.ranks = 8;
  from.global_batch = 1024;
  from.learning_rate = 0.1;
  from.learning_rate_rule = "0.1 to the end";
  from.precision = "bf16";
  from.backend = "cpu";
  from.kernels = std::string(9000, 'k').append("\nconv1: jit");
  from.configuration = "# größer\nsteps = 4\n" + std::string(20'000, 'c');
  from.git_revision = "0123abc";
  from.time = "2024-05-06 07:08:09";
  from.test_accuracy = 0.861;
  from.views = 6;
  from.initialized_from = "step_000000781.h5, step 781";
  from.changes = "step 500: --lr 0.1 -> 0.01\n";
  return checkpoint;
}

inline Checkpoint with_optimizer(const optim::OptimizerSpec& optimizer) {
  Checkpoint checkpoint = make_checkpoint();
  checkpoint.optimizer = optimizer;
  float first = 2000.0f;
  for (const optim::StateRow& row : optim::state_rows(optimizer.kind)) {
    if (row.of_optimizer) checkpoint.state[row.role] = make_tensors(make_table(), first += 1000.0f);
  }
  return checkpoint;
}

/// The same bits in every tensor.
inline void expect_same_tensors(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_EQ(a[i].shape, b[i].shape);
    EXPECT_TRUE(std::ranges::equal(a[i].values, b[i].values, [](float x, float y) {
      return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
    })) << a[i].name;
  }
}

/// The same bits in everything that a run of this optimizer keeps.
inline void expect_same_state(const Checkpoint& a, const Checkpoint& b) {
  EXPECT_EQ(a.optimizer.kind, b.optimizer.kind);
  for (const optim::StateRow& row : optim::state_rows(a.optimizer.kind)) {
    SCOPED_TRACE(row.group);
    expect_same_tensors(a.state[row.role], b.state[row.role]);
  }
}

}  // namespace cifar_mpi::run
