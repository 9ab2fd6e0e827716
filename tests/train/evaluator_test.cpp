#include "cifar_mpi/train/evaluator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "cifar_mpi/cpu/backend.hpp"
#include "cifar_mpi/data/fingerprint.hpp"
#include "support/temp_dir.hpp"
#include "train/run_fixture.hpp"

namespace cifar_mpi::train {
namespace {

/// More samples than are read at once, tiny ones.
constexpr std::uint64_t kCount = 9000;
constexpr std::uint64_t kImageBytes = 6;

data::Samples make_samples() {
  data::Samples samples, test;
  data::make_synthetic({2, 3, 1}, 4, kCount, 1, samples, test);
  return samples;
}

TEST(ResidentData, HoldsAndFingerprintsWhatItIsAskedTo) {
  const TempDir dir;
  const data::Samples all = make_samples();
  data::DatasetInfo info;
  info.image = {2, 3, 1};
  info.label_names = {"a", "b", "c", "d"};
  data::write_dataset(dir / "data.h5", info, all, all);
  const data::DatasetFile file(dir / "data.h5");
  const auto backend = cpu::make_backend({});
  const data::Shard part{100, 8800};
  const auto wanted = [&](std::uint64_t first, std::uint64_t count) {
    return data::fingerprint(std::span(all.images).subspan(first * kImageBytes, count * kImageBytes),
                             std::span(all.labels).subspan(first, count), first);
  };
  const data::Shard cases[] = {{0, kCount}, part, {4000, 4500}, {100, 1}, {8899, 1}, {50, 60}, {0, 0}};
  for (const data::Shard fingerprinted : cases) {
    const ResidentData resident(*backend, file, data::Split::train, part, fingerprinted);
    const std::uint64_t begin = std::max(part.first, fingerprinted.first);
    const std::uint64_t end = std::min(part.first + part.count, fingerprinted.first + fingerprinted.count);
    EXPECT_EQ(resident.fingerprint(), begin < end ? wanted(begin, end - begin) : 0)
        << fingerprinted.first << ", " << fingerprinted.count;
    const engine::DataView view = resident.view();
    ASSERT_EQ(view.count, part.count);
    EXPECT_EQ(std::memcmp(view.images, all.images.data() + 100 * kImageBytes, part.count * kImageBytes), 0);
    EXPECT_EQ(std::memcmp(view.labels, all.labels.data() + 100, part.count), 0);
  }
}

using EvaluatorOfRun = RunTest;

TEST_F(EvaluatorOfRun, ShowsTheNetworkWholeImagesWhereTrainingCutsThem) {
  TrainConfig c = config();
  c.augment = data::Augment::crop;
  const Accuracy whole = start(c)->evaluator->run();
  c.run_dir = path("cut");
  c.cutout = 16;
  const Accuracy same = start(c)->evaluator->run();
  EXPECT_EQ(same.cross_entropy, whole.cross_entropy);
  EXPECT_EQ(same.correct(), whole.correct());
}

}  // namespace
}  // namespace cifar_mpi::train
