#include "cifar_mpi/data/fingerprint.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "support/temp_dir.hpp"

namespace cifar_mpi::data {
namespace {

constexpr Extent kImage{5, 4, 3};
constexpr std::size_t kImageBytes = 60;
constexpr std::uint64_t kCount = 103;

std::pair<Samples, Samples> make_samples() {
  std::pair<Samples, Samples> both;
  make_synthetic(kImage, 3, kCount, 1, both.first, both.second);
  return both;
}

Samples slice_of(const Samples& all, std::uint64_t begin, std::uint64_t end) {
  const auto at = [](std::uint64_t i) { return static_cast<std::ptrdiff_t>(i); };
  return {{all.images.begin() + at(begin * kImageBytes), all.images.begin() + at(end * kImageBytes)},
          {all.labels.begin() + at(begin), all.labels.begin() + at(end)}};
}

std::uint64_t fingerprint(const Samples& samples, std::uint64_t first) {
  return data::fingerprint(samples.images, samples.labels, first);
}

TEST(Fingerprint, AddsUpToTheSameOverAnyPartition) {
  const Samples all = make_samples().first;
  const std::uint64_t whole = fingerprint(all, 0);
  for (const std::uint64_t ranks : {2u, 3u, 4u, 7u, 103u}) {
    std::uint64_t sum = 0;
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      const Shard shard = shard_of(kCount, rank, ranks);
      sum += fingerprint(slice_of(all, shard.first, shard.first + shard.count), shard.first);
    }
    EXPECT_EQ(sum, whole) << ranks;
  }
  EXPECT_EQ(fingerprint({}, 5), 0u);
}

TEST(Fingerprint, ChangesWithAnyByteLabelOrPlace) {
  const Samples all = make_samples().first;
  const std::uint64_t whole = fingerprint(all, 0);
  EXPECT_NE(fingerprint(all, 1), whole);
  for (const std::uint64_t i : {std::uint64_t{0}, std::uint64_t{50}, kCount - 1}) {
    for (const std::size_t byte : {std::size_t{0}, std::size_t{31}, kImageBytes - 1}) {
      Samples other = all;
      other.images[i * kImageBytes + byte] ^= 1;
      EXPECT_NE(fingerprint(other, 0), whole) << "image " << i << ", byte " << byte;
    }
    Samples other = all;
    other.labels[i] ^= 1;
    EXPECT_NE(fingerprint(other, 0), whole) << "label " << i;
  }
  // Two samples change places, image and label together; then only their labels.
  Samples swapped = all;
  swapped.labels[3] = 0;
  swapped.labels[4] = 1;
  const std::uint64_t before = fingerprint(swapped, 0);
  std::swap(swapped.labels[3], swapped.labels[4]);
  EXPECT_NE(fingerprint(swapped, 0), before);
  const auto at = swapped.images.begin();
  std::swap_ranges(at + 3 * kImageBytes, at + 4 * kImageBytes, at + 4 * kImageBytes);
  EXPECT_NE(fingerprint(swapped, 0), before);
}

TEST(Summarize, NamesWhatDiffersBetweenTwoFiles) {
  const TempDir dir;
  const auto summary = [&](const std::function<void(DatasetInfo&, Samples&, Samples&)>& change) {
    auto [train, test] = make_samples();
    DatasetInfo info{kImage, {"cat", "dog", "emu"}, "a test", 0, 0};
    change(info, train, test);
    write_dataset(dir / "data.h5", info, train, test);
    return summarize(DatasetFile(dir / "data.h5"));
  };
  const auto original = summary([](auto&, auto&, auto&) {});
  EXPECT_EQ(summary([](auto& info, auto&, auto&) { info.source = "elsewhere"; }), original);

  const auto expect_changed = [&](const std::string& item, const auto& change) {
    const auto changed = summary(change);
    ASSERT_EQ(changed.size(), original.size());
    const auto [was, is] = std::mismatch(original.begin(), original.end(), changed.begin());
    ASSERT_NE(was, original.end()) << item;
    EXPECT_EQ(was->first, item);
    EXPECT_EQ(is->first, item);
    EXPECT_NE(was->second, is->second);
  };
  expect_changed("the number of training images",
                 [](auto&, Samples& train, auto&) { train = slice_of(train, 0, kCount - 1); });
  expect_changed("the number of test images",
                 [](auto&, auto&, Samples& test) { test = slice_of(test, 0, test.labels.size() - 1); });
  expect_changed("the shape of the images", [](auto& info, auto&, auto&) { info.image = {4, 5, 3}; });
  expect_changed("the name of class 2", [](auto& info, auto&, auto&) { info.label_names[2] = "eel"; });
  expect_changed("the hash of the training labels",
                 [](auto&, Samples& train, auto&) { train.labels[101] = train.labels[101] == 0; });
  expect_changed("the hash of the test labels",
                 [](auto&, auto&, Samples& test) { test.labels[7] = test.labels[7] == 0; });
  for (const std::size_t image : {std::size_t{0}, std::size_t{kCount - 1}}) {
    expect_changed("the hash of some training images",
                   [&](auto&, Samples& train, auto&) { train.images[image * kImageBytes + 7] ^= 1; });
  }
  expect_changed("the hash of some test images", [](auto&, auto&, Samples& test) { test.images[59] ^= 1; });
}

TEST(Summarize, ReadsAFileOfOneImage) {
  const TempDir dir;
  Samples one;
  one.images.assign(kImageBytes, 7);
  one.labels = {1};
  write_dataset(dir / "data.h5", {kImage, {"cat", "dog"}, "a test", 0, 0}, one, one);
  EXPECT_EQ(summarize(DatasetFile(dir / "data.h5")).size(), 10u);
}

}  // namespace
}  // namespace cifar_mpi::data
