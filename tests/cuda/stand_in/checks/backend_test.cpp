#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cuda/device_runner.hpp"
#include "cuda/lane.hpp"
#include "cuda/library_conv.hpp"
#include "cuda/matmul.hpp"
#include "cuda/stand_in/gpu.hpp"

/// Parts of the backend that need GPU work of a given length, or libraries with given requirements.
namespace cifar_mpi::cuda {
namespace {

TEST(DeviceRunner, LooksAtTheWatchesWhileItWaits) {
  Device device{engine::BackendOptions{}};
  std::atomic<int> looks = 0;
  device.link().watches.push_back([&] {
    if (++looks == 2) throw Error(ErrorKind::comm, "a rank is gone");
  });
  engine::StepProgram program("slow");
  program.run(engine::kCompute, {"task",
                                 {},
                                 {},
                                 [&looks](engine::Lane& lane) {
                                   stand_in::start_collective(stream_of(lane), "slow", [&looks] {
                                     for (int time = 0; time < 300 && looks < 2; ++time) usleep(100'000);
                                   });
                                 },
                                 {}});
  program.finalize();
  const auto runner = make_runner(device, std::move(program), engine::RunnerKind::lanes, {});
  runner->replay();
  EXPECT_THROW(runner->finish(), Error);
  EXPECT_EQ(looks, 2);
  device.link().watches.clear();
  runner->finish();
}

/// A convolution, planned while cuDNN's best algorithm requires `mib` MiB of workspace.
struct Planned {
  explicit Planned(const char* mib, std::optional<std::size_t> left = std::nullopt) {
    setenv("STAND_IN_CUDNN_MIB", mib, 1);
    Device device{engine::BackendOptions{}};
    LibraryConv conv({2, {6, 6, 8}, 8, 5, ValueType::bf16});
    const TrialMemory memory(device, 20'000);
    Trial trial = memory.trial();
    trial.workspace = [&](std::size_t bytes) -> void* {
      asked.push_back(bytes);
      return left && bytes > *left ? nullptr : memory.trial().workspace(bytes);
    };
    for (const ConvDirection direction :
         {ConvDirection::forward, ConvDirection::weight_gradient, ConvDirection::data_gradient}) {
      good = conv.plan(direction, trial) < kConvRungs && good;
      if (!conv.why().empty()) why = conv.why();
    }
    text = conv.text();
    workspace = conv.workspace_bytes();
    unsetenv("STAND_IN_CUDNN_MIB");
  }
  bool good = true;
  std::string text, why;
  std::size_t workspace = 0;
  std::vector<std::size_t> asked;
};

TEST(LibraryConv, TakesAsMuchWorkspaceAsItsAlgorithmsNeedUpToALimit) {
  for (const std::size_t mib : {100u, 512u}) {
    const Planned much(std::to_string(mib).c_str());
    ASSERT_TRUE(much.good) << much.text;
    EXPECT_NE(much.text.find("algorithms 2 forward, 2 weight gradient, 2 data gradient"), std::string::npos)
        << much.text;
    EXPECT_EQ(much.workspace, mib << 20);
    EXPECT_EQ(much.asked, std::vector<std::size_t>(3, mib << 20));
  }
  const Planned too_much("513");
  ASSERT_TRUE(too_much.good) << too_much.text;
  EXPECT_NE(too_much.text.find("algorithms 3 forward"), std::string::npos) << too_much.text;
  EXPECT_EQ(too_much.asked, (std::vector<std::size_t>{10'000, 20'000, 30'000}));
}

TEST(LibraryConv, TakesTheNextAlgorithmWhereTheMemoryIsNotThere) {
  const Planned full("100", std::size_t{99} << 20);
  ASSERT_TRUE(full.good) << full.text;
  EXPECT_NE(full.text.find("algorithms 3 forward, 3 weight gradient, 3 data gradient"), std::string::npos)
      << full.text;
  EXPECT_EQ(full.workspace, 30'000u);
  const Planned none("100", 29'999);
  EXPECT_FALSE(none.good);
  EXPECT_EQ(none.text, "cuDNN bf16, algorithms 3 forward, 3 weight gradient");
  EXPECT_EQ(none.why, "the GPU has no 100 MiB left for cuDNN's algorithm");
}

TEST(Matmul, TakesNoWorkspaceThatIsNotThere) {
  Device device{engine::BackendOptions{}};
  Matmul product({128, 64, 80, false, false, ValueType::bf16, ValueType::bf16});
  const TrialMemory memory(device, 20'480);
  Trial trial = memory.trial();
  trial.workspace = [](std::size_t) -> void* { return nullptr; };
  product.plan(trial);
  EXPECT_NE(product.text().find("cuBLASLt 4711"), std::string::npos) << product.text();
  EXPECT_EQ(product.workspace_bytes(), 0u);
  product.plan(memory.trial());
  EXPECT_NE(product.text().find("cuBLASLt 4711"), std::string::npos) << product.text();
  EXPECT_GT(product.workspace_bytes(), 0u);
}

TEST(Matmul, PutsAReluAfterOneThatHidesNan) {
  for (const bool hides : {false, true}) {
    for (const ValueType type : {ValueType::fp32, ValueType::bf16}) {
      if (hides) setenv("STAND_IN_FAULT", "relu", 1);
      Device device{engine::BackendOptions{}};
      Matmul product({16, 8, 32, false, false, type, type, false, Epilogue::bias_relu});
      const TrialMemory memory(device, 4096);
      const Trial trial = memory.trial();
      product.plan(trial);
      EXPECT_EQ(product.text().find("our ReLU after it") != std::string::npos, hides) << product.text();
      product.run(trial.stream, trial.operand, trial.operand, trial.result, trial.nans,
                  trial.workspace(product.workspace_bytes()));
      ASSERT_EQ(cudaStreamSynchronize(trial.stream), cudaSuccess);
      std::vector<unsigned char> bytes(16 * 8 * bytes_per(type));
      trial.read(bytes.data(), trial.result, bytes.size());
      for (std::size_t i = bytes_per(type) - 1; i < bytes.size(); i += bytes_per(type))
        ASSERT_EQ(bytes[i] & 0x7F, 0x7F) << i;  // the exponent of NaN
      unsetenv("STAND_IN_FAULT");
    }
  }
}

TEST(Device, LetsTheCommLaneGoBeforeComputeAndThatBeforeTheSide) {
  Device device{engine::BackendOptions{}};
  const auto priority = [&](engine::LaneId lane) {
    int found = 0;
    EXPECT_EQ(cudaStreamGetPriority(device.stream(lane), &found), cudaSuccess);
    return found;
  };
  EXPECT_LT(priority(engine::kComm), priority(engine::kCompute));
  EXPECT_LT(priority(engine::kCompute), priority(engine::kFirstSide));
}

TEST(LibraryConv, SaysWhyThereIsNoneWhereCudnnCannotBeOpened) {
  setenv("STAND_IN_FAULT", "dnn", 1);
  const Planned none("100");
  unsetenv("STAND_IN_FAULT");
  EXPECT_FALSE(none.good);
  EXPECT_NE(none.why.find("cuDNN cannot be opened ("), std::string::npos) << none.why;
}

TEST(TrialMemory, GivesNothingWhereTheDeviceHasNotSoMuchAndGoesOn) {
  Device device{engine::BackendOptions{}};
  const TrialMemory memory(device, 100);
  void* const some = memory.trial().workspace(1000);
  EXPECT_NE(some, nullptr);
  EXPECT_EQ(memory.trial().workspace(10), some);
  EXPECT_EQ(memory.trial().workspace(std::size_t{1} << 50), nullptr);
  EXPECT_NE(memory.trial().workspace(1000), nullptr);
}

}  // namespace
}  // namespace cifar_mpi::cuda
