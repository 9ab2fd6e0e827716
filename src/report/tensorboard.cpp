#include "report/tensorboard.hpp"

#include <cmath>
#include <cstdlib>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/data/png.hpp"

namespace cifar_mpi::report {
namespace {

constexpr double kAverageShare = 0.1;  // of the newest step, as in the tutorial's script

/// google.protobuf.Value
Message hparam(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end != text.c_str() && *end == '\0' && std::isfinite(number)) return Message().number(2, number);
  return Message().bytes(3, text);
}

/// The start event for the plugin `hparams`, without metrics.
Event hparams_event(const RunFingerprint& hparams) {
  Message start;
  for (const auto& [name, text] : hparams) start.entry(1, name, hparam(text));
  start.number(5, wall_seconds());
  const Message content = Message().message(3, start);
  Summary summary;
  summary.tensor("_hparams_/session_start_info",
                 {"hparams", content.text(), Summary::Type::float32, {0}, {}});
  return summary.at(0);
}

/// A tensor [buckets, 3]: begin, end and number of values of each.
void histogram(Summary& summary, const std::string& tag, const engine::ValueCounts& counts) {
  constexpr std::int64_t kColumns = 3;
  std::vector<double> rows;
  for (int i = 0; i < engine::kHistogramBuckets; ++i) {
    rows.insert(rows.end(), {static_cast<double>(counts.edges[i]), static_cast<double>(counts.edges[i + 1]),
                             static_cast<double>(counts.buckets[i])});
  }
  const std::string_view bytes(reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(double));
  summary.tensor(tag,
                 {"histograms", {}, Summary::Type::float64, {engine::kHistogramBuckets, kColumns}, bytes});
  if (counts.not_finite > 0) summary.scalar(tag + "/not_finite", static_cast<double>(counts.not_finite));
}

/// A PNG of one or three channels.
std::string png_of(const InputImages& images, std::size_t image) {
  const Extent& extent = images.extent;
  const int channels = extent.channels < 3 ? 1 : 3;
  const std::uint8_t* pixel = images.pixels.data() + image * static_cast<std::size_t>(extent.count());
  std::vector<std::uint8_t> shown;
  for (int p = 0; p < extent.height * extent.width; ++p, pixel += extent.channels) {
    shown.insert(shown.end(), pixel, pixel + channels);
  }
  return data::encode_png(extent.width, extent.height, channels, shown);
}

}  // namespace

TensorBoard::TensorBoard(const DirectoryEntry& folder, std::uint64_t completed, const RunFacts& run,
                         const Log& log)
    : file_(folder, completed + 1,
            {{0, EventKind::graph_def, graph_def(run.net)}, hparams_event(run.hparams)}, log) {
  if (run.lacking.empty()) return;
  Summary summary;
  summary.text("activations/lacking", run.lacking);
  file_.write(summary.at(completed + 1));
}

void TensorBoard::MovingAverage::add(double value) {
  sum_ += kAverageShare * (value - sum_);
  share_ += kAverageShare * (1.0 - share_);
}

void TensorBoard::loss(Summary& summary, const std::string& name, double value,
                       const MovingAverage& average) {
  summary.scalar(name + " (raw)", value);
  summary.scalar(name, average.value());
}

void TensorBoard::note(const engine::StepRecord& record) {
  cross_entropy_.add(record.cross_entropy);
  weight_loss_.add(record.decay_term);
}

void TensorBoard::write(const StepReport& r) {
  if (!file_) return;
  Summary summary;
  loss(summary, "cross_entropy", r.cross_entropy, cross_entropy_);
  if (r.decay_term > 0.0) loss(summary, "weight_loss", r.decay_term, weight_loss_);
  summary.scalar("total_loss (raw)", r.cross_entropy + r.decay_term);
  summary.scalar("total_loss", cross_entropy_.value() + weight_loss_.value());
  summary.scalar("learning_rate", r.learning_rate);
  summary.scalar("global_step/sec", 1.0 / r.seconds_per_step);
  summary.scalar("images_per_second", r.images_per_second);
  summary.scalar("train_accuracy", r.train_accuracy);
  if (r.gradient_norm > 0.0) summary.scalar("gradient_norm", r.gradient_norm);
  if (r.exposed_communication_ms >= 0.0)
    summary.scalar("exposed_communication_ms", r.exposed_communication_ms);
  if (r.compute_ms_max > 0.0) {
    summary.scalar("compute_ms/min", r.compute_ms_min);
    summary.scalar("compute_ms/median", r.compute_ms_median);
    summary.scalar("compute_ms/max", r.compute_ms_max);
  }
  file_.write(summary.at(r.step));
}

void TensorBoard::write(const EvaluationReport& r) {
  Summary summary;
  summary.scalar("Precision @ 1", r.test_accuracy);
  summary.scalar("test_cross_entropy", r.cross_entropy);
  file_.write(summary.at(r.step));
}

void TensorBoard::write(std::uint64_t step, const std::vector<WeightLoss>& losses) {
  if (losses.empty()) return;
  Summary summary;
  for (const WeightLoss& loss : losses) summary.scalar(loss.layer + "/weight_loss (raw)", loss.value);
  file_.write(summary.at(step));
}

void TensorBoard::write(const StepSummary& step) {
  if (!file_) return;
  Summary summary;
  for (const NamedCounts& variable : step.variables) histogram(summary, variable.name, variable.counts);
  for (const NamedCounts& gradient : step.gradients)
    histogram(summary, gradient.name + "/gradients", gradient.counts);
  for (const auto& [layer, counts] : step.activations) {
    histogram(summary, layer + "/activations", counts);
    summary.scalar(layer + "/sparsity", sparsity(counts));
  }
  if (step.gradient_norm > 0.0) summary.scalar("gradient_norm", step.gradient_norm);
  file_.write(summary.at(step.step));
}

void TensorBoard::write(std::uint64_t step, const InputImages& images) {
  if (!file_) return;
  std::vector<std::string> pngs;
  for (std::size_t i = 0; i < images.count(); ++i) pngs.push_back(png_of(images, i));
  std::erase(pngs, std::string());
  if (pngs.empty()) return;
  Summary summary;
  summary.images("images", images.extent, pngs);
  file_.write(summary.at(step));
}

}  // namespace cifar_mpi::report
