#include <cstddef>
#include <span>

#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/input_file.hpp"
#include "cifar_mpi/base/text.hpp"
#include "data/cifar.hpp"

namespace cifar_mpi::data {
namespace {

constexpr std::size_t kPixels = 32 * 32;
constexpr std::size_t kImageBytes = 3 * kPixels;

std::vector<std::uint8_t> read_records(const std::string& path, std::size_t count,
                                       const BinaryRecord& record) {
  const std::size_t size = count * (record.label_bytes + kImageBytes);
  const InputFile file(path);
  if (!file.problem().empty()) throw Error(ErrorKind::data, "cannot read '", path, "': ", file.problem());
  if (const std::uint64_t found = file.size(); found != size) {
    throw Error(ErrorKind::data, "'", path, "' has ", found, " bytes, but ", count, " ", record.set,
                " records have ", size, "; the download is incomplete or another file, fetch it again");
  }
  std::vector<std::uint8_t> content(size);
  if (!file.read(std::as_writable_bytes(std::span(content)))) {
    throw Error(ErrorKind::data, "cannot read '", path, "'; check its permissions and the disk");
  }
  return content;
}

}  // namespace

void read_binary_batch(const std::string& path, std::uint64_t count, Samples& samples,
                       const BinaryRecord& record) {
  const std::vector<std::uint8_t> content = read_records(path, count, record);
  const std::size_t before = samples.labels.size();
  samples.labels.resize(before + count);
  samples.images.resize((before + count) * kImageBytes);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint8_t* const labels = content.data() + i * (record.label_bytes + kImageBytes);
    const std::uint8_t* const planes = labels + record.label_bytes;
    const std::uint8_t label = labels[record.label_at];
    if (label >= record.classes) {
      throw Error(ErrorKind::data, "'", path, "' has label ", int{label}, " in record ", i,
                  ", expected 0 to ", record.classes - 1, "; fetch it again");
    }
    samples.labels[before + i] = label;
    std::uint8_t* image = samples.images.data() + (before + i) * kImageBytes;
    for (std::size_t p = 0; p < kPixels; ++p) {
      for (std::size_t c = 0; c < 3; ++c) image[3 * p + c] = planes[c * kPixels + p];
    }
  }
}

void write_binary_batch(const std::string& path, const Samples& samples, Shard part) {
  constexpr std::size_t kRecordBytes = 1 + kImageBytes;
  std::vector<std::uint8_t> content(part.count * kRecordBytes);
  for (std::size_t i = 0; i < part.count; ++i) {
    std::uint8_t* record = content.data() + i * kRecordBytes;
    record[0] = samples.labels[part.first + i];
    const std::uint8_t* image = samples.images.data() + (part.first + i) * kImageBytes;
    for (std::size_t p = 0; p < kPixels; ++p) {
      for (std::size_t c = 0; c < 3; ++c) record[1 + c * kPixels + p] = image[3 * p + c];
    }
  }
  write_atomically(path, std::as_bytes(std::span(content)));
}

void read_cifar10_binary(const std::string& directory, Samples& train, Samples& test) {
  train = {};
  test = {};
  train.images.reserve(kCifarTrainBatches * kCifarBatch * kImageBytes);
  for (int i = 1; i <= kCifarTrainBatches; ++i) {
    read_binary_batch(train_batch_path(directory, i, ".bin"), kCifarBatch, train);
  }
  read_binary_batch(directory + "/test_batch.bin", kCifarBatch, test);
}

void write_cifar10_binary(const std::string& directory, const Samples& train, const Samples& test) {
  for (const Samples* samples : {&train, &test}) {
    if (samples->images.size() != samples->labels.size() * kImageBytes) {
      throw Error(ErrorKind::data, "CIFAR-10 binary files hold images of ", to_string(kCifarImage), ", but ",
                  samples->labels.size(), " labels come with ", samples->images.size(), " image bytes");
    }
  }
  for (int i = 0; i < kCifarTrainBatches; ++i) {
    write_binary_batch(train_batch_path(directory, i + 1, ".bin"), train,
                       shard_of(train.labels.size(), static_cast<std::uint64_t>(i), kCifarTrainBatches));
  }
  write_binary_batch(directory + "/test_batch.bin", test, {0, test.labels.size()});
}

}  // namespace cifar_mpi::data
