#include "app/eval_output.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "app/program.hpp"
#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/text.hpp"
#include "hdf5/hdf5.hpp"
#include "report/json.hpp"

namespace cifar_mpi::app {
namespace {

using evaluation::Evaluation;

constexpr const char* kPredictionsFormat = "cifar_mpi predictions";
constexpr std::string_view kCsvBegins = "index,label,class,predicted_label,predicted_class,probability";
constexpr std::size_t kShown = 3;  // the most mistakes or classes to show

/// Classes and probabilities of one image.
struct Prediction {
  std::size_t label = 0;  ///< with the largest logit, the first of equals
  std::vector<double> probabilities;

  explicit Prediction(std::span<const float> logits) : probabilities(logits.size()) {
    for (std::size_t j = 1; j < logits.size(); ++j) {
      if (logits[j] > logits[label]) label = j;
    }
    const auto largest = static_cast<double>(logits[label]);
    for (std::size_t j = 0; j < logits.size(); ++j)
      probabilities[j] = std::exp(static_cast<double>(logits[j]) - largest);
    const double sum = std::accumulate(probabilities.begin(), probabilities.end(), 0.0);
    for (double& probability : probabilities) probability /= sum;
  }
};

/// The indices of values, the largest value first.
template <class Values>
std::vector<std::size_t> descending(const Values& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
  return order;
}

std::span<const float> logits_of(const Evaluation& evaluation, std::size_t image) {
  const std::size_t classes = evaluation.label_names.size();
  return std::span(evaluation.logits).subspan(image * classes, classes);
}

template <class Values, class Text>
std::string json_list(const Values& values, Text text) {
  std::string list;
  for (const auto& value : values) list += (list.empty() ? "" : ",") + std::string(text(value));
  return "[" + list + "]";
}

std::string json_head(const EvaluatedCheckpoint& checkpoint, const Evaluation& evaluation) {
  return concat("{\"checkpoint\":", report::json_text(checkpoint.path), ",\"step\":", evaluation.step,
                ",\"weights\":", report::json_text(checkpoint.weights), ",\"views\":", checkpoint.views,
                ",\"classes\":", json_list(evaluation.label_names, report::json_text));
}

/// "cat as dog (12), dog as cat (9)": the most frequent mistakes.
std::string confusions(const Evaluation& evaluation) {
  const std::vector<std::uint64_t>& counts = evaluation.accuracy.confusion;
  const std::size_t classes = evaluation.label_names.size();
  std::vector<std::size_t> mistakes = descending(counts);
  std::erase_if(mistakes, [&](std::size_t i) { return i / classes == i % classes || counts[i] == 0; });
  mistakes.resize(std::min(mistakes.size(), kShown));
  std::string text;
  for (const std::size_t i : mistakes)
    text += fmt::format("{}{} as {} ({})", text.empty() ? "" : ", ", evaluation.label_names[i / classes],
                        evaluation.label_names[i % classes], counts[i]);
  return text;
}

/// "image 17 (cats/3.png)"
std::string name_of(const run::Mistakes& mistakes, std::size_t i) {
  return concat("image ", mistakes.indices[i],
                mistakes.files.empty() ? std::string() : concat(" (", mistakes.files[i], ')'));
}

/// The mistakes with the highest probabilities, which wrong labels cause, too.
void print_mistakes(const Log& log, const Evaluation& evaluation) {
  const run::Mistakes& mistakes = evaluation.record.mistakes;
  const std::vector<std::size_t> order = descending(mistakes.probabilities);
  if (!order.empty()) log.info(concat(order.size(), " images misclassified, the most certain first:"));
  for (std::size_t k = 0; k < std::min(kShown, order.size()); ++k) {
    const std::size_t i = order[k];
    log.info(fmt::format("  {:.4f}  {}: {} as {}", mistakes.probabilities[i], name_of(mistakes, i),
                         evaluation.label_names[mistakes.labels[i]],
                         evaluation.label_names[mistakes.predictions[i]]));
  }
}

/// " in fp32 (the run evaluates in bf16)"
std::string precision_text(const Evaluation& evaluation) {
  const std::string& of_run = evaluation.run_precision;
  const bool same = of_run.empty() || of_run == evaluation.precision;
  return concat(
      ", in ", evaluation.precision,
      same ? std::string() : concat(" (the run evaluates in ", of_run, ": --precision ", of_run, ')'));
}

/// As RFC 4180 has it.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string predictions_csv(const Evaluation& evaluation, const std::vector<std::uint8_t>& labels,
                            const std::vector<std::string>& files) {
  std::string text(kCsvBegins);
  for (std::size_t j = 0; j < evaluation.label_names.size(); ++j) text += concat(",logit_", j);
  text += files.empty() ? "\n" : ",file\n";
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const std::span<const float> logits = logits_of(evaluation, i);
    const Prediction found(logits);
    text += fmt::format("{},{},{},{},{},{}", i, labels[i], csv_field(evaluation.label_names[labels[i]]),
                        found.label, csv_field(evaluation.label_names[found.label]),
                        found.probabilities[found.label]);
    for (const float logit : logits) text += fmt::format(",{}", logit);
    if (!files.empty()) text += concat(',', csv_field(files[i]));
    text += '\n';
  }
  return text;
}

void write_hdf5(const std::string& path, const EvaluatedCheckpoint& checkpoint, const Evaluation& evaluation,
                const std::vector<std::uint8_t>& labels, const std::vector<std::string>& files) {
  std::vector<std::uint8_t> predictions;
  for (std::size_t i = 0; i < labels.size(); ++i)
    predictions.push_back(static_cast<std::uint8_t>(Prediction(logits_of(evaluation, i)).label));
  hdf5::Writer file(kPredictionsFormat, 1);
  file.attribute("/", "checkpoint", checkpoint.path);
  file.attribute("/", "step", evaluation.step);
  file.attribute("/", "weights", checkpoint.weights);
  file.attribute("/", "views", checkpoint.views);
  file.write_strings("/label_names", evaluation.label_names);
  file.write("/labels", {labels.size()}, labels);
  file.write("/predictions", {labels.size()}, predictions);
  file.write("/logits", {labels.size(), evaluation.label_names.size()}, evaluation.logits);
  if (!files.empty()) file.write_strings("/files", files);
  file.save(path);
}

}  // namespace

void print_evaluation(const Log& log, const EvaluatedCheckpoint& checkpoint, const Evaluation& evaluation) {
  const evaluation::Accuracy& accuracy = evaluation.accuracy;
  log.info(concat(checkpoint.path, ": step ", evaluation.step, ", ", accuracy.count(),
                  " test images, cross-entropy ", fmt::format("{:.4f}", accuracy.cross_entropy),
                  precision_text(evaluation)));
  for (std::size_t c = 0; c < accuracy.classes.size(); ++c) {
    const auto [correct, count] = accuracy.classes[c];
    const double share = count == 0 ? 0.0 : static_cast<double>(correct) / static_cast<double>(count);
    log.info(fmt::format("  {:<12} {:.4f}  ({} of {})", evaluation.label_names[c], share, correct, count));
  }
  if (const std::string confused = confusions(evaluation); !confused.empty())
    log.info("most often confused: " + confused);
  print_mistakes(log, evaluation);
  if (checkpoint.views > 1)
    log.info(fmt::format("{} views of each image in {:.1f} s; the image alone: {:.4f} in {:.1f} s",
                         checkpoint.views, evaluation.time.first_view_s + evaluation.time.other_views_s,
                         static_cast<double>(accuracy.plain_correct) / static_cast<double>(accuracy.count()),
                         evaluation.time.first_view_s));
  log.info(fmt::format("precision @ 1 = {:.4f}", accuracy.precision_at_1()));
}

void print_predictions(const Log& log, const PredictedImages& images, const Evaluation& evaluation) {
  for (std::size_t i = 0; i < images.paths.size(); ++i) {
    const Prediction found(logits_of(evaluation, i));
    const std::vector<std::size_t> order = descending(found.probabilities);
    std::string line;
    for (std::size_t k = 0; k < std::min(kShown, order.size()); ++k)
      line += fmt::format("{}{} {:.4f}", line.empty() ? "" : ", ", evaluation.label_names[order[k]],
                          found.probabilities[order[k]]);
    const auto& [width, height] = images.sizes[i];
    if (width != images.size || height != images.size)
      line += fmt::format(" (scaled from {}x{} to {}x{}, as cifar_mpi_pack does)", width, height, images.size,
                          images.size);
    log.info(concat(images.paths[i], ": ", line));
  }
}

std::string evaluation_json(const EvaluatedCheckpoint& checkpoint, const Evaluation& evaluation) {
  const evaluation::Accuracy& accuracy = evaluation.accuracy;
  std::vector<std::string> rows;
  for (std::size_t c = 0; c < accuracy.classes.size(); ++c) {
    const auto row =
        std::span(accuracy.confusion).subspan(c * accuracy.classes.size(), accuracy.classes.size());
    rows.push_back(json_list(row, [](std::uint64_t count) { return std::to_string(count); }));
  }
  return concat(json_head(checkpoint, evaluation), ",\"precision\":", report::json_text(evaluation.precision),
                ",\"images\":", accuracy.count(), ",\"correct\":", accuracy.correct(),
                ",\"precision_at_1\":", report::json_number(accuracy.precision_at_1()),
                ",\"cross_entropy\":", report::json_number(accuracy.cross_entropy),
                ",\"correct_by_first_view\":", accuracy.plain_correct,
                ",\"first_view_seconds\":", report::json_number(evaluation.time.first_view_s),
                ",\"other_views_seconds\":", report::json_number(evaluation.time.other_views_s),
                ",\"confusion\":", json_list(rows, [](const std::string& row) { return row; }), "}\n");
}

std::string predictions_json(const EvaluatedCheckpoint& checkpoint, const PredictedImages& images,
                             const Evaluation& evaluation) {
  std::vector<std::string> predictions;
  for (std::size_t i = 0; i < images.paths.size(); ++i) {
    const Prediction found(logits_of(evaluation, i));
    predictions.push_back(
        concat("{\"image\":", report::json_text(images.paths[i]), ",\"width\":", images.sizes[i].width,
               ",\"height\":", images.sizes[i].height, ",\"label\":", found.label,
               ",\"class\":", report::json_text(evaluation.label_names[found.label]),
               ",\"probability\":", report::json_number(found.probabilities[found.label]),
               ",\"probabilities\":", json_list(found.probabilities, report::json_number), "}"));
  }
  return concat(json_head(checkpoint, evaluation), ",\"size\":", images.size,
                ",\"predictions\":", json_list(predictions, [](const std::string& one) { return one; }),
                "}\n");
}

void check_predictions_file(const std::string& path, bool force) {
  constexpr const char* kWhat = "a file of predictions";
  constexpr const char* kOption = "--predictions";
  if (path.ends_with(".h5")) {
    hdf5::require_like_or_nothing(path, kPredictionsFormat, kWhat, kOption);
  } else if (path.ends_with(".csv")) {
    require_like_or_nothing(path, kCsvBegins, kWhat, kOption);
  } else {
    throw Error(ErrorKind::usage, "--predictions ", path,
                ": the name says in which format to write; end it with .csv or .h5");
  }
  prepare_output(path, force);
}

void write_predictions(const std::string& path, const EvaluatedCheckpoint& checkpoint,
                       const Evaluation& evaluation, const std::vector<std::uint8_t>& labels,
                       const std::vector<std::string>& files) {
  if (path.ends_with(".h5")) return write_hdf5(path, checkpoint, evaluation, labels, files);
  const std::string text = predictions_csv(evaluation, labels, files);
  write_atomically(path, text);
}

}  // namespace cifar_mpi::app
