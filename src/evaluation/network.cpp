#include "cifar_mpi/evaluation/network.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>
#include <string_view>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/model/whitening.hpp"

namespace cifar_mpi::evaluation {

Network make_network(const std::string& model, const data::DatasetInfo& dataset,
                     const data::AugmentSpec& augment, const std::string& path) {
  Network network;
  network.augment = augment;
  const Extent input = network.augment.output();
  if (dataset.image.height < input.height || dataset.image.width < input.width) {
    throw Error(ErrorKind::data, path, ": images are ", to_string(dataset.image),
                ", smaller than the crop of ", input.height, "x", input.width, " that model ", model,
                " takes; give a smaller --input-size, or --augment crop for whole images");
  }
  if (augment.kind == data::Augment::crop && augment.pad >= std::min(input.height, input.width)) {
    throw Error(ErrorKind::usage, "--crop-pad ", augment.pad, " moves a crop of ", input.height, "x",
                input.width, " out of the image; it must be smaller");
  }
  if (augment.kind == data::Augment::crop && augment.cutout >= std::min(input.height, input.width)) {
    throw Error(ErrorKind::usage, "--cutout ", augment.cutout, " blanks whole images of ", input.height, "x",
                input.width, "; it must be smaller");
  }
  network.net = model::make_model(model, input, dataset.classes());
  network.params = model::make_param_table(network.net);
  return network;
}

void find_dataset_moments(data::AugmentSpec& augment, const data::DatasetFile& dataset,
                          const comm::World& world) {
  if (augment.normalize != data::Normalize::dataset) return;
  const auto channels = static_cast<std::size_t>(augment.source.channels);
  double sums[data::kMostChannels] = {}, squares[data::kMostChannels] = {};  // whole numbers below 2^53
  world.together([&] {
    const data::Shard own =
        data::shard_of(dataset.info().train_count, static_cast<std::uint64_t>(world.rank()),
                       static_cast<std::uint64_t>(world.size()));
    constexpr std::uint64_t kSlab = 4096;
    for (std::uint64_t at = 0; at < own.count; at += kSlab) {
      const std::vector<std::uint8_t> images =
          dataset.read(data::Split::train, {own.first + at, std::min(kSlab, own.count - at)}).images;
      for (std::size_t pixel = 0; pixel < images.size(); pixel += channels) {
        for (std::size_t c = 0; c < channels; ++c) {
          const double value = images[pixel + c];
          sums[c] += value;
          squares[c] += value * value;
        }
      }
    }
  });
  const double count =
      static_cast<double>(dataset.info().train_count) * augment.source.height * augment.source.width;
  world.sum(sums);
  world.sum(squares);
  for (std::size_t c = 0; c < channels; ++c) {
    const double mean = sums[c] / count;
    const double variance = squares[c] / count - mean * mean;
    augment.mean[c] = static_cast<float>(mean);
    augment.deviation[c] =
        static_cast<float>(std::sqrt(std::max(variance, 1.0)));  // a channel of one value: 1
  }
}

namespace {

constexpr std::string_view kMean = "dataset mean", kDeviation = "dataset deviation";

/// "125.3 123 113.9": each reads back as the same float.
std::string text_of(std::span<const float> values) { return fmt::format("{}", fmt::join(values, " ")); }

bool read_all(std::string_view text, std::span<float> values) {
  for (float& value : values) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || !std::isfinite(value)) return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  }
  return text.empty();
}

std::span<float> of_channels(float* values, const data::AugmentSpec& augment) {
  return {values, static_cast<std::size_t>(augment.source.channels)};
}

}  // namespace

RunFingerprint moments_of(const data::AugmentSpec& augment) {
  if (augment.normalize != data::Normalize::dataset) return {};
  data::AugmentSpec copy = augment;
  return {{std::string(kMean), text_of(of_channels(copy.mean, augment))},
          {std::string(kDeviation), text_of(of_channels(copy.deviation, augment))}};
}

bool take_moments(data::AugmentSpec& augment, const RunFingerprint& settings, const std::string& path) {
  const std::string* const mean = find_item(settings, kMean);
  const std::string* const deviation = find_item(settings, kDeviation);
  if (augment.normalize != data::Normalize::dataset || mean == nullptr || deviation == nullptr) return false;
  const std::span<float> deviations = of_channels(augment.deviation, augment);
  const bool good = read_all(*mean, of_channels(augment.mean, augment)) && read_all(*deviation, deviations) &&
                    std::ranges::min(deviations) > 0.0f;
  if (good) return true;
  throw Error(ErrorKind::checkpoint, path, " is not of a run of this program: its ", kMean, " \"", *mean,
              "\" and ", kDeviation, " \"", *deviation, "\" are not those of ", augment.source.channels,
              " channels");
}

std::vector<run::NamedTensor> initial_tensors(const model::ParamTable& params, std::uint64_t seed) {
  std::vector<run::NamedTensor> tensors;
  for (const model::Param& param : params) {
    run::NamedTensor tensor = run::zero_tensor(param);
    model::fill_initial(param, seed, tensor.values);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

void whiten(std::vector<run::NamedTensor>& tensors, const Network& network,
            const data::DatasetFile& dataset) {
  constexpr std::uint64_t kImages = 5000, kSlab = 500;
  data::AugmentSpec spec = network.augment;
  spec.kind = data::Augment::none;
  const Extent extent = spec.output();
  std::vector<float> image(static_cast<std::size_t>(extent.count()));
  const auto bytes = static_cast<std::size_t>(spec.source.count());
  for (std::size_t p = 0; p < network.params.size(); ++p) {
    const model::Param& param = network.params[p];
    if (param.init != model::ParamInit::whitening) continue;
    model::PatchMoments moments(static_cast<int>(param.shape[0]), extent.channels);
    const std::uint64_t count = std::min(kImages, dataset.info().train_count);
    for (std::uint64_t at = 0; at < count; at += kSlab) {
      const std::vector<std::uint8_t> images =
          dataset.read(data::Split::train, {at, std::min(kSlab, count - at)}).images;
      for (std::size_t i = 0; i < images.size(); i += bytes) {
        data::augment_reference(spec, data::draw_augment(spec, 0, 0, 0), 0.0,
                                std::span(images).subspan(i, bytes), image);
        moments.add(extent, image);
      }
    }
    moments.whitening_filters(tensors[p].values);
  }
}

std::vector<run::NamedTensor> export_block(engine::Backend& backend, const lower::Tower& tower,
                                           const model::ParamTable& params, const Buffer& block) {
  const engine::ParamLayout& layout = tower.layout();
  std::vector<float> physical(layout.floats);
  backend.copy(physical.data(), block.data(), layout.floats * sizeof(float));
  std::vector<run::NamedTensor> tensors;
  for (std::size_t p = 0; p < params.size(); ++p) {
    const auto& entry = layout.entries[p];
    run::NamedTensor tensor = run::zero_tensor(params[p]);
    tower.to_logical(p, std::span(physical).subspan(entry.offset, entry.floats), tensor.values);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

void import_block(engine::Backend& backend, const lower::Tower& tower,
                  const std::vector<run::NamedTensor>& tensors, const Buffer& block) {
  const engine::ParamLayout& layout = tower.layout();
  std::vector<float> physical(layout.floats);
  for (std::size_t p = 0; p < tensors.size(); ++p) {
    const auto& entry = layout.entries[p];
    tower.from_logical(p, tensors[p].values, std::span(physical).subspan(entry.offset, entry.floats));
  }
  backend.copy(block.data(), physical.data(), layout.floats * sizeof(float));
}

}  // namespace cifar_mpi::evaluation
