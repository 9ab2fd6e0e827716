#include <algorithm>

#include "cifar_mpi/base/text.hpp"
#include "page/bitmap.hpp"
#include "page/images.hpp"
#include "page/text.hpp"

namespace cifar_mpi::page {
namespace {

/// One and two channels are grey; of four the last, which may be transparency, is left out.
Bitmap picture_of(const run::EvaluationFile& evaluation, std::size_t i) {
  const Extent& image = evaluation.image;
  Bitmap bitmap(image.width, image.height);
  const std::uint8_t* pixel = evaluation.images.data() + i * static_cast<std::size_t>(image.count());
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x, pixel += image.channels) {
      const bool colours = image.channels >= 3;
      bitmap.set(x, y, pixel[0], pixel[colours ? 1 : 0], pixel[colours ? 2 : 0]);
    }
  }
  return bitmap;
}

}  // namespace

std::string wrong_images_html(const Run& run) {
  if (!run.evaluation || run.evaluation->labels.empty() || run.evaluation->image.count() == 0) return {};
  const run::EvaluationFile& evaluation = *run.evaluation;
  std::string items;
  for (std::size_t i = 0; i < evaluation.labels.size(); ++i) {
    const std::string label = shortened(evaluation.label_names[evaluation.labels[i]], 60),
                      taken = shortened(evaluation.label_names[evaluation.predictions[i]], 60);
    const std::string words = html(concat(label, ", taken for ", taken));
    items += concat("<li><img class=\"pixels\" alt=\"", words, "\" title=\"", words, ", test image ",
                    evaluation.indices[i], "\" width=\"72\" height=\"72\" src=\"",
                    picture_of(evaluation, i).address(), "\"><span>", html(label), "<br>→\u00a0<b>",
                    html(taken), "</b></span></li>");
  }
  return concat("<p class=\"note\">Some of the test images that step ", evaluation.step,
                " took for another class (", evaluation.weights == "raw" ? "weights" : "averaged weights",
                "), chosen by a hash: what it is → what it was taken for.</p><ul class=\"wrong\">", items,
                "</ul>");
}

}  // namespace cifar_mpi::page
