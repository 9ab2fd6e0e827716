#include "cifar_mpi/data/fingerprint.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "cifar_mpi/base/hash.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::data {
namespace {

std::uint64_t hash_of(std::span<const std::uint8_t> values) { return hash_bytes(std::as_bytes(values)); }

std::string hex(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

/// The hash of `count` images spread from the first to the last, or of all if there are fewer.
std::uint64_t sampled_images(const DatasetFile& file, Split split, std::uint64_t count) {
  const std::uint64_t total = file.info().count(split);
  const std::uint64_t taken = std::min(count, total);
  std::uint64_t hash = 0;
  for (std::uint64_t i = 0; i < taken; ++i) {
    const std::uint64_t index = taken == 1 ? 0 : i * (total - 1) / (taken - 1);
    hash = hash_pair(hash, hash_of(file.read(split, {index, 1}).images));
  }
  return hash;
}

}  // namespace

std::uint64_t fingerprint(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                          std::uint64_t first) {
  if (labels.empty()) return 0;
  const std::size_t image_bytes = images.size() / labels.size();
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const std::uint64_t image = hash_of(images.subspan(i * image_bytes, image_bytes));
    sum += hash_pair(hash_pair(first + i, labels[i]), image);
  }
  return sum;
}

RunFingerprint summarize(const DatasetFile& file) {
  const DatasetInfo& info = file.info();
  RunFingerprint items{{"the number of training images", std::to_string(info.train_count)},
                       {"the number of test images", std::to_string(info.test_count)},
                       {"the shape of the images", to_string(info.image)},
                       {"the number of classes", std::to_string(info.classes())}};
  for (std::size_t c = 0; c < info.label_names.size(); ++c) {
    items.emplace_back(concat("the name of class ", c), info.label_names[c]);
  }
  items.emplace_back("the hash of the training labels", hex(hash_of(file.read_labels(Split::train))));
  items.emplace_back("the hash of the test labels", hex(hash_of(file.read_labels(Split::test))));
  items.emplace_back("the hash of some training images", hex(sampled_images(file, Split::train, 24)));
  items.emplace_back("the hash of some test images", hex(sampled_images(file, Split::test, 8)));
  return items;
}

}  // namespace cifar_mpi::data
