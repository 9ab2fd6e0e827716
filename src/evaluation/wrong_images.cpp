#include "evaluation/wrong_images.hpp"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "cifar_mpi/base/hash.hpp"

namespace cifar_mpi::evaluation {
namespace {

struct Wrong {
  std::uint64_t index = 0;
  std::uint8_t label = 0;
  std::uint8_t prediction = 0;
};

bool comes_before(const Wrong& a, const Wrong& b) {
  constexpr std::uint64_t kSalt = 0x77726f6e67;
  return std::pair(hash_pair(a.index, kSalt), a.index) < std::pair(hash_pair(b.index, kSalt), b.index);
}

void keep_first(std::vector<Wrong>& list) {
  std::ranges::sort(list, comes_before);
  list.resize(std::min(list.size(), run::kMostWrongImages));
}

/// The images of all ranks, on all ranks: each rank fills its own part of one array, which is then summed.
std::vector<Wrong> choose(const comm::World& world, const Predictions& mine) {
  std::vector<Wrong> own;
  for (std::size_t i = 0; i < mine.labels.size(); ++i) {
    if (mine.labels[i] != mine.predictions[i])
      own.push_back({mine.first + i, mine.labels[i], mine.predictions[i]});
  }
  keep_first(own);
  constexpr std::size_t kNumbers = 3;
  const std::size_t room = run::kMostWrongImages * kNumbers;
  std::vector<double> all(room * static_cast<std::size_t>(world.size()));
  double* at = all.data() + room * static_cast<std::size_t>(world.rank());
  for (const Wrong& wrong : own) {
    *at++ = static_cast<double>(wrong.index + 1);  // 0: an empty place
    *at++ = wrong.label;
    *at++ = wrong.prediction;
  }
  world.sum(all);
  std::vector<Wrong> chosen;
  for (std::size_t i = 0; i < all.size(); i += kNumbers) {
    if (all[i] > 0.0) {
      chosen.push_back({static_cast<std::uint64_t>(all[i]) - 1, static_cast<std::uint8_t>(all[i + 1]),
                        static_cast<std::uint8_t>(all[i + 2])});
    }
  }
  keep_first(chosen);
  std::ranges::sort(chosen, [](const Wrong& a, const Wrong& b) {
    return std::tuple(a.label, a.prediction, a.index) < std::tuple(b.label, b.prediction, b.index);
  });
  return chosen;
}

}  // namespace

std::vector<std::uint8_t> shrink(const std::vector<std::uint8_t>& pixels, const Extent& image, int rows,
                                 int columns) {
  const int height = image.height / rows, width = image.width / columns, area = rows * columns;
  std::vector<std::uint8_t> small;
  small.reserve(static_cast<std::size_t>(height * width * image.channels));
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < image.channels; ++c) {
        int sum = area / 2;
        for (int i = 0; i < area; ++i) {
          const int row = y * rows + i / columns, column = x * columns + i % columns;
          sum += pixels[static_cast<std::size_t>((row * image.width + column) * image.channels + c)];
        }
        small.push_back(static_cast<std::uint8_t>(sum / area));
      }
    }
  }
  return small;
}

void gather_wrong_images(const comm::World& world, const Predictions& mine, const Extent& image,
                         const std::function<std::vector<std::uint8_t>(std::uint64_t index)>& pixels,
                         run::EvaluationFile& file) {
  const auto share = [](int side) { return (side + run::kMostWrongPixels - 1) / run::kMostWrongPixels; };
  const int rows = share(image.height), columns = share(image.width);
  file.image = {image.height / rows, image.width / columns, image.channels};
  const std::vector<Wrong> chosen = choose(world, mine);
  const auto size = static_cast<std::size_t>(file.image.count());
  std::vector<double> all(chosen.size() * size);
  file.labels.clear();
  file.predictions.clear();
  file.indices.clear();
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const Wrong& wrong = chosen[i];
    file.labels.push_back(wrong.label);
    file.predictions.push_back(wrong.prediction);
    file.indices.push_back(wrong.index);
    if (wrong.index < mine.first || wrong.index - mine.first >= mine.labels.size()) continue;
    const std::vector<std::uint8_t> small = shrink(pixels(wrong.index), image, rows, columns);
    std::ranges::copy(small, all.begin() + static_cast<std::ptrdiff_t>(i * size));
  }
  world.sum(all);
  file.images.assign(all.begin(), all.end());
}

run::Mistakes gather_mistakes(const comm::World& world, const Predictions& mine,
                              const std::vector<std::string>& files) {
  struct Mistake {
    std::uint64_t index;
    float probability;
    std::uint16_t label, prediction;
  };
  static_assert(sizeof(Mistake) == 16, "padding would be sent uninitialized");
  std::vector<Mistake> own;
  for (std::size_t i = 0; i < mine.labels.size(); ++i) {
    if (mine.labels[i] != mine.predictions[i])
      own.push_back({mine.first + i, mine.probabilities[i], mine.labels[i], mine.predictions[i]});
  }
  run::Mistakes all;
  for (const std::vector<std::byte>& part : world.collect(std::as_bytes(std::span(own)))) {
    std::vector<Mistake> theirs(part.size() / sizeof(Mistake));
    std::memcpy(theirs.data(), part.data(), theirs.size() * sizeof(Mistake));
    for (const Mistake& mistake : theirs) {
      all.indices.push_back(mistake.index);
      all.labels.push_back(static_cast<std::uint8_t>(mistake.label));
      all.predictions.push_back(static_cast<std::uint8_t>(mistake.prediction));
      all.probabilities.push_back(mistake.probability);
      if (!files.empty()) all.files.push_back(files[mistake.index]);
    }
  }
  return all;
}

}  // namespace cifar_mpi::evaluation
