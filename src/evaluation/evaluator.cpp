#include "cifar_mpi/evaluation/evaluator.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/data/fingerprint.hpp"
#include "evaluation/wrong_images.hpp"

namespace cifar_mpi::evaluation {
namespace {

/// For the samples of `slab`, which begins at `first` of the file, that lie in `wanted`.
std::uint64_t fingerprint_within(const data::Samples& slab, std::uint64_t first, data::Shard wanted) {
  const std::uint64_t begin = std::max(first, wanted.first);
  const std::uint64_t end = std::min(first + slab.labels.size(), wanted.first + wanted.count);
  if (begin >= end) return 0;
  const std::size_t image_bytes = slab.images.size() / slab.labels.size();
  return data::fingerprint(
      std::span(slab.images).subspan((begin - first) * image_bytes, (end - begin) * image_bytes),
      std::span(slab.labels).subspan(begin - first, end - begin), begin);
}

/// Of the class with the largest logit.
float probability_of(std::span<const float> logits, std::size_t largest) {
  double sum = 0.0;
  for (const float logit : logits)
    sum += std::exp(static_cast<double>(logit) - static_cast<double>(logits[largest]));
  return static_cast<float>(1.0 / sum);
}

}  // namespace

ResidentData::ResidentData(engine::Backend& backend, const data::DatasetFile& file, data::Split split,
                           data::Shard part, data::Shard fingerprinted)
    : count_(part.count) {
  constexpr std::uint64_t kSlab = 4096;
  const auto image_bytes = static_cast<std::size_t>(file.info().image.count());
  images_ = backend.allocate(count_ * image_bytes);
  labels_ = backend.allocate(count_);
  for (std::uint64_t at = 0; at < count_; at += kSlab) {
    const data::Samples slab = file.read(split, {part.first + at, std::min(kSlab, count_ - at)});
    backend.copy(images_.data() + at * image_bytes, slab.images.data(), slab.images.size());
    backend.copy(labels_.data() + at, slab.labels.data(), slab.labels.size());
    fingerprint_ += fingerprint_within(slab, part.first + at, fingerprinted);
  }
}

ResidentData::ResidentData(engine::Backend& backend, const data::Samples& samples)
    : images_(backend.allocate(samples.images.size())),
      labels_(backend.allocate(samples.labels.size())),
      count_(samples.labels.size()) {
  backend.copy(images_.data(), samples.images.data(), samples.images.size());
  backend.copy(labels_.data(), samples.labels.data(), samples.labels.size());
}

engine::DataView ResidentData::view() const {
  return {images_.as<const std::uint8_t>(), labels_.as<const std::uint8_t>(), count_};
}

void require_equal_data(const comm::World& world, const data::DatasetFile& file, const std::string& path) {
  RunFingerprint mine;
  world.together([&] { mine = data::summarize(file); });
  world.require_equal(ErrorKind::data, mine,
                      concat("there ", path, " is no copy of rank 0's dataset; give all ranks the same"));
}

std::vector<View> views_of(int count, data::AugmentSpec augment) {
  augment.kind = data::Augment::none;
  augment.cutout = 0;
  augment.fill = data::Fill::reflect;
  const auto view = [&](int shift, bool mirror, double share) {
    View made{augment, share};
    made.augment.shift = shift;
    made.augment.mirror = mirror;
    return made;
  };
  if (count == 1) return {view(0, false, 1.0)};
  if (count == 2) return {view(0, false, 0.5), view(0, true, 0.5)};
  if (count != 6) throw Error(ErrorKind::usage, "--views must be 1, 2 or 6, not ", count);
  const Extent& image = augment.source;
  if (std::min(image.height, image.width) < 2) {
    throw Error(ErrorKind::usage, "--views 6 moves images by a pixel, but these are ", to_string(image),
                "; give --views 1 or 2");
  }
  return {view(0, false, 0.25),  view(0, true, 0.25),   view(-1, false, 0.125),
          view(-1, true, 0.125), view(1, false, 0.125), view(1, true, 0.125)};
}

std::uint64_t Accuracy::correct() const {
  std::uint64_t sum = 0;
  for (const ClassAccuracy& c : classes) sum += c.correct;
  return sum;
}

std::uint64_t Accuracy::count() const {
  std::uint64_t sum = 0;
  for (const ClassAccuracy& c : classes) sum += c.count;
  return sum;
}

Evaluator::Evaluator(engine::Backend& backend, const comm::World& world, const data::DatasetFile& file)
    : backend_(backend),
      world_(world),
      classes_(static_cast<std::size_t>(file.info().classes())),
      label_names_(file.info().label_names),
      image_(file.info().image) {
  if (world.rank() == 0) files_ = file.read_files(data::Split::test);
}

Evaluator::Evaluator(engine::Backend& backend, const lower::Tower& tower, engine::Arena& arena,
                     const comm::World& world, const data::DatasetFile& file, data::Shard part,
                     const EvaluatorSpec& spec)
    : Evaluator(backend, world, file) {
  data_ = ResidentData(backend, file, data::Split::test, part);
  first_ = part.first;
  plan(tower, arena, spec);
}

Evaluator::Evaluator(engine::Backend& backend, const lower::Tower& tower, engine::Arena& arena,
                     const comm::World& world, const data::Samples& images, std::size_t classes,
                     const EvaluatorSpec& spec)
    : Evaluator(backend, world, classes) {
  data_ = ResidentData(backend, images);
  plan(tower, arena, spec);
}

void Evaluator::plan(const lower::Tower& tower, engine::Arena& arena, const EvaluatorSpec& spec) {
  batch_ = spec.batch;
  labels_.resize(data_.view().count);
  backend_.copy(labels_.data(), data_.view().labels, labels_.size());
  const auto batch = static_cast<std::size_t>(batch_);
  cursor_ = backend_.allocate(sizeof(std::uint64_t));
  predictions_ = backend_.allocate(batch);
  loss_sum_ = backend_.allocate(sizeof(float));
  batch_logits_ = backend_.allocate(batch * classes_ * sizeof(float));

  engine::EvaluateBinding binding;
  binding.params = spec.params;
  binding.data = data_.view();
  binding.cursor = cursor_.as<std::uint64_t>();
  binding.predictions = predictions_.as<std::uint8_t>();
  binding.loss_sum = loss_sum_.as<float>();
  binding.logits = batch_logits_.as<float>();
  for (const View& view : views_of(spec.views, spec.augment)) {
    binding.augment = view.augment;
    arena.rewind();  // the programs never run at the same time
    engine::StepProgram program("evaluate");
    for (engine::Task& task : tower.evaluate_tasks(binding, arena))
      program.run(engine::kCompute, std::move(task));
    program.finalize();
    views_.push_back({backend_.runner(std::move(program), spec.kind, arena.regions()), view.share});
  }
}

Evaluator::Pass Evaluator::pass(engine::Runner& runner) {
  const std::uint64_t zero = 0;
  backend_.copy(cursor_.data(), &zero, cursor_.size());
  std::vector<std::uint8_t> predictions(static_cast<std::size_t>(batch_));
  std::vector<float> logits(batch_logits_.size() / sizeof(float));
  Pass found;
  for (std::size_t at = 0; at < labels_.size(); at += predictions.size()) {
    runner.replay();
    runner.finish();
    float loss = 0.0f;
    backend_.copy(predictions.data(), predictions_.data(), predictions.size());
    backend_.copy(&loss, loss_sum_.data(), sizeof loss);
    found.loss += static_cast<double>(loss);
    const std::size_t n = std::min(predictions.size(), labels_.size() - at);
    found.predictions.insert(found.predictions.end(), predictions.begin(),
                             predictions.begin() + static_cast<std::ptrdiff_t>(n));
    backend_.copy(logits.data(), batch_logits_.data(), batch_logits_.size());
    found.logits.insert(found.logits.end(), logits.begin(),
                        logits.begin() + static_cast<std::ptrdiff_t>(n * classes_));
  }
  return found;
}

Evaluator::Pass Evaluator::mean_of_views(const Pass& first) {
  std::vector<double> mean(first.logits.size());
  for (std::size_t v = 0; v < views_.size(); ++v) {
    const std::vector<float> logits = v == 0 ? first.logits : pass(*views_[v].runner).logits;
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += views_[v].share * static_cast<double>(logits[i]);
  }
  Pass found;
  found.logits.assign(mean.begin(), mean.end());
  for (std::size_t i = 0; i < labels_.size(); ++i) {
    const std::span<const float> row = std::span(found.logits).subspan(i * classes_, classes_);
    const auto best = std::ranges::max_element(row);
    found.predictions.push_back(static_cast<std::uint8_t>(best - row.begin()));
    if (labels_[i] >= classes_) continue;
    double sum = 0.0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit) - static_cast<double>(*best));
    found.loss += std::log(sum) + static_cast<double>(*best) - static_cast<double>(row[labels_[i]]);
  }
  return found;
}

Accuracy Evaluator::run() {
  Pass found;
  double plain_correct = 0.0;
  time_ = {};
  if (!views_.empty()) {
    const double start = steady_seconds();
    found = pass(*views_.front().runner);
    for (std::size_t i = 0; i < labels_.size(); ++i) plain_correct += found.predictions[i] == labels_[i];
    const double middle = steady_seconds();
    if (views_.size() > 1) found = mean_of_views(found);
    time_ = {middle - start, steady_seconds() - middle};
  }
  // One flat array of doubles for the sum over ranks: the confusion matrix, then the loss and what the first view finds.
  // Counts are exact.
  const std::size_t cells = classes_ * classes_;
  std::vector<double> sums(cells + 2);
  for (std::size_t i = 0; i < labels_.size(); ++i) {
    if (labels_[i] < classes_) sums[labels_[i] * classes_ + found.predictions[i]] += 1.0;
  }
  sums[cells] = found.loss;
  sums[cells + 1] = plain_correct;
  predicted_ = std::move(found.predictions);
  logits_ = std::move(found.logits);
  world_.sum(sums);
  Accuracy accuracy;
  accuracy.confusion.assign(sums.begin(), sums.begin() + static_cast<std::ptrdiff_t>(cells));
  for (std::size_t c = 0; c < classes_; ++c) {
    const auto row = accuracy.confusion.begin() + static_cast<std::ptrdiff_t>(c * classes_);
    const auto count = std::accumulate(row, row + static_cast<std::ptrdiff_t>(classes_), std::uint64_t{0});
    accuracy.classes.push_back({row[static_cast<std::ptrdiff_t>(c)], count});
  }
  accuracy.cross_entropy = sums[cells] / static_cast<double>(accuracy.count());
  accuracy.plain_correct = static_cast<std::uint64_t>(sums[cells + 1]);
  return accuracy;
}

std::vector<float> Evaluator::logits() const {
  std::vector<float> all;
  for (const std::vector<std::byte>& part : world_.collect(std::as_bytes(std::span(logits_)))) {
    const std::size_t before = all.size();
    all.resize(before + part.size() / sizeof(float));
    std::memcpy(all.data() + before, part.data(), part.size());
  }
  return all;
}

run::EvaluationFile Evaluator::record(const Accuracy& accuracy) const {
  run::EvaluationFile file;
  file.label_names = label_names_;
  file.confusion = accuracy.confusion;
  file.views = std::max<std::uint64_t>(views_.size(), 1);
  const auto pixels = [&](std::uint64_t index) {
    std::vector<std::uint8_t> image(static_cast<std::size_t>(image_.count()));
    const std::uint8_t* const source = data_.view().images + (index - first_) * image.size();
    backend_.copy(image.data(), source, image.size());
    return image;
  };
  std::vector<float> probabilities;
  for (std::size_t i = 0; i < predicted_.size(); ++i)
    probabilities.push_back(
        probability_of(std::span(logits_).subspan(i * classes_, classes_), predicted_[i]));
  const Predictions mine{first_, labels_, predicted_, probabilities};
  gather_wrong_images(world_, mine, image_, pixels, file);
  file.mistakes = gather_mistakes(world_, mine, files_);
  return file;
}

}  // namespace cifar_mpi::evaluation
