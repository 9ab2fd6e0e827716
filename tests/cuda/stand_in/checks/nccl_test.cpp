#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "cuda/handles.hpp"

/// The stand-in's NCCL accepts only calls, captures and launches that are the same on all ranks.
namespace cifar_mpi::stand_in {
namespace {

using cuda::Graph;
using cuda::GraphExec;
using cuda::Stream;

/// One of two processes, the ranks of a communicator.
class Rank {
 public:
  Rank(int rank, const ncclUniqueId& id) : number(rank) {
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    stream_ = Stream(stream);
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), 64 * sizeof(float)), cudaSuccess);
    setenv("NCCL_HOSTID", std::to_string(rank).c_str(), 1);  // they share the GPU
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    EXPECT_EQ(ncclCommInitRankConfig(&comm_, 2, id, rank, &config), ncclSuccess);
  }
  void sum(std::size_t floats) const {
    EXPECT_EQ(ncclAllReduce(data_, data_, floats, ncclFloat, ncclSum, comm_, stream_.get()), ncclSuccess);
  }
  void gather(std::size_t floats) const {
    EXPECT_EQ(ncclAllGather(data_, data_ + 16, floats, ncclFloat, comm_, stream_.get()), ncclSuccess);
  }
  GraphExec capture(std::size_t floats) const {
    EXPECT_EQ(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
    sum(floats);
    cudaGraph_t captured = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_.get(), &captured), cudaSuccess);
    const Graph graph(captured);
    cudaGraphExec_t made = nullptr;
    EXPECT_EQ(cudaGraphInstantiate(&made, captured, 0), cudaSuccess);
    return GraphExec(made);
  }
  void launch(const GraphExec& graph) const {
    EXPECT_EQ(cudaGraphLaunch(graph.get(), stream_.get()), cudaSuccess);
  }
  cudaError_t finish() const { return cudaStreamSynchronize(stream_.get()); }

  int number;

 private:
  Stream stream_;
  float* data_ = nullptr;
  ncclComm_t comm_ = nullptr;
};

/// Ends the process, with 0 if both ranks succeeded and with 1 if both failed.
[[noreturn]] void run_two_ranks(const std::function<void(const Rank&)>& work) {
  ncclUniqueId id{};
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  const pid_t other = fork();
  const Rank rank(other == 0 ? 1 : 0, id);
  work(rank);
  const int failed = rank.finish() == cudaSuccess ? 0 : 1;
  if (other == 0) _exit(failed);
  int status = 0;
  waitpid(other, &status, 0);
  _exit(WIFEXITED(status) && WEXITSTATUS(status) == failed ? failed : 2);
}

/// On a GPU, such ranks hang or add values that do not belong together.
TEST(StandInNccl, NamesTwoRanksWhoseCallsDiffer) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto expect_differ = [](const std::string& zero, const std::string& one, const auto& work) {
    EXPECT_EXIT(run_two_ranks(work), testing::ExitedWithCode(1),
                "the calls of the ranks differ: rank 0 \\(0, .*\\) runs " + zero +
                    "; rank 1 \\(1, .*\\) runs " + one + "\n");
  };
  expect_differ("all-reduce of 8 floats, eager", "all-reduce of 16 floats, eager",
                [](const Rank& rank) { rank.sum(rank.number == 0 ? 8 : 16); });
  expect_differ("all-reduce of 8 floats, eager", "all-gather of 8 floats, eager",
                [](const Rank& rank) { rank.number == 0 ? rank.sum(8) : rank.gather(8); });
  expect_differ("all-reduce of 8 floats, eager", "all-reduce of 8 floats, call 1 of its capture number 1",
                [](const Rank& rank) {
                  const GraphExec graph = rank.capture(8);
                  rank.number == 0 ? rank.sum(8) : rank.launch(graph);
                });
  expect_differ("all-reduce of 8 floats, call 1 of its capture number 2",
                "all-reduce of 8 floats, call 1 of its capture number 1", [](const Rank& rank) {
                  const GraphExec first = rank.capture(8), second = rank.capture(8);
                  rank.launch(rank.number == 0 ? second : first);
                });
}

TEST(StandInNccl, SumsWhereTheCallsAreTheSame) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_two_ranks([](const Rank& rank) {
                const GraphExec first = rank.capture(8), second = rank.capture(16);
                rank.sum(0);
                rank.launch(second);
                rank.launch(first);
                rank.gather(8);
                rank.launch(second);
              }),
              testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace cifar_mpi::stand_in
