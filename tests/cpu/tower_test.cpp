#include "cifar_mpi/lower/tower.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>

#include "cifar_mpi/base/error.hpp"
#include "cpu/dnnl.hpp"
#include "cpu/network_run.hpp"
#include "support/errors.hpp"

namespace cifar_mpi::cpu {
namespace {

using engine::Precision;
using engine::RunnerKind;

model::NetSpec tutorial() { return model::make_model("tutorial", {24, 24, 3}, 10); }

std::unique_ptr<engine::Backend> one_thread() { return make_backend({1, false}); }

/// Logical values pass through one reorder and back, which loses everything else.
void expect_zero_padding(const NetworkRun& run, const float* block) {
  for (std::size_t p = 0; p < run.table.size(); ++p) {
    const auto& entry = run.tower->layout().entries[p];
    const std::span<const float> span(block + entry.offset, entry.floats);
    std::vector<float> values(static_cast<std::size_t>(run.table[p].shape.count())), physical(entry.floats);
    run.tower->to_logical(p, span, values);
    run.tower->from_logical(p, values, physical);
    EXPECT_EQ(0, std::memcmp(physical.data(), span.data(), span.size_bytes())) << run.table[p].name;
  }
}

TEST(Tower, LaysParametersInTheOrderOfTheTableOnWholeCacheLines) {
  NetworkRun run({.net = tutorial(), .batch = 2});
  const engine::ParamLayout& layout = run.tower->layout();
  ASSERT_EQ(layout.entries.size(), run.table.size());
  std::size_t end = 0;
  for (std::size_t p = 0; p < run.table.size(); ++p) {
    EXPECT_EQ(layout.entries[p].offset, end) << run.table[p].name;
    EXPECT_EQ(layout.entries[p].floats % 16, 0u) << run.table[p].name;
    EXPECT_GE(layout.entries[p].floats, static_cast<std::size_t>(run.table[p].shape.count()))
        << run.table[p].name;
    end += layout.entries[p].floats;
  }
  EXPECT_EQ(layout.floats, end);
}

TEST(Tower, GivesLogicalValuesBackAsTheyWere) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    if (precision == Precision::bf16 && !has_bf16()) continue;
    NetworkRun run({.net = tutorial(), .batch = 2, .precision = precision});
    for (std::size_t p = 0; p < run.table.size(); ++p) {
      std::vector<float> values(static_cast<std::size_t>(run.table[p].shape.count())), back(values.size());
      std::iota(values.begin(), values.end(), 1.0f);
      std::vector<float> physical(run.tower->layout().entries[p].floats, -5.0f);
      run.tower->from_logical(p, values, physical);
      run.tower->to_logical(p, physical, back);
      EXPECT_EQ(back, values) << run.table[p].name;
      const auto padding = static_cast<std::size_t>(std::count(physical.begin(), physical.end(), 0.0f));
      EXPECT_EQ(padding, physical.size() - values.size())
          << run.table[p].name << ": padding that is not zero";
    }
  }
}

TEST(Tower, LeavesPaddingZeroInATrainingStep) {
  NetworkRun run({.net = tutorial(), .batch = 3});
  run.run(run.gradient_program());
  expect_zero_padding(run, run.grads().data());

  const std::vector<float> before = run.params();
  std::vector<float> ema(before.size());
  double decay_sum = 0.0;
  const engine::UpdateBinding binding = run.update_binding(ema.data(), &decay_sum, before.size());
  engine::Lane lane;
  run.backend.update_task(binding, run.table, run.tower->layout()).start(lane);
  EXPECT_NE(run.params(), before);
  expect_zero_padding(run, run.params().data());
  expect_zero_padding(run, ema.data());
}

TEST(Tower, NamesTheKernelsOfEveryLayerInItsPlan) {
  NetworkRun run({.net = tutorial(), .batch = 2, .conv = engine::ConvMethod::direct});
  const std::string text = run.tower->plan_text();
  for (const char* const part :
       {"oneDNN", "fp32", "conv1 forward: ", "conv2 data gradient: ", "pool2: own kernels, ",
        "local3 weight gradient: ", "softmax_linear forward: "}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  }
  EXPECT_EQ(text.find("conv1 data gradient"), std::string::npos);
}

TEST(Tower, RefusesABatchOfNothing) {
  const model::NetSpec net = tutorial();
  const model::ParamTable table = model::make_param_table(net);
  expect_error(ErrorKind::usage, {"a batch of 0"}, [&] {
    lower::Tower(*one_thread(), {&net, &table, 0, Precision::fp32});
  });
}

TEST(CpuBackend, ResolvesAutomaticToFp32AndRefusesTf32) {
  const auto backend = one_thread();
  EXPECT_EQ(backend->resolve(Precision::automatic), Precision::fp32);
  EXPECT_EQ(backend->resolve(Precision::fp32), Precision::fp32);
  expect_error(ErrorKind::device, {"tf32"}, [&] { backend->resolve(Precision::tf32); });
}

TEST(CpuBackend, HasBf16ExactlyWhereOneDnnHasIt) {
  const auto backend = one_thread();
  if (has_bf16()) {
    EXPECT_EQ(backend->resolve(Precision::bf16), Precision::bf16);
    return;
  }
  expect_error(ErrorKind::device, {"bf16"}, [&] { backend->resolve(Precision::bf16); });
}

TEST(CpuBackend, RefusesTheGraphRunnerAndNoThreads) {
  NetworkRun run({.net = tutorial(), .batch = 1});
  expect_error(ErrorKind::usage, {"--runner"},
               [&] { run.backend.runner(run.gradient_program(), RunnerKind::graph, {}); });
  expect_error(ErrorKind::usage, {"--threads"}, [] { make_backend({0, false}); });
}

TEST(CpuBackend, DescribesItself) {
  const std::string text = make_backend({2, false})->description();
  EXPECT_EQ(text.rfind("cpu: ", 0), 0u) << text;
  EXPECT_NE(text.find("oneDNN"), std::string::npos) << text;
  EXPECT_NE(text.find("2 threads"), std::string::npos) << text;
  EXPECT_NE(describe().find("oneDNN"), std::string::npos);
}

}  // namespace
}  // namespace cifar_mpi::cpu
