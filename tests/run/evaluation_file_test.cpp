#include "cifar_mpi/run/evaluation_file.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "hdf5/hdf5.hpp"
#include "support/errors.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::run {
namespace {

EvaluationFile small() {
  EvaluationFile e;
  e.step = 781;
  e.weights = "raw";
  e.views = 6;
  e.label_names = {"cat", "dog", "<b>"};
  e.confusion = {7, 1, 0, 0, 9, 0, 2, 0, 3};
  e.image = {2, 1, 3};
  e.images = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  e.labels = {0, 2};
  e.predictions = {1, 0};
  e.indices = {5, 1ULL << 40};
  e.mistakes = {{5, 9, 1ULL << 40}, {0, 1, 2}, {1, 0, 0}, {0.75f, 0.5f, 1.0f}, {"cat/1.png", "", "\xff\n"}};
  return e;
}

TEST(EvaluationFile, ComesBackAsItWas) {
  const TempDir folder;
  write_evaluation(folder / "e.h5", small());
  EXPECT_EQ(read_evaluation(folder / "e.h5"), small());
  EvaluationFile perfect = small();
  perfect.images.clear();
  perfect.labels.clear();
  perfect.predictions.clear();
  perfect.indices.clear();
  perfect.mistakes = {};
  write_evaluation(folder / "e.h5", perfect);
  EXPECT_EQ(read_evaluation(folder / "e.h5"), perfect);
}

TEST(EvaluationFile, IsRefusedWhereItDoesNotFitTogether) {
  const TempDir folder;
  const std::string path = folder / "e.h5";
  const auto refused = [&](const char* part, const std::function<void(EvaluationFile&)>& spoil) {
    EvaluationFile e = small();
    spoil(e);
    write_evaluation(path, e);
    expect_error(ErrorKind::checkpoint, {path, "damaged", part}, [&] { read_evaluation(path); });
  };
  refused("/wrong names a class", [](EvaluationFile& e) { e.predictions[0] = 3; });
  refused("/mistakes names a class", [](EvaluationFile& e) { e.mistakes.labels[2] = 3; });
  refused("not in order", [](EvaluationFile& e) { e.mistakes.indices[0] = 10; });
  refused("/mistakes differ in length", [](EvaluationFile& e) { e.mistakes.probabilities.pop_back(); });
  refused("/mistakes differ in length", [](EvaluationFile& e) { e.mistakes.files.pop_back(); });
  refused("neither ema nor raw", [](EvaluationFile& e) { e.weights = "my"; });
  refused("2 to 255", [](EvaluationFile& e) {
    e.label_names = {"one"};
    e.confusion = {1};
  });
  refused("[2, 65, 1, 1]", [](EvaluationFile& e) {
    e.image = {65, 1, 1};
    e.images.assign(130, 0);
  });
}

TEST(EvaluationFile, IsRefusedWhereItIsAnotherFile) {
  const TempDir folder;
  const std::string path = folder / "e.h5";
  expect_error(ErrorKind::checkpoint, {path}, [&] { read_evaluation(path); });
  write_file(path, "text");
  expect_error(ErrorKind::checkpoint, {path}, [&] { read_evaluation(path); });
  {
    hdf5::Writer file;
    file.attribute("/", "format", "cifar_mpi dataset");
    file.save(path);
  }
  expect_error(ErrorKind::checkpoint, {path, "no cifar_mpi evaluation"}, [&] { read_evaluation(path); });
  {
    hdf5::Writer file("cifar_mpi evaluation", 2);
    file.save(path);
  }
  expect_error(ErrorKind::checkpoint, {path, "version 2", "reads 1"}, [&] { read_evaluation(path); });
}

}  // namespace
}  // namespace cifar_mpi::run
