#include "cpu/shared_pieces.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <iostream>
#include <stdexcept>
#include <thread>

#include "cifar_mpi/cpu/backend.hpp"
#include "cpu/task_runs.hpp"
#include "support/layer_check.hpp"

/// Pieces of the batch that threads compute at the same time.
namespace cifar_mpi::cpu {
namespace {

using engine::Precision;
using model::Conv2d;
using test::LayerCase;
using test::SourceFormat;
using testing::Threads;

TEST(SharedPieces, HaveAFewSamplesAndKeepAllThreadsBusy) {
  EXPECT_EQ(samples_per_shared_piece(128, 1), 0);
  EXPECT_EQ(samples_per_shared_piece(128, 2), 16);
  EXPECT_EQ(samples_per_shared_piece(512, 2), 64);
  EXPECT_EQ(samples_per_shared_piece(128, 3), 16);
  EXPECT_EQ(samples_per_shared_piece(128, 5), 4);
  EXPECT_EQ(samples_per_shared_piece(128, 32), 4);
  EXPECT_EQ(samples_per_shared_piece(20, 2), 10);
  EXPECT_EQ(samples_per_shared_piece(44, 3), 4);  // eleven pieces
}

TEST(SharedPieces, DoNotExistWhereThreadsWouldWaitOrHaveTooFewSamples) {
  EXPECT_EQ(samples_per_shared_piece(127, 2), 0);
  EXPECT_EQ(samples_per_shared_piece(20, 3), 0);
  EXPECT_EQ(samples_per_shared_piece(6, 2), 0);
  EXPECT_EQ(samples_per_shared_piece(128, 48), 0);
}

std::vector<LayerCase> cases(int batch) {
  return {{batch, {8, 7, 16}, {Conv2d{"c", 32, 3}, model::Relu{}}, {.library_units = 4.0}},
          {batch, {6, 5, 20}, {Conv2d{"c", 17, 5, 2}}},
          {batch, {5, 6, 32}, {Conv2d{"c", 16, 3, 1, false}}},
          {batch, {8, 7, 3}, {Conv2d{"c", 16, 3}, model::Relu{}}, {.first = true}}};
}

class SharedPiecesOfLayers : public ::testing::TestWithParam<int> {};

/// The sums of the lattice are exact, so a piece that is lost or added twice shows in any order.
TEST_P(SharedPiecesOfLayers, EqualTheReference) {
  if (!has_bf16()) std::cout << "[  LOUD    ] this cpu has no bf16 arithmetic: bf16 is NOT tested here\n";
  const int threads = GetParam();
  test::LayerBackend backend(make_backend({threads, false}));
  for (const int batch : {20, 36, 44, 23}) {
    for (const LayerCase& c : cases(batch)) {
      for (const Precision precision : {Precision::fp32, Precision::bf16}) {
        if (precision == Precision::bf16 && !has_bf16()) continue;
        for (const SourceFormat format : {SourceFormat::images, SourceFormat::of_3x3}) {
          if (format == SourceFormat::of_3x3 && c.in.channels % 8 != 0) continue;  // no blocks
          SCOPED_TRACE(concat(c.text(), ", ", to_string(precision), ", format ", static_cast<int>(format)));
          backend.format = format;
          expect_reference(backend, c, precision, false);
          const std::string plan = test::LayerRun(backend, c, precision).tower->plan_text();
          const int samples = samples_per_shared_piece(batch, threads);
          const std::string remark = concat(", ", samples, " samples on each thread\n");
          EXPECT_EQ(plan.find(remark) != std::string::npos, samples != 0) << plan;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(On, SharedPiecesOfLayers, ::testing::Values(1, 2, 3, 5),
                         [](const auto& threads) { return concat(threads.param, "Threads"); });

/// Of noise, whose sums depend on their order. 96 samples are six pieces of 16 on one to three threads.
TEST(SharedPieces, GiveTheSameBitsInEachRunAndOnAnyNumberOfThreads) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    if (precision == Precision::bf16 && !has_bf16()) continue;
    LayerCase c{96, {8, 7, 16}, {Conv2d{"c", 32, 3}, model::Relu{}}};
    c.terms.values = test::Values::noise;
    std::vector<reference::Array> first;
    for (const int threads : {1, 2, 3, 2, 3}) {
      test::LayerBackend backend(make_backend({threads, false}));
      backend.format = SourceFormat::of_3x3;
      test::LayerRun run(backend, c, precision);
      run.run(run.training());
      std::vector<reference::Array> found{run.y(), run.grad_x()};
      for (const reference::Array& gradient : run.gradients()) found.push_back(gradient);
      if (first.empty()) first = found;
      EXPECT_EQ(found, first) << to_string(precision) << ", " << threads << " threads";
    }
  }
}

/// Reorders of 8 samples in two pieces.
class SharedReorder {
 public:
  SharedReorder() {
    const OneThread one;
    kernel_ = make_reorder(dnnl_, piece_of(planes_, 4), piece_of(pixels_, 4));
  }
  engine::Task task() {
    std::vector<std::vector<Operand>> pieces;
    for (std::size_t p = 0; p < 2; ++p) {
      pieces.push_back({reads(DNNL_ARG_FROM, piece_of(planes_, 4), from.data() + p * 4 * kValues),
                        writes(DNNL_ARG_TO, piece_of(pixels_, 4), to.data() + p * 4 * kValues)});
    }
    scratch_.resize(shared_scratch_bytes(kernel_, 2));
    return shared_kernel_task("reorder", dnnl_, kernel_, pieces, 2, scratch_.data());
  }

  static constexpr std::size_t kValues = 2 * 3 * 5;
  std::vector<float> from = testing::noise_of(8 * kValues, 1), to = std::vector<float>(8 * kValues);

 private:
  Dnnl dnnl_;
  Desc planes_ = activations(8, {2, 3, 5}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::nchw);
  Desc pixels_ = activations(8, {2, 3, 5}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::nhwc);
  Kernel kernel_;
  std::vector<std::byte> scratch_;
};

TEST(SharedPieces, MakeProgressOnTheCallingThreadAlone) {
  struct CallerLane : engine::Lane {
    void make_progress() override {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      ++count;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the other thread takes the next piece
    }
    std::thread::id caller = std::this_thread::get_id();
    int count = 0;
  };
  const Threads threads(2);
  SharedReorder reorder;
  const engine::Task task = reorder.task();
  CallerLane lane;
  for (int run = 0; run < 50; ++run) task.start(lane);
  EXPECT_GE(lane.count, 1);
  for (std::size_t i = 0; i < reorder.to.size(); ++i) {
    const std::size_t n = i / SharedReorder::kValues, pixel = i / 5 % 6, channel = i % 5;
    EXPECT_EQ(reorder.to[i], reorder.from[n * SharedReorder::kValues + channel * 6 + pixel]);
  }
}

TEST(SharedPieces, ReportAnErrorAfterTheLoopAndLeaveTheTeamUsable) {
  struct BrokenLane : engine::Lane {
    void make_progress() override { throw std::runtime_error("a rank has died"); }
  };
  SharedReorder reorder;
  const engine::Task task = reorder.task();
  for (const int count : {1, 2}) {
    const Threads threads(count);
    BrokenLane broken;
    int errors = 0;
    for (int run = 0; run < 50; ++run) {
      try {
        task.start(broken);
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "a rank has died");
        ++errors;
      }
    }
    EXPECT_GE(errors, 1);
    engine::Lane lane;
    EXPECT_NO_THROW(task.start(lane));
  }
}

}  // namespace
}  // namespace cifar_mpi::cpu
