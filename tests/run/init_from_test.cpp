#include <fmt/core.h>
#include <gtest/gtest.h>
#include <hdf5.h>

#include <string>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "hdf5/hdf5.hpp"
#include "run/made_checkpoint.hpp"
#include "run/resume.hpp"
#include "support/errors.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::run {
namespace {

constexpr const char* kClassifier = "head";

/// conv, its statistics, head: as make_param_table orders them.
model::ParamTable make_table(std::int64_t classes) {
  model::ParamTable table;
  const auto add = [&](const char* name, Shape shape, std::uint32_t seed_index,
                       model::ParamRole role = model::ParamRole::trained) {
    model::Param param;
    param.name = name;
    param.shape = shape;
    param.role = role;
    param.seed_index = seed_index;
    table.push_back(std::move(param));
  };
  add("head/weights", {4, classes}, 3);
  add("head/biases", {classes}, 4);
  add("conv/weights", {3, 3, 1, 4}, 0);
  add("conv/mean", {4}, 1, model::ParamRole::running);
  add("conv/variance", {4}, 2, model::ParamRole::running);
  return table;
}

std::vector<NamedTensor> filled(const model::ParamTable& table, float value) {
  std::vector<NamedTensor> tensors;
  for (const model::Param& param : table) {
    tensors.push_back({param.name, param.shape, "[]",
                       std::vector<float>(static_cast<std::size_t>(param.shape.count()), value++),
                       param.role == model::ParamRole::running});
  }
  return tensors;
}

/// A finished run: its weights begin at 10, their averages at 20.
Checkpoint finished_run(const model::ParamTable& table) {
  Checkpoint checkpoint;
  checkpoint.optimizer.kind = optim::OptimizerKind::momentum;
  checkpoint.state = initial_state(optim::state_rows(checkpoint.optimizer.kind), filled(table, 10.0f));
  checkpoint.state[optim::StateRole::average] = filled(table, 20.0f);
  checkpoint.progress.step = 781;
  checkpoint.progress.identity = {{"model", "resnet20"}, {"network input", "32x32"}};
  checkpoint.provenance.test_accuracy = 0.595;
  return checkpoint;
}

/// A file of version 3 without the additions since version 2 is one of version 2.
void call_it_version(const std::string& path, std::int64_t version) {
  const hdf5::Hid file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
  const hdf5::Hid attribute(H5Aopen_by_name(file.get(), "/", "version", H5P_DEFAULT, H5P_DEFAULT));
  ASSERT_GE(H5Awrite(attribute.get(), H5T_NATIVE_INT64, &version), 0);
}

class InitializeFrom : public testing::Test {
 protected:
  /// The initial values of a run of `table` from `source`, which it writes first.
  std::vector<NamedTensor> begun(const Checkpoint& source, const model::ParamTable& table,
                                 const std::string& classifier = kClassifier) {
    write_checkpoint(path_, source);
    std::vector<NamedTensor> tensors = filled(table, 0.0f);
    told_ = initialize_from(path_, table, classifier, tensors);
    return tensors;
  }
  void expect_refused(const Checkpoint& source, const model::ParamTable& table,
                      std::vector<std::string> parts, const std::string& classifier = kClassifier) {
    write_checkpoint(path_, source);
    std::vector<NamedTensor> tensors = filled(table, 0.0f);
    parts.insert(parts.begin(), {"cannot start from a network of other shapes: ", path_});
    expect_error(ErrorKind::checkpoint, parts, [&] { initialize_from(path_, table, classifier, tensors); });
    expect_same_tensors(tensors, filled(table, 0.0f));
  }

  TempDir dir_;
  std::string path_ = dir_ / "step_000000781.h5";
  std::string told_;
};

TEST_F(InitializeFrom, TakesTheAveragesAndTheStatisticsThatBelongToThem) {
  const model::ParamTable table = make_table(10);
  const Checkpoint source = finished_run(table);
  expect_same_tensors(begun(source, table), filled(table, 20.0f));
  EXPECT_EQ(told_, fmt::format("step_000000781.h5, step 781, test accuracy 59.50 %, content hash {:016x}",
                               content_hash(source)));
}

TEST_F(InitializeFrom, ReadsFilesOfVersion2) {
  const model::ParamTable table = make_table(10);
  Checkpoint source = finished_run(table);
  source.optimizer.kind = optim::OptimizerKind::sgd;
  source.state[optim::StateRole::momentum].clear();
  write_checkpoint(path_, source);
  call_it_version(path_, 2);
  std::vector<NamedTensor> tensors = filled(table, 0.0f);
  initialize_from(path_, table, kClassifier, tensors);
  expect_same_tensors(tensors, filled(table, 20.0f));
  call_it_version(path_, 1);
  expect_error(ErrorKind::checkpoint, {"version 1"},
               [&] { initialize_from(path_, table, kClassifier, tensors); });
}

TEST_F(InitializeFrom, LeavesTheClassifierNewForAnotherNumberOfClasses) {
  const model::ParamTable table = make_table(100);
  const std::vector<NamedTensor> found = begun(finished_run(make_table(10)), table);
  const std::vector<NamedTensor> initial = filled(table, 0.0f), source = filled(table, 20.0f);
  expect_same_tensors({found[0], found[1]}, {initial[0], initial[1]});
  expect_same_tensors({found[2], found[3], found[4]}, {source[2], source[3], source[4]});
  EXPECT_TRUE(told_.ends_with("; head is new, for another number of classes")) << told_;
}

TEST_F(InitializeFrom, NamesTheFirstTensorThatDiffers) {
  const model::ParamTable table = make_table(10);
  const std::string advice =
      "; give the --model and --input-size of that checkpoint (resnet20, 32x32), or choose another";
  model::ParamTable other = table;
  other[0].shape = {5, 10};  // the classifier's input, and the convolution before it
  expect_refused(finished_run(other), table,
                 {"head/weights of", " is [5, 10], this run's is [4, 10]", advice});
  other[2].shape = {5, 5, 1, 4};
  expect_refused(finished_run(other), table,
                 {"conv/weights of", " is [5, 5, 1, 4], this run's is [3, 3, 1, 4]", advice});
  // The last extent of another layer, or of any where none may differ, counts no classes.
  other = table;
  other[2].shape = {3, 3, 1, 8};
  expect_refused(finished_run(other), table, {"conv/weights"});
  expect_refused(finished_run(make_table(7)), table, {"head/weights of", "is [4, 7], this run's is [4, 10]"},
                 "");
  expect_refused(finished_run(make_table(7)), table, {"head/weights"}, "hea");
  other = table;
  other[1].shape = {10, 1};
  expect_refused(finished_run(other), table, {"head/biases of", "is [10, 1], this run's is [10]"});
}

TEST_F(InitializeFrom, NamesATensorThatOnlyOneOfThemHas) {
  const model::ParamTable table = make_table(10);
  model::ParamTable fewer = table;
  fewer.erase(fewer.begin() + 1);
  expect_refused(finished_run(fewer), table, {"head/biases of", " is missing, this run's is [10]"});
  expect_refused(finished_run(table), fewer, {"head/biases of", " is [10], this run's is missing"});
  model::ParamTable trained = table;
  trained[3].role = model::ParamRole::trained;
  expect_refused(finished_run(trained), table, {"conv/mean of", " is missing, this run's is [4]"});
  Checkpoint silent = finished_run(fewer);
  silent.progress.identity = {{"note", "of an older program"}};
  expect_refused(silent, table, {"give the --model and --input-size of that checkpoint, or choose another"});
}

TEST_F(InitializeFrom, SaysOfAFileWhatResumingSays) {
  const model::ParamTable table = make_table(10);
  std::vector<NamedTensor> tensors = filled(table, 0.0f);
  const auto initialize = [&] { initialize_from(path_, table, kClassifier, tensors); };
  expect_error(ErrorKind::checkpoint, {path_}, initialize);
  write_checkpoint(path_, finished_run(table));
  std::filesystem::resize_file(path_, 3000);
  expect_error(ErrorKind::checkpoint, {path_, "damaged or incomplete"}, initialize);
}

}  // namespace
}  // namespace cifar_mpi::run
