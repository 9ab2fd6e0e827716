#include <algorithm>

#include "cifar_mpi/base/text.hpp"
#include "page/bitmap.hpp"
#include "page/sections.hpp"
#include "page/text.hpp"

namespace cifar_mpi::page {
namespace {

/// " (cats/3.png)" if the file of this image of the test split is known.
std::string file_of(const run::Mistakes& mistakes, std::uint64_t index) {
  constexpr std::size_t kMost = 200;
  const auto at = std::ranges::lower_bound(mistakes.indices, index);
  if (mistakes.files.empty() || at == mistakes.indices.end() || *at != index) return {};
  return concat(
      " (", shortened(mistakes.files[static_cast<std::size_t>(at - mistakes.indices.begin())], kMost), ')');
}

}  // namespace

std::string wrong_images_html(const Run& run) {
  if (!run.evaluation || run.evaluation->labels.empty() || run.evaluation->image.count() == 0) return {};
  const run::EvaluationFile& evaluation = *run.evaluation;
  std::string items;
  for (std::size_t i = 0; i < evaluation.labels.size(); ++i) {
    const std::uint8_t* const pixels =
        evaluation.images.data() + i * static_cast<std::size_t>(evaluation.image.count());
    const std::string label = shortened(evaluation.label_names[evaluation.labels[i]], 60),
                      taken = shortened(evaluation.label_names[evaluation.predictions[i]], 60);
    const std::string words = html(concat(label, ", predicted as ", taken));
    items += concat("<li><img class=\"pixels\" alt=\"", words, "\" title=\"", words, ", test image ",
                    evaluation.indices[i], html(file_of(evaluation.mistakes, evaluation.indices[i])),
                    "\" width=\"72\" height=\"72\" src=\"", bitmap_of(pixels, evaluation.image).address(),
                    "\"><span>", html(label), "<br>→\u00a0<b>", html(taken), "</b></span></li>");
  }
  const std::size_t all = evaluation.mistakes.indices.size();
  return concat("<p class=\"note\">Some test images that step ", evaluation.step, " misclassified (",
                evaluation.weights == "raw" ? "weights" : "averaged weights",
                "), chosen by a hash: true class → predicted class.",
                all > 0 ? concat(" evaluation.h5 lists all ", all, ".") : std::string(),
                "</p><ul class=\"wrong\">", items, "</ul>");
}

std::string input_images_html(const Run& run) {
  constexpr std::size_t kMost = 16;
  if (!run.summaries || run.summaries->images.empty()) return {};
  const report::InputImages& images = run.summaries->images;
  const auto size = static_cast<std::size_t>(images.extent.count());
  std::string pictures;
  for (std::size_t i = 0; i < std::min(kMost, images.count()); ++i)
    pictures += concat("<img class=\"pixels\" alt=\"\" src=\"",
                       bitmap_of(&images.pixels[i * size], images.extent).address(), "\">");
  return concat(
      "<p class=\"note\">Some training images, after augmentation, as the network reads them.</p><div "
      "class=\"filters inputs\" role=\"img\" aria-label=\"Some training images as the network sees them\">",
      pictures, "</div>");
}

}  // namespace cifar_mpi::page
