#include "cifar_mpi/train/self_check.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/cpu/backend.hpp"
#include "cifar_mpi/cuda/backend.hpp"
#include "support/mpi_world.hpp"

/// What the self-check says of a GPU with faults: those of the stand-in, switched on for one rank.
namespace cifar_mpi::train {
namespace {

const comm::World& world() { return test::test_world(); }

class GpuSelfCheck : public testing::Test {
 protected:
  void TearDown() override { unsetenv("STAND_IN_FAULT"); }

  static void break_last_rank(const char* fault) {
    if (world().rank() == world().size() - 1) setenv("STAND_IN_FAULT", fault, 1);
  }
  static SelfCheckReport find(engine::Precision precision, bool judged = true) {
    TrainConfig config;
    config.data = "generated images";
    config.input_size = 8;
    config.batch_size = 4;
    config.threads = 1;
    config.share_gpus = true;
    config.precision = precision;
    data::DatasetInfo info;
    info.image = {32, 32, 3};
    info.label_names = data::cifar10_label_names();
    info.train_count = 1000;
    info.test_count = 10;
    SelfCheck check;
    if (judged && cpu::unusable().empty()) {
      check.judge = [](const engine::BackendOptions& options) {
        return comm::on_host(cpu::make_backend(options));
      };
    }
    check.identity = cuda::identity;
    return check_device(config, info, world(), cuda::make_platform, check);
  }
  static void expect_fault(const char* fault, engine::Precision precision, const std::string& text) {
    break_last_rank(fault);
    const SelfCheckReport report = find(precision);
    unsetenv("STAND_IN_FAULT");
    ASSERT_EQ(report.faults.size(), 1u) << fault;
    const std::string who =
        concat("rank ", world().size() - 1, " on ", world().hosts()[0], ", stand-in GPU 0000:");
    EXPECT_TRUE(report.faults[0].starts_with(who)) << report.faults[0];
    EXPECT_NE(report.faults[0].find(text), std::string::npos) << fault << ": " << report.faults[0];
  }
};

using engine::Precision;

bool alone() { return world().size() == 1; }

TEST_F(GpuSelfCheck, PassesTheBackend) {
  const auto expect_good = [](Precision precision) {
    const SelfCheckReport report = find(precision);
    EXPECT_TRUE(report.good) << to_string(precision) << ": " << (report.good ? "" : report.faults.front());
    EXPECT_EQ(report.table.size(), precision == Precision::fp32 || !cpu::unusable().empty() ? 6u : 7u);
  };
  expect_good(Precision::bf16);
  if (!alone()) return;  // what follows has nothing to do with others
  expect_good(Precision::fp32);
  expect_good(Precision::tf32);
}

TEST_F(GpuSelfCheck, NamesEachFault) {
  if (!alone()) {
    expect_fault("sum", Precision::fp32, ": all-reduce: the all-reduce on lanes gives ");
    expect_fault("stale", Precision::fp32, ": runners: in line and as a graph");
    return;
  }
  if (cpu::unusable().empty()) {
    expect_fault("product", Precision::fp32, ": gradients, fp32: the gradient of ");
    expect_fault("conv", Precision::bf16, ": gradients, precision of the run: the gradient of ");
  }
  expect_fault("stale", Precision::fp32, ": runners: in line and as a graph");
  expect_fault("nan", Precision::bf16, ": divergence: NaN in every image gives a cross-entropy of ");
  expect_fault("flip", Precision::bf16, "/");  // which parameter is by chance
}

/// What the backend has another way for is no fault.
TEST_F(GpuSelfCheck, PassesWhereLibrariesAreMissingOrHideNan) {
  if (!alone()) GTEST_SKIP() << "has nothing to do with others";
  for (const char* const fault : {"dnn", "relu"}) {
    break_last_rank(fault);
    EXPECT_TRUE(find(Precision::bf16, false).good) << fault;
  }
}

TEST_F(GpuSelfCheck, FindsABrokenGraphWithoutAJudge) {
  if (!alone()) GTEST_SKIP() << "has nothing to do with others";
  EXPECT_TRUE(find(Precision::fp32, false).good);
  break_last_rank("stale");
  EXPECT_FALSE(find(Precision::fp32, false).good);
}

}  // namespace
}  // namespace cifar_mpi::train
