#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/optim/optimizer.hpp"
#include "cpu/optimizer.hpp"
#include "cpu/task_runs.hpp"
#include "reference/reference.hpp"

namespace cifar_mpi::cpu {
namespace {

using testing::kFp32Unit;

/// One matrix in a span in which its elements lie in an order of their own, with padding.
struct OneMatrix {
  OneMatrix(std::int64_t rest, std::int64_t out) {
    const auto values = static_cast<std::size_t>(rest * out);
    matrix = {"m", 32, (values + 31) / 16 * 16, rest, out, nullptr};
    for (std::size_t i = 0; i < values; ++i)  // a permutation: 7 divides none of the sizes
      places.push_back(static_cast<std::uint32_t>(i * 7 % values) + 5);
    matrix.places = places.data();
    weights = testing::noise_of(matrix.begin + matrix.floats, 1);
    grads = testing::noise_of(weights.size(), 2);
    momenta = testing::noise_of(weights.size(), 3);
    moves.assign(weights.size(), 0.0f);
    control.assign(16, 0.0f);
    update.params = weights.data();
    update.grads = grads.data();
    update.control = control.data();
    update.step = &step;
    update.states[0] = momenta.data();
    update.moves = moves.data();
    update.optimizer = {.kind = optim::OptimizerKind::muon, .muon_momentum = 0.75, .normalize_every = 2};
  }
  void run_audited() {
    engine::Arena arena(allocate_host);
    engine::StepProgram program("one matrix");
    for (engine::Task& task : plan_matrix(update, matrix, arena))
      program.run(engine::kCompute, std::move(task));
    program.finalize();
    std::vector<engine::Bytes> regions = arena.regions();
    for (const auto* block : {&weights, &grads, &momenta, &moves, &control})
      regions.push_back(testing::region(*block));
    regions.push_back(testing::region(places));
    engine::make_host_runner(std::move(program), engine::RunnerKind::audit, engine::WhileWaiting::spin,
                             regions)
        ->replay();
  }
  double at(const std::vector<float>& block, std::size_t i) const {
    return static_cast<double>(block[matrix.begin + places[i]]);
  }

  engine::Matrix matrix;
  engine::UpdateBinding update;
  std::vector<std::uint32_t> places;
  std::vector<float> weights, grads, momenta, moves, control;
  std::uint64_t step = 4;
};

TEST(MatrixMove, IsThatOfTheDoubleReferenceForWideTallAndLargeMatrices) {
  const double norm = 2.0;
  for (const auto& [rest, out] : {std::pair{45, 12}, {12, 45}, {16, 16}, {900, 11}, {1, 5}}) {
    SCOPED_TRACE(std::to_string(rest) + " x " + std::to_string(out));
    for (const bool clips : {false, true}) {
      OneMatrix m(rest, out);
      if (clips) m.update.clip_norm = 0.5, m.update.gradient_norm = &norm;
      const OneMatrix before = m;
      m.run_audited();
      std::vector<double> direction;
      double squares = 0.0;
      for (std::size_t i = 0; i < m.places.size(); ++i) {
        const double grad = (clips ? 0.25 : 1.0) * before.at(before.grads, i);
        const double gathered = 0.75 * before.at(before.momenta, i) + grad;
        EXPECT_NEAR(m.at(m.momenta, i), gathered, 4 * kFp32Unit);
        direction.push_back(grad + 0.75 * gathered);
      }
      for (std::size_t i = m.matrix.begin; i < m.weights.size(); ++i)
        squares += static_cast<double>(before.weights[i]) * static_cast<double>(before.weights[i]);
      const std::vector<double> wanted =
          reference::muon_move(direction, static_cast<std::size_t>(rest), static_cast<std::size_t>(out));
      // Each of the three iterations multiplies errors by at most 3.45. Sums of k terms add errors of
      // sqrt(k) units if no partial sum is above 1.
      const double tolerance = 3.45 * 3.45 * 3.45 * 4.0 * std::sqrt(static_cast<double>(rest)) * kFp32Unit;
      for (std::size_t i = 0; i < m.places.size(); ++i) {
        ASSERT_NEAR(m.at(m.moves, i), wanted[i], tolerance * std::max(1.0, std::sqrt(1.0 * out / rest))) << i;
        ASSERT_NEAR(m.at(m.weights, i), before.at(before.weights, i) * std::sqrt(out / squares),
                    8 * kFp32Unit * std::sqrt(out));
      }
    }
  }
}

/// Columns of the discrete cosine transform are orthonormal, so the singular values are the columns' lengths.
TEST(MatrixMove, DrawsSingularValuesNearOne) {
  constexpr std::size_t kRest = 40, kOut = 8;
  OneMatrix m(kRest, kOut);
  std::ranges::fill(m.momenta, 0.0f);
  for (std::size_t r = 0; r < kRest; ++r) {
    for (std::size_t c = 0; c < kOut; ++c) {
      const double angle =
          3.14159265358979 * (static_cast<double>(r) + 0.5) * static_cast<double>(c + 1) / kRest;
      m.grads[m.matrix.begin + m.places[r * kOut + c]] =
          static_cast<float>(static_cast<double>(c + 1) * std::cos(angle));
    }
  }
  m.run_audited();
  for (std::size_t a = 0; a < kOut; ++a) {
    for (std::size_t b = a; b < kOut; ++b) {
      double dot = 0.0;
      for (std::size_t r = 0; r < kRest; ++r)
        dot += m.at(m.moves, r * kOut + a) * m.at(m.moves, r * kOut + b);
      if (a == b) {  // from 0.07 to 0.56 of the norm; optim::NewtonSchulz has the band
        EXPECT_GE(std::sqrt(dot), 0.68) << a;
        EXPECT_LE(std::sqrt(dot), 1.21) << a;
      } else {
        EXPECT_NEAR(dot, 0.0, 41.0 * 8.0 * std::sqrt(kRest) * kFp32Unit) << a << ' ' << b;
      }
    }
  }
}

TEST(MatrixMove, KeepsTheMomentumAndTheWeightsIfTheStepDoesNotApply) {
  OneMatrix m(45, 12);
  m.control[engine::ControlLayout::loss_sum] = std::numeric_limits<float>::quiet_NaN();
  const OneMatrix before = m;
  m.run_audited();
  EXPECT_EQ(m.momenta, before.momenta);
  EXPECT_EQ(m.weights, before.weights);
  m.update.average_steps = 0;  // a local step
  m.run_audited();
  EXPECT_NE(m.momenta, before.momenta);
  EXPECT_NE(m.weights, before.weights);
}

TEST(MatrixMove, NormalizesInTheStepsThatItIsAskedTo) {
  OneMatrix m(45, 12);
  const std::vector<float> before = m.weights;
  m.step = 5;
  m.run_audited();
  EXPECT_EQ(m.weights, before);
}

}  // namespace
}  // namespace cifar_mpi::cpu
