#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/hash.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/comm/benchmark.hpp"
#include "cifar_mpi/cuda/backend.hpp"
#include "cifar_mpi/data/dataset.hpp"
#include "cifar_mpi/step/step.hpp"
#include "support/mpi_world.hpp"

/// Several ranks on one GPU through NCCL. Slow, because the ranks take turns, but the sums are the same.
namespace cifar_mpi::cuda {
namespace {

const comm::World& world() { return test::test_world(); }

engine::BackendOptions options() {
  engine::BackendOptions options;
  options.local_rank = world().node_rank();
  options.local_ranks = world().node_size();
  options.share_gpus = true;
  return options;
}

class NcclRanks : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = unusable();
    if (!reason.empty()) GTEST_SKIP() << "LOUD: nothing of this test ran: " << reason;
  }
};

std::unique_ptr<comm::Collective> open(const comm::Platform& platform, std::string_view name) {
  return platform.collectives.make(name, world(), comm::Wire::fp32);
}

TEST_F(NcclRanks, SumsSmallIntegersExactly) {
  const comm::Platform platform = make_platform(options());
  engine::Backend& backend = *platform.backend;
  for (const char* const name : {"nccl", "doubling"}) {
    const auto collective = open(platform, name);
    if (collective->ranks() == 1) return;
    for (const std::size_t count : {1u, 7u, 1000u, 1068298u}) {
      const Buffer buffer = collective->allocate(count * sizeof(float));
      std::vector<float> values(count), wanted(count, 0.0f);
      for (std::size_t i = 0; i < count; ++i) {
        const auto term = [&](int rank) {
          return static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 3) % 100);
        };
        values[i] = term(world().rank());
        for (int rank = 0; rank < world().size(); ++rank) wanted[i] += term(rank);
      }
      backend.copy(buffer.data(), values.data(), buffer.size());
      engine::StepProgram program("sum");
      const float* const at = buffer.as<float>();
      program.run(engine::kCompute, {"start", {}, {engine::bytes_of(at, 0)}, [](engine::Lane&) {}, {}});
      program.wait(engine::kComm, program.set(engine::kCompute));
      program.run(engine::kComm, collective->all_reduce("sum", buffer.span<float>(), 0));
      program.wait(engine::kCompute, program.set(engine::kComm));
      program.finalize();
      const auto runner = backend.runner(std::move(program), engine::RunnerKind::lanes, {});
      runner->replay();
      runner->finish();
      backend.copy(values.data(), buffer.data(), buffer.size());
      EXPECT_EQ(values, wanted) << name << ", " << count;
    }
  }
}

constexpr int kSmall = 8;   ///< pixels: two buckets
constexpr int kWhole = 24;  ///< five

std::vector<run::NamedTensor> initial_model(int input_size) {
  data::DatasetInfo info;
  info.image = {32, 32, 3};
  info.label_names = data::cifar10_label_names();
  config::TrainConfig config;
  config.input_size = input_size;
  return evaluation::initial_tensors(
      evaluation::make_network("tutorial", info, config::augment_spec(config, info.image), "generated images")
          .params,
      1);
}

/// Steps of the tutorial on generated images, with the same global batches for any number of ranks; or as many replays of local
/// steps.
std::vector<float> train(engine::RunnerKind kind, int steps, bool reproducible = false, int local_steps = 0,
                         int input_size = kSmall) {
  config::TrainConfig config;
  config.input_size = input_size;
  config.data = "generated images";
  config.global_batch = 24;
  config.shuffle = data::Shuffle::global;
  config.precision = engine::Precision::fp32;
  config.threads = 1;
  config.share_gpus = true;
  config.runner = kind;
  config.reproducible = reproducible;
  if (reproducible) config.micro_shards = 4;
  const bool local = local_steps > 0;
  if (local) {
    config.update = comm::UpdateKind::local;
    config.local.steps = local_steps;
    config.local.outer = local_steps > 1 ? optim::OuterKind::nesterov : optim::OuterKind::average;
    config.optimizer.kind = local_steps > 1 ? optim::OptimizerKind::momentum : optim::OptimizerKind::sgd;
  }
  step::Plan plan(config, world(), Log(world().rank()));
  step::Device device;
  step::Blocks blocks;
  data::DatasetInfo info;
  info.image = {32, 32, 3};
  info.label_names = data::cifar10_label_names();
  info.train_count = 96;
  info.test_count = 1;
  data::Samples images, test;
  data::make_synthetic({32, 32, 3}, 10, 96, 7, images, test);
  plan.config.data = "generated images";
  step::plan_for(plan, info);
  step::plan_device(plan, device, make_platform);
  device.samples = evaluation::ResidentData(*device.backend, images);
  step::open_update(plan, device, blocks);
  step::allocate_blocks(plan, device, blocks);
  blocks.request_word = engine::kStopRequest;
  const step::StepContext context{plan, device, blocks, *blocks.update};
  const auto step = local ? step::plan_local_steps(context, {}) : step::plan_step(context, {});
  const auto initial = initial_model(input_size);
  blocks.state.write(*device.backend, *device.tower,
                     run::initial_state({blocks.state.rows().begin(), blocks.state.rows().end()}, initial));
  step::write_step(device, blocks, 0);
  const engine::RankFacts facts{0.0, 0.0f, 40'000u + static_cast<unsigned>(world().rank())};
  device.backend->copy(blocks.facts.data(), &facts, sizeof facts);
  for (int i = 0; i < steps; ++i) step->replay();
  step->finish();
  for (int i = 0; i < steps; ++i) {  // each rank counts once, however many parts its batch has
    const engine::StepRecord& record = blocks.records[static_cast<std::size_t>(i)];
    EXPECT_EQ(record.samples, 24.0 * std::max(1, local_steps));
    EXPECT_EQ(record.stop_requests, world().size());
    for (int rank = 0; rank < world().size(); ++rank) {
      const float* const slot =
          record.slots.data() + static_cast<std::size_t>(rank) * engine::ControlLayout::slot_floats;
      EXPECT_EQ(slot[engine::ControlLayout::hash_pieces], static_cast<float>(40'000 + rank));
      const float spent = slot[engine::ControlLayout::compute_ms];
      EXPECT_TRUE(i == 0 ? spent == 0.0f : spent > 0.0f)
          << "step " << i << ", rank " << rank << ": " << spent;
    }
  }
  std::vector<float> all;
  for (const auto& tensor : evaluation::export_block(*device.backend, *device.tower, plan.network.params,
                                                     blocks.state[optim::StateRole::weights]))
    all.insert(all.end(), tensor.values.begin(), tensor.values.end());
  return all;
}

TEST_F(NcclRanks, EndWithIdenticalBitsWhicheverTheRunner) {
  const std::vector<float> serial = train(engine::RunnerKind::serial, 4);
  EXPECT_EQ(train(engine::RunnerKind::lanes, 4), serial);
  EXPECT_EQ(train(engine::RunnerKind::graph, 4), serial);
  std::vector<float> first = serial;
  world().broadcast(std::as_writable_bytes(std::span(first)));
  EXPECT_EQ(first, serial);
}

/// Local steps: the GPUs' changes of weights are averaged as gradients are. With one step per averaging, the result is
/// that of all-reduce except for two roundings of a weight (below 1) per step; the factor 10 allows for their growth in
/// three steps with a small rate.
TEST_F(NcclRanks, AverageLocalSteps) {
  const std::vector<float> ring = train(engine::RunnerKind::graph, 3),
                           one = train(engine::RunnerKind::graph, 3, false, 1);
  ASSERT_EQ(one.size(), ring.size());
  for (std::size_t i = 0; i < ring.size(); ++i) ASSERT_NEAR(one[i], ring[i], 3 * 10 * 2 * 0x1.0p-24) << i;
  const std::vector<float> serial = train(engine::RunnerKind::serial, 2, false, 2);
  EXPECT_EQ(train(engine::RunnerKind::graph, 2, false, 2), serial);
  if (world().size() == 2) {  // the tasks of four ranks are the same
    EXPECT_EQ(train(engine::RunnerKind::audit, 2, false, 2), serial);
  }
  std::vector<float> first = serial;
  world().broadcast(std::as_writable_bytes(std::span(first)));
  EXPECT_EQ(first, serial);
  EXPECT_NE(serial, ring);
}

/// The model in a file of this name, which the run with one rank writes.
class ModelOfOneRank {
 public:
  ModelOfOneRank(const char* folder, const char* name) : path_(std::string(folder) + '/' + name) {}

  void leave(const std::vector<float>& values) const {
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * 4));
  }
  std::vector<float> read(std::size_t count) const {
    std::vector<float> values(count);
    std::ifstream in(path_, std::ios::binary);
    in.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(count * 4));
    EXPECT_TRUE(in) << "run with one rank first";
    return values;
  }

 private:
  std::string path_;
};

/// Holds every parameter's update of one step, rate · gradient, against that of one rank.
///
/// The parts of a batch have other sizes than the whole, so a GPU may multiply them in another order. Where the
/// two largest values of a pooling window, or a value and the zero of its rectifier, lie closer than that
/// changes them, one of the thousands of terms of a gradient goes another way. Seen with weights that were off
/// by some ulp: no such term, 2e-5 of a parameter's update; one, 1e-2; dozens, 3e-2. A sum that lacks the part
/// of one of four ranks is off by 1/4 where the parts agree, and by more where they do not.
void expect_same_step(const std::vector<float>& found, const std::vector<float>& one) {
  std::size_t at = 0;
  for (const run::NamedTensor& tensor : initial_model(kWhole)) {
    double difference = 0.0, update = 0.0, size = 0.0;
    for (const float before : tensor.values) {
      const auto start = static_cast<double>(before), wanted = static_cast<double>(one.at(at));
      difference += std::pow(static_cast<double>(found.at(at)) - wanted, 2);
      update += std::pow(wanted - start, 2);
      size += start * start;
      ++at;
    }
    EXPECT_GT(update, 0.0) << tensor.name;
    EXPECT_LE(std::sqrt(difference), std::sqrt(update) / 16 + 0x1.0p-23 * std::sqrt(size)) << tensor.name;
  }
  EXPECT_EQ(at, one.size());
}

TEST_F(NcclRanks, TakeTheStepThatOneRankTakes) {
  const std::vector<float> found = train(engine::RunnerKind::graph, 1, false, 0, kWhole);
  const std::vector<float> reproducible = train(engine::RunnerKind::graph, 3, true);
  const char* const folder = std::getenv("CIFAR_MPI_GPU_CHECK");
  if (folder == nullptr) GTEST_SKIP() << "set CIFAR_MPI_GPU_CHECK to a folder in which 1, 2 and 4 ranks meet";
  const ModelOfOneRank step(folder, "step.bin"), same(folder, "reproducible.bin");
  if (world().size() == 1) {
    step.leave(found);
    same.leave(reproducible);
    return;
  }
  expect_same_step(found, step.read(found.size()));
  EXPECT_EQ(reproducible, same.read(reproducible.size()));
}

TEST_F(NcclRanks, LeaveWithinSecondsAfterACapture) {
  world().barrier();
  train(engine::RunnerKind::graph, 3);
  const double left = steady_seconds();
  world().barrier();
  EXPECT_LT(steady_seconds() - left, 30.0);
}

/// No tree can gather.
TEST_F(NcclRanks, NameAnAlgorithmForSumsAlone) {
  if (world().size() == 1 || std::getenv("NCCL_ALGO") != nullptr) return;
  engine::BackendOptions tree = options();
  tree.nccl_algorithm = "tree";
  const comm::Platform platform = make_platform(tree);
  EXPECT_NO_THROW(open(platform, "doubling")->allocate(1000));
  EXPECT_EQ(std::getenv("NCCL_ALGO"), nullptr);
  EXPECT_NO_THROW(open(platform, "nccl")->allocate(1000));
  EXPECT_STREQ(std::getenv("NCCL_ALGO"), "Tree");
  unsetenv("NCCL_ALGO");
}

/// Its sums differ between runs, so it is off unless the option or the environment asks for it; the warning then names
/// the setting.
TEST_F(NcclRanks, LeaveNvlsOffUnlessAsked) {
  if (world().size() == 1 || std::getenv("NCCL_ALGO") != nullptr) return;
  const auto opened = [](bool asked, const char* variable, const char* value) {
    unsetenv("NCCL_NVLS_ENABLE");
    if (variable != nullptr) setenv(variable, value, 1);
    engine::BackendOptions chosen = options();
    chosen.nccl_nvls = asked;
    std::string note = nvls_note(asked);
    const comm::Platform platform = make_platform(chosen);
    EXPECT_EQ(open(platform, "nccl")->note(), note);
    EXPECT_EQ(open(platform, "doubling")->note(), "");  // which gathers, and adds by itself
    note.resize(note.find(" lets NCCL") == std::string::npos ? 0 : note.find(" lets NCCL"));
    const char* const set = std::getenv("NCCL_NVLS_ENABLE");
    note += concat(", ", set != nullptr ? set : "not set");
    if (variable != nullptr) unsetenv(variable);
    return note;
  };
  EXPECT_EQ(opened(false, nullptr, nullptr), ", 0");
  EXPECT_EQ(opened(true, nullptr, nullptr), "--nccl-nvls, not set");
  EXPECT_EQ(opened(false, "NCCL_NVLS_ENABLE", "1"), "NCCL_NVLS_ENABLE=1, 1");
  EXPECT_EQ(opened(true, "NCCL_NVLS_ENABLE", "0"), ", 0");
  EXPECT_EQ(opened(false, "NCCL_ALGO", "allreduce:Ring,nvlstree"),
            "NCCL_ALGO=allreduce:Ring,nvlstree, not set");
  EXPECT_EQ(opened(false, "NCCL_ALGO", "^NVLS"), ", 0");
  EXPECT_EQ(opened(false, "NCCL_ALGO", "Ring"), ", 0");
  unsetenv("NCCL_NVLS_ENABLE");
}

/// Of the GPU in use, on one host.
std::uint64_t identity_of_gpu() {
  int device = -1;
  cudaDeviceProp properties{};
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(cudaGetDeviceProperties(&properties, device), cudaSuccess);
  const std::string host = world().host();
  return hash_bytes(std::as_bytes(std::span(properties.uuid.bytes))) ^
         hash_bytes(std::as_bytes(std::span(host)));
}

TEST_F(NcclRanks, RefuseToShareAGpuUnlessAsked) {
  if (world().size() == 1) return;
  int gpus = 0;
  ASSERT_EQ(cudaGetDeviceCount(&gpus), cudaSuccess);
  engine::BackendOptions alone = options();
  alone.share_gpus = false;
  comm::Platform platform;
  try {
    platform = make_platform(alone);
    open(platform, "nccl");
    std::vector<std::uint64_t> found = world().gather(identity_of_gpu());
    std::sort(found.begin(), found.end());
    EXPECT_EQ(std::adjacent_find(found.begin(), found.end()), found.end()) << "two ranks have one GPU";
  } catch (const Error& error) {
    EXPECT_LT(gpus, world().node_size());
    EXPECT_EQ(error.kind(), ErrorKind::device);
    EXPECT_NE(std::string(error.what()).find("--share-gpus"), std::string::npos) << error.what();
  }
}

TEST(NcclBenchmark, SumsExactlyBesideACopy) {
  if (const std::string reason = unusable(); !reason.empty())
    GTEST_SKIP() << "LOUD: nothing of this test ran: " << reason;
  const comm::World& world = test::test_world();
  engine::BackendOptions options;
  options.local_rank = world.node_rank();
  options.local_ranks = world.node_size();
  options.share_gpus = true;
  const comm::Platform platform = make_platform(options);
  const comm::AllReduceBenchmarkConfig config{{4, 4096, 1'000'004}, {"nccl", "doubling"}, 0.01};
  const comm::AllReduceBenchmark benchmark = comm::benchmark_all_reduce(config, world, platform);
  ASSERT_EQ(benchmark.timings.size(), 2 * config.bytes.size());
  for (const comm::AllReduceTiming& t : benchmark.timings) {
    EXPECT_EQ(t.resolved, t.algorithm == "nccl" ? "nccl" : "doubling through nccl");
    EXPECT_EQ(t.wrong, 0u) << t.bytes << " bytes";
    EXPECT_GT(t.least_s, 0.0);
    EXPECT_GT(t.copy_bytes_per_s, 0.0);
  }
}

}  // namespace
}  // namespace cifar_mpi::cuda
