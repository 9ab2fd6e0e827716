#include <gtest/gtest.h>

#include <cmath>

#include "page/bitmap.hpp"
#include "page/sections.hpp"
#include "support/contains.hpp"

namespace cifar_mpi::page {
namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(Base64, HasItsThreeEnds) {
  EXPECT_EQ(base64({}), "");
  EXPECT_EQ(base64({'M'}), "TQ==");
  EXPECT_EQ(base64({'M', 'a'}), "TWE=");
  EXPECT_EQ(base64({'M', 'a', 'n'}), "TWFu");
  EXPECT_EQ(base64({0xFF, 0xFE, 0xFD}), "//79");
}

TEST(Bitmap, IsAFileOfRowsFromBelow) {
  Bitmap bitmap(1, 2);
  bitmap.set(0, 0, 1, 2, 3);
  bitmap.set(0, 1, 4, 5, 6);
  // BM, size 62, offset 54, head of 40, 1 x 2, 1 plane, 24 bits; then 6 5 4 and a filler, 3 2 1 and a filler
  const std::vector<std::uint8_t> file{'B', 'M', 62, 0, 0, 0, 0,  0,  0, 0, 54, 0,  0,  0, 40, 0,
                                       0,   0,   1,  0, 0, 0, 2,  0,  0, 0, 1,  0,  24, 0, 0,  0,
                                       0,   0,   8,  0, 0, 0, 19, 11, 0, 0, 19, 11, 0,  0, 0,  0,
                                       0,   0,   0,  0, 0, 0, 6,  5,  4, 0, 3,  2,  1,  0};
  EXPECT_EQ(bitmap.address(), "data:image/bmp;base64," + base64(file));
}

page::Run run_with(std::size_t classes) {
  page::Run run;
  run::EvaluationFile evaluation;
  for (std::size_t c = 0; c < classes; ++c) evaluation.label_names.push_back("<" + std::to_string(c) + ">");
  evaluation.confusion.assign(classes * classes, 1);
  evaluation.confusion[1] = 99;
  evaluation.image = {1, 1, 2};
  evaluation.images = {7, 8};
  evaluation.labels = {0};
  evaluation.predictions = {1};
  evaluation.indices = {5};
  run.evaluation = evaluation;
  return run;
}

TEST(Confusion, IsATableOfFewClassesAndAListOfManyMistakes) {
  const std::string few = confusion_html(run_with(3));
  EXPECT_EQ(count(few, "<td class=\"right"), 3u);
  EXPECT_EQ(count(few, "<td class=\"miss"), 6u);
  EXPECT_TRUE(contains(few, "3 of 107 test images correct"));
  EXPECT_TRUE(contains(few, "<td class=\"word\">&lt;0&gt;</td><td class=\"word\">&lt;1&gt;</td><td>99</td>"));
  EXPECT_EQ(count(few, "<td class=\"word\">&lt;2&gt;</td><td class=\"word\">&lt;2&gt;</td>"), 0u)
      << "what is right is no mistake";
  const std::string many = confusion_html(run_with(255));
  EXPECT_EQ(count(many, "class=\"right"), 0u);
  EXPECT_EQ(count(many, "<tr>"), 21u);
  EXPECT_TRUE(contains(many, "<details open>"));
  EXPECT_FALSE(contains(few, "<0>"));
  EXPECT_EQ(confusion_html(page::Run()), "");
}

TEST(WrongImages, SayWhatTheyAreAndWhatTheyWereTakenFor) {
  const std::string page = wrong_images_html(run_with(3));
  EXPECT_EQ(count(page, "<img"), 1u);
  EXPECT_TRUE(contains(page, "alt=\"&lt;0&gt;, predicted as &lt;1&gt;\""));
  EXPECT_EQ(count(page, "lists all"), 0u) << "the file of an older version has no list";
  page::Run run = run_with(3);
  run.evaluation->mistakes = {{2, 5}, {0, 0}, {1, 1}, {0.5f, 0.5f}, {"a.png", "<b>.png"}};
  const std::string named = wrong_images_html(run);
  EXPECT_EQ(count(named, "evaluation.h5 lists all 2."), 1u) << named;
  EXPECT_EQ(count(named, "test image 5 (&lt;b&gt;.png)\""), 1u) << named;
  run.evaluation->mistakes.indices[1] = 6;
  EXPECT_EQ(count(wrong_images_html(run), ".png"), 0u);
  EXPECT_EQ(wrong_images_html(page::Run()), "");
}

TEST(Filters, AreThoseOfTheConvolutionThatReadsTheImage) {
  page::Run run;
  run.checkpoint.emplace();
  auto& tensors = run.checkpoint->state[optim::StateRole::average];
  tensors.push_back({"a/weights", {3, 3, 4, 2}, "", std::vector<float>(72, 1.0f), false});
  tensors.push_back({"b/weights", {1, 2, 3, 2}, "", {-1, -1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0}, false});
  tensors.push_back({"c/weights", {30, 10}, "", std::vector<float>(300), false});
  const std::string page = filters_html(run);
  EXPECT_TRUE(contains(page, "2 filters of b/weights, 1x2 pixels and 3 channels each"));
  EXPECT_EQ(count(page, "<img"), 2u);
  Bitmap first(2, 1);
  first.set(0, 0, 0, 127, 127);
  first.set(1, 0, 255, 127, 127);
  EXPECT_TRUE(contains(page, first.address()));
  tensors[1].values[3] = std::nanf("");
  EXPECT_EQ(filters_html(run), "");
  tensors.erase(tensors.begin(), tensors.begin() + 2);
  EXPECT_EQ(filters_html(run), "");
}

}  // namespace
}  // namespace cifar_mpi::page
