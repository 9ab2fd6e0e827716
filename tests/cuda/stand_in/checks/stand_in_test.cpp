#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cuda/handles.hpp"
#include "cuda/stand_in/block.hpp"
#include "cuda/stand_in/gpu.hpp"

/// The stand-in GPU promises what CUDA promises, and no more.
namespace cifar_mpi::stand_in {
namespace {

using cuda::Event;
using cuda::Graph;
using cuda::GraphExec;
using cuda::make_event;
using cuda::Stream;

/// Tries of what chance decides: what happens in every second try or so stays away with 2^-200.
constexpr int kTries = 200;

Stream make_stream() {
  cudaStream_t made = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), cudaSuccess);
  return Stream(made);
}

void wait_for(const Stream& stream) { ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess); }

template <class T>
T* allocate(std::size_t count) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, count * sizeof(T)), cudaSuccess);
  return static_cast<T*>(memory);
}

/// Records the order in which work runs, one letter each.
struct Letters {
  std::string text;
  void append(const Stream& stream, char letter) {
    start(stream.get(), "letter", [this, letter] { text += letter; });
  }
};

cudaError_t end_capture(const Stream& stream, Graph& graph) {
  cudaGraph_t made = nullptr;
  const cudaError_t status = cudaStreamEndCapture(stream.get(), &made);
  graph = Graph(made);
  return status;
}

GraphExec instantiate(const Graph& graph) {
  cudaGraphExec_t made = nullptr;
  EXPECT_EQ(cudaGraphInstantiate(&made, graph.get(), 0), cudaSuccess);
  return GraphExec(made);
}

TEST(StandInStreams, KeepTheOrderWithinEachAndNoneBetweenTwo) {
  const Stream one = make_stream(), two = make_stream();
  std::set<std::string> seen;
  for (int i = 0; i < kTries; ++i) {
    Letters letters;
    letters.append(one, 'a');
    letters.append(one, 'b');
    letters.append(two, 'X');
    wait_for(one);
    wait_for(two);
    seen.insert(letters.text);
  }
  EXPECT_EQ(seen, (std::set<std::string>{"abX", "aXb", "Xab"}));
}

TEST(StandInStreams, ShowAForgottenWaitEvenWhenItMattersLate) {
  const Stream one = make_stream(), two = make_stream();
  constexpr std::size_t kAhead = 20;
  bool late = false, waited = true;
  for (int i = 0; i < kTries; ++i) {
    for (const bool waits : {false, true}) {
      Letters letters;
      const Event event = make_event();
      letters.append(two, 'X');
      ASSERT_EQ(cudaEventRecord(event.get(), two.get()), cudaSuccess);
      if (waits) {
        ASSERT_EQ(cudaStreamWaitEvent(one.get(), event.get(), 0), cudaSuccess);
      }
      for (std::size_t k = 0; k < kAhead; ++k) letters.append(one, 'a');
      wait_for(one);
      wait_for(two);
      (waits ? waited : late) =
          waits ? waited && letters.text.front() == 'X' : late || letters.text.back() == 'X';
    }
  }
  EXPECT_TRUE(late);
  EXPECT_TRUE(waited);
}

TEST(StandInStreams, DoNothingBeforeTheHostWaitsAsOftenAsNot) {
  const Stream stream = make_stream();
  int early = 0;
  for (int i = 0; i < kTries; ++i) {
    std::atomic<bool> done = false;
    start(stream.get(), "flag", [&] { done = true; });
    usleep(500);
    early += done ? 1 : 0;
    wait_for(stream);
    EXPECT_TRUE(done);
  }
  EXPECT_GT(early, 0);
  EXPECT_LT(early, 3 * kTries / 4);
}

TEST(StandInStreams, AreWorkedOffByAThreadThatWaitsWhereTheyDoNotWaitForOtherRanks) {
  const Stream stream = make_stream();
  const std::thread::id own = std::this_thread::get_id();
  int here = 0;
  for (int i = 0; i < kTries; ++i) {
    std::thread::id work, collective;
    start(stream.get(), "work", [&] { work = std::this_thread::get_id(); });
    start_collective(stream.get(), "collective", [&] { collective = std::this_thread::get_id(); });
    wait_for(stream);
    here += work == own ? 1 : 0;
    EXPECT_NE(collective, own);
  }
  EXPECT_GT(here, 0);
}

TEST(StandInEvents, AreWaitedForAsTheyWereRecordedAtTheCall) {
  const Stream one = make_stream(), two = make_stream(), three = make_stream();
  std::set<std::string> seen;
  for (int i = 0; i < kTries; ++i) {
    Letters letters;
    const Event event = make_event();
    letters.append(one, 'a');
    ASSERT_EQ(cudaEventRecord(event.get(), one.get()), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(three.get(), event.get(), 0), cudaSuccess);
    letters.append(three, 'X');
    letters.append(two, 'b');
    ASSERT_EQ(cudaEventRecord(event.get(), two.get()), cudaSuccess);  // again, on another stream
    ASSERT_EQ(cudaEventSynchronize(event.get()), cudaSuccess);
    EXPECT_NE(letters.text.find('b'), std::string::npos);
    for (const Stream* stream : {&one, &three}) wait_for(*stream);
    EXPECT_LT(letters.text.find('a'), letters.text.find('X'));
    seen.insert(letters.text);
  }
  EXPECT_EQ(seen, (std::set<std::string>{"aXb", "abX", "baX"}));
}

TEST(StandInEvents, WakeEveryThreadThatWaitsWhicheverRunsTheWork) {
  const Stream stream = make_stream();
  const Event event = make_event();
  for (int i = 0; i < kTries; ++i) {
    start(stream.get(), "work", [] { usleep(500); });
    ASSERT_EQ(cudaEventRecord(event.get(), stream.get()), cudaSuccess);
    std::thread other([&] { EXPECT_EQ(cudaEventSynchronize(event.get()), cudaSuccess); });
    while (cudaEventQuery(event.get()) == cudaErrorNotReady) {
    }
    other.join();
  }
  static_cast<void>(cudaGetLastError());
}

TEST(StandInEvents, HaveHappenedWhenNobodyHasRecordedThem) {
  const Stream stream = make_stream();
  const Event event = make_event();
  EXPECT_EQ(cudaStreamWaitEvent(stream.get(), event.get(), 0), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event.get()), cudaSuccess);
  wait_for(stream);
}

TEST(StandInGraphs, KeepTheEdgesOfTheirCaptureAndNoOthers) {
  const Stream one = make_stream(), two = make_stream();
  Letters letters;
  const Event fork = make_event(), join = make_event();
  ASSERT_EQ(cudaStreamBeginCapture(one.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  letters.append(one, 'a');
  ASSERT_EQ(cudaEventRecord(fork.get(), one.get()), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(two.get(), fork.get(), 0), cudaSuccess);
  letters.append(two, 'X');
  ASSERT_EQ(cudaEventRecord(join.get(), two.get()), cudaSuccess);
  letters.append(one, 'b');
  letters.append(one, 'c');
  ASSERT_EQ(cudaStreamWaitEvent(one.get(), join.get(), 0), cudaSuccess);
  letters.append(one, 'd');
  Graph graph;
  ASSERT_EQ(end_capture(one, graph), cudaSuccess);
  wait_for(one);
  EXPECT_EQ(letters.text, "") << "a capture runs nothing";
  const GraphExec exec = instantiate(graph);
  std::set<std::string> seen;
  for (int i = 0; i < kTries; ++i) {
    letters.text.clear();
    ASSERT_EQ(cudaGraphLaunch(exec.get(), one.get()), cudaSuccess);
    letters.append(one, '.');
    wait_for(one);
    seen.insert(letters.text);
  }
  EXPECT_EQ(seen, (std::set<std::string>{"aXbcd.", "abXcd.", "abcXd."}));
}

TEST(StandInGraphs, AreRefusedWhenAStreamIsNotJoined) {
  const Stream one = make_stream(), two = make_stream();
  Letters letters;
  const Event fork = make_event();
  ASSERT_EQ(cudaStreamBeginCapture(one.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  letters.append(one, 'a');
  ASSERT_EQ(cudaEventRecord(fork.get(), one.get()), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(two.get(), fork.get(), 0), cudaSuccess);
  letters.append(two, 'X');
  Graph graph;
  EXPECT_EQ(end_capture(one, graph), cudaErrorStreamCaptureUnjoined);
  EXPECT_FALSE(graph);
  static_cast<void>(cudaGetLastError());
}

TEST(StandInGraphs, AreRefusedAfterCallsThatACaptureDoesNotBear) {
  const Stream stream = make_stream();
  const Event outside = make_event();
  ASSERT_EQ(cudaEventRecord(outside.get(), stream.get()), cudaSuccess);
  wait_for(stream);
  void* memory = nullptr;
  const std::vector<std::function<cudaError_t()>> calls{
      [&] { return cudaStreamSynchronize(stream.get()); },
      [&] { return cudaEventQuery(outside.get()); },
      [&] { return cudaMalloc(&memory, 1); },
      [&] { return cudaHostAlloc(&memory, 1, cudaHostAllocDefault); },
      [&] { return cudaStreamWaitEvent(stream.get(), outside.get(), 0); },
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    ASSERT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_NE(calls[i](), cudaSuccess) << i;
    Graph graph;
    EXPECT_NE(end_capture(stream, graph), cudaSuccess) << i;
    static_cast<void>(cudaGetLastError());
  }
  ASSERT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), cudaSuccess);
  Graph graph;
  EXPECT_NE(end_capture(stream, graph), cudaSuccess) << "a capture of all threads";
  static_cast<void>(cudaGetLastError());
}

TEST(StandInMemory, BeginsAsNanAndIsGivenBackUnharmed) {
  const Stream stream = make_stream();
  auto* const values = allocate<unsigned char>(1000);
  std::vector<unsigned char> found(1000);
  ASSERT_EQ(cudaMemcpyAsync(found.data(), values, 1000, cudaMemcpyDefault, stream.get()), cudaSuccess);
  EXPECT_EQ(found, std::vector<unsigned char>(1000, 0xFF));  // to pageable memory: done
  EXPECT_EQ(cudaFree(values), cudaSuccess);
}

TEST(StandInMemory, MayBeFilledFromPageableMemoryLaterButWithWhatWasThereThen) {
  const Stream stream = make_stream();
  auto* const value = allocate<int>(1);
  int late = 0;
  for (int i = 0; i < kTries; ++i) {
    std::atomic<bool> done = false;
    start(stream.get(), "before", [&] {
      usleep(100);
      done = true;
    });
    int source = i;
    ASSERT_EQ(cudaMemcpyAsync(value, &source, sizeof source, cudaMemcpyDefault, stream.get()), cudaSuccess);
    late += done ? 0 : 1;
    source = -1;
    int found = 0;
    ASSERT_EQ(cudaMemcpyAsync(&found, value, sizeof found, cudaMemcpyDefault, stream.get()), cudaSuccess);
    EXPECT_EQ(found, i);
  }
  EXPECT_GT(late, 0);
  EXPECT_EQ(cudaFree(value), cudaSuccess);
}

/// Death tests run in a new process: a fork has none of the GPU's threads.
class StandInDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(StandInDeathTest, FaultsWhenTheHostTouchesMemoryOfTheGpu) {
  EXPECT_DEATH(
      {
        const Stream stream = make_stream();
        auto* const touched = allocate<int>(1);
        static_cast<void>(cudaMemsetAsync(touched, 0, sizeof(int), stream.get()));
        wait_for(stream);
        usleep(100'000);
        *static_cast<volatile int*>(touched) = 1;
      },
      "");
}

TEST_F(StandInDeathTest, NoticesAWriteAfterOrBeforeAnArrayWhenItIsFreed) {
  for (const std::ptrdiff_t place : {-1, 100}) {
    EXPECT_DEATH(
        {
          const Stream stream = make_stream();
          auto* const bytes = allocate<unsigned char>(100);
          start(stream.get(), "stray", [=] { bytes[place] = 0; });
          static_cast<void>(cudaFree(bytes));
        },
        "before or after an array")
        << place;
  }
}

TEST_F(StandInDeathTest, FaultsFarBeyondAnArrayAndInOneThatWasFreed) {
  const auto write = [](bool freed) {
    const Stream stream = make_stream();
    auto* const bytes = allocate<unsigned char>(256);
    if (freed) static_cast<void>(cudaFree(bytes));
    start(stream.get(), "stray", [=] { bytes[freed ? 0 : 256] = 0; });
    wait_for(stream);
  };
  EXPECT_DEATH(write(false), "");
  EXPECT_DEATH(write(true), "");
}

TEST_F(StandInDeathTest, RefusesToTakePinnedMemoryBackWhileWorkIsUnderWay) {
  EXPECT_DEATH(
      {
        const Stream stream = make_stream();
        void* memory = nullptr;
        static_cast<void>(cudaHostAlloc(&memory, 4, cudaHostAllocDefault));
        start(stream.get(), "slow", [] { usleep(100'000); });
        static_cast<void>(cudaFreeHost(memory));
      },
      "pinned memory");
}

TEST_F(StandInDeathTest, RunsKernelsOnlyOnStreamsOfTheirOwn) {
  start(nullptr, "legacy", [] {});
  EXPECT_NE(cudaGetLastError(), cudaSuccess);
}

TEST_F(StandInDeathTest, NoticesAWorkspaceThatTwoKernelsHaveAtOnce) {
  const auto share = [](bool shares) {
    const Stream one = make_stream(), two = make_stream();
    auto *const a = allocate<char>(64), *const b = allocate<char>(64);
    for (int i = 0; i < kTries; ++i) {
      start(one.get(), "first", a, 64, [] {});
      start(two.get(), "second", shares ? a : b, 64, [] {});
    }
    static_cast<void>(cudaStreamSynchronize(one.get()));
    std::exit(cudaStreamSynchronize(two.get()) == cudaSuccess ? 0 : 1);
  };
  EXPECT_EXIT(share(false), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(share(true), testing::ExitedWithCode(1), "something else wrote to its workspace");
}

/// Runs a kernel of `blocks` x `threads` and waits for it.
void run(dim3 blocks, dim3 threads, const std::function<void()>& thread) {
  const Stream stream = make_stream();
  start(stream.get(), "kernel", [=] {
    std::vector<std::uint64_t> order = draw_blocks(blocks);
    run_blocks("kernel", blocks, threads, 256, order, order.size(), thread);
  });
  wait_for(stream);
}

TEST(StandInBlocks, RunEachThreadOnceInNoFixedOrder) {
  std::set<std::vector<unsigned>> orders, of_threads;
  for (int i = 0; i < 10; ++i) {
    std::vector<unsigned> order;
    run({3, 2}, {4, 2}, [&] {
      order.push_back(((blockIdx.y * gridDim.x + blockIdx.x) * blockDim.y + threadIdx.y) * blockDim.x +
                      threadIdx.x);
    });
    orders.insert(order);
    std::vector<unsigned> first(order.begin(), order.begin() + 8);  // one block
    for (unsigned& thread : first) thread %= 8;
    of_threads.insert(first);
    std::sort(order.begin(), order.end());
    std::vector<unsigned> all(48);
    std::iota(all.begin(), all.end(), 0u);
    EXPECT_EQ(order, all);
  }
  EXPECT_GT(orders.size(), 1u);
  EXPECT_GT(of_threads.size(), 1u);
}

TEST(StandInBlocks, LetNoThreadPassABarrierBeforeAllAreThere) {
  int arrived = 0;
  bool good = true;
  run(2, 64, [&] {
    if (threadIdx.x >= 60) return;  // threads that have ended are not waited for
    ++arrived;
    barrier(1);
    good = good && arrived % 60 == 0;
    barrier(2);
  });
  EXPECT_TRUE(good);
  EXPECT_EQ(arrived, 120);
}

TEST(StandInBlocks, ResumeEachThreadAsItWasInNoFixedOrder) {
  const auto index = [] { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; };
  std::vector<unsigned> all(64);
  std::iota(all.begin(), all.end(), 0u);
  std::set<std::vector<unsigned>> orders;
  for (int i = 0; i < 5; ++i) {
    std::vector<std::vector<unsigned>> found(4);
    run(1, {8, 4, 2}, [&] {
      const unsigned own = index();
      double sum = own;
      for (int line = 1; line <= 4; ++line) {
        barrier(line);
        EXPECT_EQ(index(), own);
        sum += line;
        found[static_cast<std::size_t>(line - 1)].push_back(own);
      }
      EXPECT_EQ(sum, own + 10.0);
    });
    for (std::vector<unsigned>& order : found) {
      orders.insert(order);
      std::sort(order.begin(), order.end());
      EXPECT_EQ(order, all);
    }
  }
  EXPECT_EQ(orders.size(), 20u);  // each barrier draws one of 64! orders
}

TEST_F(StandInDeathTest, RefusesBarriersThatNotAllThreadsReachAndGridsThatNoGpuTakes) {
  const auto fails = [](dim3 blocks, dim3 threads, const std::function<void()>& thread) {
    const Stream stream = make_stream();
    start(stream.get(), "kernel", [=] {
      std::vector<std::uint64_t> order = draw_blocks(blocks);
      run_blocks("kernel", blocks, threads, 256, order, order.size(), thread);
    });
    std::_Exit(cudaStreamSynchronize(stream.get()) == cudaSuccess ? 0 : 1);
  };
  EXPECT_EXIT(fails(1, 2, [] { barrier(threadIdx.x == 0 ? 1 : 2); }), testing::ExitedWithCode(1),
              "different barriers");
  EXPECT_EXIT(fails(1, 1025, [] {}), testing::ExitedWithCode(1), "no GPU takes");
  EXPECT_EXIT(fails(0, 1, [] {}), testing::ExitedWithCode(1), "no GPU takes");
}

}  // namespace
}  // namespace cifar_mpi::stand_in
