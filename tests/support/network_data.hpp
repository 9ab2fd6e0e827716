#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/base/random.hpp"
#include "cifar_mpi/base/random_normals.hpp"
#include "cifar_mpi/lower/tower.hpp"
#include "reference/reference.hpp"

/// Inputs of tests for one network on any backend, and for the reference.
namespace cifar_mpi::test {

/// Images and labels of a few batches: random ones if it `draws`, else zeros.
class NetworkData {
 public:
  /// No `source`: the images have the size of the network's input.
  NetworkData(const model::NetSpec& net, int batch, data::Augment kind = data::Augment::none,
              const Extent& source = {}, bool draws = true)
      : batch_(static_cast<std::uint64_t>(batch)), input_(net.input) {
    how_.kind = kind;
    how_.source = source.count() > 0 ? source : net.input;
    how_.crop_height = net.input.height;
    how_.crop_width = net.input.width;
    images.resize(count() * bytes());
    labels.resize(count());
    if (!draws) return;
    for (std::size_t i = 0; i < images.size(); ++i)
      images[i] = static_cast<std::uint8_t>(random4(11, RandomPurpose::synthetic, i, 0)[0]);
    for (std::size_t i = 0; i < labels.size(); ++i) {
      labels[i] = static_cast<std::uint8_t>(uniform_below(random4(12, RandomPurpose::synthetic, i, 0)[0],
                                                          static_cast<std::uint32_t>(net.classes)));
    }
  }

  /// Images [0, batch) in file order, or those of a training step, as the network sees them; NHWC.
  reference::Array input(std::optional<std::uint64_t> step) const {
    reference::Array x;
    std::vector<float> image(static_cast<std::size_t>(input_.count()));
    data::AugmentSpec how = how_;
    if (!step) how.kind = data::Augment::none;
    for (std::uint64_t i = 0; i < batch_; ++i) {
      const data::SampleRef ref = step ? order().at(*step, i) : data::SampleRef{i, i, 0};
      data::augment_reference(how, data::draw_augment(how, kSeed, ref.epoch, ref.id), 0.0,
                              {images.data() + ref.local * bytes(), bytes()}, image);
      x.insert(x.end(), image.begin(), image.end());
    }
    return x;
  }
  std::vector<std::uint8_t> batch_labels(std::uint64_t step) const {
    std::vector<std::uint8_t> result;
    for (std::uint64_t i = 0; i < batch_; ++i) result.push_back(labels[order().at(step, i).local]);
    return result;
  }
  std::uint64_t global_batch() const { return 2 * batch_; }
  std::uint64_t count() const { return 3 * batch_ + 1; }
  data::SampleOrder order() const {
    return {data::Shuffle::shard, 5, count(), 0, 1, static_cast<int>(batch_)};
  }
  const data::AugmentSpec& augment() const { return how_; }

  static constexpr std::uint64_t kSeed = 9;  ///< of the distortions
  std::vector<std::uint8_t> images, labels;

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(how_.source.count()); }

  std::uint64_t batch_;
  Extent input_;
  data::AugmentSpec how_;
};

/// Writes random initial values into `block`: `scale`/sqrt(inputs of the layer) times a normal number, each off by `ulps` at random.
inline void draw_params(const lower::Tower& tower, const model::ParamTable& table, float scale, double ulps,
                        float* block) {
  for (std::size_t p = 0; p < table.size(); ++p) {
    const Shape& shape = table[p].shape;
    const std::int64_t inputs = shape.rank() == 1 ? 16 : shape.count() / shape[shape.rank() - 1];
    const float size = scale / std::sqrt(static_cast<float>(inputs));
    std::vector<float> values(static_cast<std::size_t>(shape.count()));
    truncated_normals(21, static_cast<std::uint32_t>(p), values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] *= size;
      if (table[p].part == model::ParamPart::scale) values[i] += 1.0f;
      if (table[p].part == model::ParamPart::variance) values[i] = 0.5f + std::abs(values[i]);
      if (ulps == 0.0) continue;
      const std::uint32_t bits = random4(31, RandomPurpose::synthetic, i, static_cast<std::uint32_t>(p))[0];
      values[i] *= 1.0f + static_cast<float>((bits & 1 ? 1.0 : -1.0) * ulps * 0x1.0p-23);
    }
    const auto& entry = tower.layout().entries[p];
    tower.from_logical(p, values, {block + entry.offset, entry.floats});
  }
}

/// Parameter `p` in logical order, of a block in which `first` is at its start.
inline reference::Array logical_param(const lower::Tower& tower, const model::ParamTable& table,
                                      std::size_t p, const float* block, std::size_t first = 0) {
  const auto& entry = tower.layout().entries[p];
  std::vector<float> values(static_cast<std::size_t>(table[p].shape.count()));
  tower.to_logical(p, {block + (entry.offset - first), entry.floats}, values);
  return {values.begin(), values.end()};
}

/// A block in logical order, by ParamTable index.
inline reference::Params logical_params(const lower::Tower& tower, const model::ParamTable& table,
                                        const float* block) {
  reference::Params arrays;
  for (std::size_t p = 0; p < table.size(); ++p) arrays.push_back(logical_param(tower, table, p, block));
  return arrays;
}

/// All tasks on the compute lane.
inline engine::StepProgram program_of(std::string name, std::vector<engine::Task> tasks) {
  engine::StepProgram program(std::move(name));
  for (engine::Task& task : tasks) program.run(engine::kCompute, std::move(task));
  program.finalize();
  return program;
}

}  // namespace cifar_mpi::test
