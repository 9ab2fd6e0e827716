#include "cifar_mpi/run/checkpoint.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "hdf5/hdf5.hpp"
#include "run/made_checkpoint.hpp"
#include "support/damage.hpp"
#include "support/errors.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::run {
namespace {

/// Everything a checkpoint holds, one fact an entry; the order of its tensors is not one.
std::vector<std::string> facts(const Checkpoint& checkpoint) {
  std::vector<std::string> list;
  list.push_back(optim::describe(checkpoint.optimizer));
  for (const optim::StateRow& row : optim::state_rows(checkpoint.optimizer.kind)) {
    for (const NamedTensor& tensor : match_tensors(checkpoint.state[row.role], make_table(), "file")) {
      list.push_back(concat(tensor.name, ' ', to_string(tensor.shape), ' ', tensor.dims));
      for (const float value : tensor.values) list.back() += fmt::format(" {:a}", static_cast<double>(value));
    }
  }
  const Progress& progress = checkpoint.progress;
  list.push_back(concat("progress ", progress.step, ' ', progress.samples_seen, ' ', progress.seed));
  for (const auto& [name, value] : progress.identity) list.push_back(concat("identity ", name, '|', value));
  for (const auto& [name, value] : progress.resolved) list.push_back(concat("resolved ", name, '|', value));
  const Provenance& from = checkpoint.provenance;
  list.push_back(concat("ranks ", from.ranks, " global batch ", from.global_batch, " views ", from.views));
  for (const double value : {progress.epoch, from.learning_rate, from.test_accuracy.value_or(-1.0)}) {
    list.push_back(fmt::format("{:a}", value));
  }
  for (const std::string& text :
       {from.learning_rate_rule, from.precision, from.backend, from.kernels, from.configuration,
        from.git_revision, from.time, from.initialized_from, from.changes}) {
    list.push_back(text);
  }
  return list;
}

void expect_unreadable(const std::string& path, std::vector<std::string> parts) {
  parts.push_back(path);
  expect_error(ErrorKind::checkpoint, parts, [&] { read_checkpoint(path); });
}

TEST(CheckpointFile, ComesBackAsItWasWritten) {
  const TempDir dir;
  Checkpoint wanted = make_checkpoint();
  write_checkpoint(dir / "one.h5", wanted);
  EXPECT_EQ(facts(read_checkpoint(dir / "one.h5")), facts(wanted));
  wanted.provenance.test_accuracy.reset();
  wanted.provenance.kernels.clear();
  wanted.provenance.initialized_from.clear();
  wanted.provenance.changes.clear();
  wanted.provenance.configuration.clear();
  wanted.progress.resolved.clear();
  write_checkpoint(dir / "one.h5", wanted);
  EXPECT_EQ(facts(read_checkpoint(dir / "one.h5")), facts(wanted));
  EXPECT_EQ(dir.files(), 1u);
}

TEST(CheckpointFile, KeepsRunningStatisticsInGroupsOfTheirOwn) {
  const TempDir dir;
  model::ParamTable table = make_table();
  for (const char* name : {"bn/mean", "bn/variance"}) {
    model::Param param;
    param.name = name;
    param.shape = {4};
    param.dims = "[channels]";
    param.role = model::ParamRole::running;
    table.push_back(param);
  }
  Checkpoint wanted = make_checkpoint();
  wanted.optimizer.kind = optim::OptimizerKind::momentum;
  for (const auto role : {optim::StateRole::weights, optim::StateRole::average, optim::StateRole::momentum}) {
    wanted.state[role] = make_tensors(table, role == optim::StateRole::weights ? 1.0f : 1000.0f);
    for (NamedTensor& tensor : wanted.state[role]) tensor.running = tensor.name.starts_with("bn/");
  }
  write_checkpoint(dir / "one.h5", wanted);
  const hdf5::Reader file(dir / "one.h5", ErrorKind::checkpoint);
  for (const char* group : {"/running", "/running_ema"}) {
    EXPECT_EQ(file.members(group), std::vector<std::string>{"bn"});
    EXPECT_EQ(file.members(std::string(group) + "/bn"), (std::vector<std::string>{"mean", "variance"}));
  }
  for (const char* group : {"/model", "/ema", "/momentum"})
    EXPECT_FALSE(file.has(std::string(group) + "/bn"));

  const Checkpoint found = read_checkpoint(dir / "one.h5");
  for (const auto role : {optim::StateRole::weights, optim::StateRole::average}) {
    expect_same_tensors(match_tensors(found.state[role], table, "file"), wanted.state[role]);
  }
  const std::vector<NamedTensor> momenta =
      match_tensors(found.state[optim::StateRole::momentum], table, "file", false);
  ASSERT_EQ(momenta.size(), table.size() - 2);
  EXPECT_EQ(momenta.front().values, wanted.state[optim::StateRole::momentum].front().values);
  expect_error(ErrorKind::checkpoint, {"lacks bn/mean"},
               [&] { match_tensors(found.state[optim::StateRole::momentum], table, "file"); });
}

TEST(CheckpointFile, HoldsWhatItsOptimizerKeepsAndNoMore) {
  const TempDir dir;
  using Kind = optim::OptimizerKind;
  const std::vector<std::pair<optim::OptimizerSpec, std::vector<std::string>>> cases{
      {{}, {}},
      {{.kind = Kind::momentum, .momentum = 0.75}, {"momentum"}},
      {{.kind = Kind::nesterov}, {"momentum"}},
      {{.kind = Kind::adamw, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-6}, {"moment1", "moment2"}}};
  for (const auto& [optimizer, rows] : cases) {
    SCOPED_TRACE(optim::describe(optimizer));
    const Checkpoint wanted = with_optimizer(optimizer);
    write_checkpoint(dir / "one.h5", wanted);
    const Checkpoint found = read_checkpoint(dir / "one.h5");
    EXPECT_EQ(facts(found), facts(wanted));
    const hdf5::Reader file(dir / "one.h5");
    std::vector<std::string> groups{"ema", "model", "optimizer", "progress", "provenance"};
    groups.insert(groups.end(), rows.begin(), rows.end());
    std::sort(groups.begin(), groups.end());
    EXPECT_EQ(file.members("/"), groups);
    EXPECT_EQ(file.attribute<std::string>("/optimizer", "kind"), to_string(optimizer.kind));
    EXPECT_EQ(file.attribute<std::string>("/optimizer", "meaning"), optim::formula(optimizer.kind));
    EXPECT_EQ(file.has_attribute("/optimizer", "momentum"), rows == std::vector<std::string>{"momentum"});
    EXPECT_EQ(file.has_attribute("/optimizer", "beta2"), rows.size() == 2);
    for (const std::string& row : rows)
      EXPECT_FALSE(file.attribute<std::string>("/" + row, "meaning").empty());
  }
}

TEST(CheckpointFile, IsDamagedWithoutWhatItsOptimizerKeeps) {
  const TempDir dir;
  Checkpoint checkpoint = with_optimizer({.kind = optim::OptimizerKind::adamw});
  checkpoint.state[optim::StateRole::moment2].clear();
  write_checkpoint(dir / "one.h5", checkpoint);
  expect_unreadable(dir / "one.h5", {"/moment2", "damaged", "empty"});
}

/// The hash does not protect from a forged number: it is computed from what was read.
TEST(CheckpointFile, HasOnlyWholeStepsBetweenNormalizations) {
  const TempDir dir;
  const auto write = [&](double steps) {
    hdf5::Writer file("cifar_mpi checkpoint", 3);
    file.group("/optimizer");
    file.attribute("/optimizer", "kind", "muon");
    file.attribute("/optimizer", "muon-normalize", steps);
    file.save(dir / "one.h5");
  };
  for (const double wrong : {-1.0, 2.5, 2147483648.0, 1e300, std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()}) {
    write(wrong);
    expect_unreadable(dir / "one.h5",
                      {"is damaged: muon-normalize of /optimizer is ", "not a number of steps"});
  }
  for (const double right : {0.0, 2147483647.0}) {
    write(right);
    expect_unreadable(dir / "one.h5", {"/model"});
  }
  const Checkpoint wanted = with_optimizer({.kind = optim::OptimizerKind::muon, .normalize_every = 7});
  write_checkpoint(dir / "one.h5", wanted);
  EXPECT_EQ(read_checkpoint(dir / "one.h5").optimizer.normalize_every, 7);
}

TEST(InitialState, HasZerosForWhatTheOptimizerKeeps) {
  const std::vector<NamedTensor> initial = make_tensors(make_table(), 1.0f);
  StateTensors state = initial_state(optim::state_rows(optim::OptimizerKind::adamw), initial);
  expect_same_tensors(state[optim::StateRole::weights], initial);
  expect_same_tensors(state[optim::StateRole::average], initial);
  EXPECT_TRUE(state[optim::StateRole::momentum].empty());
  std::vector<NamedTensor> zeros = initial;
  for (NamedTensor& tensor : zeros) tensor.values.assign(tensor.values.size(), 0.0f);
  expect_same_tensors(state[optim::StateRole::moment1], zeros);
  expect_same_tensors(state[optim::StateRole::moment2], zeros);
}

TEST(CheckpointFile, NamesAFlippedByteInAnyTensor) {
  const TempDir dir;
  const std::string path = dir / "one.h5";
  const Checkpoint checkpoint = make_checkpoint();
  write_checkpoint(path, checkpoint);
  const std::string whole = read_file(path);
  for (const auto& [group, tensors] : {std::pair{"/model/", &checkpoint.state[optim::StateRole::weights]},
                                       std::pair{"/ema/", &checkpoint.state[optim::StateRole::average]}}) {
    for (const NamedTensor& tensor : *tensors) {
      const std::string bytes(reinterpret_cast<const char*>(tensor.values.data()), 4 * tensor.values.size());
      const std::size_t at = whole.find(bytes);
      ASSERT_NE(at, std::string::npos) << group << tensor.name;
      ASSERT_EQ(whole.find(bytes, at + 1), std::string::npos) << group << tensor.name;
      std::string damaged = whole;
      damaged[at + bytes.size() / 2] ^= 1;
      write_file(path, damaged);
      expect_unreadable(path, {group + tensor.name, "damaged"});
    }
  }
}

TEST(CheckpointFile, IsReadAsItWasOrNotAtAllWithAnyByteWrong) {
  const TempDir dir;
  const std::string path = dir / "one.h5";
  Checkpoint wanted = make_checkpoint();
  wanted.provenance.configuration.resize(500);  // leaves more of the flips to the rest
  write_checkpoint(path, wanted);
  const std::vector<test::Flip> flips = test::random_flips(read_file(path).size(), 200);
  test::expect_damage_is_noticed(path, flips, ErrorKind::checkpoint,
                                 [&] { return facts(read_checkpoint(path)) == facts(wanted); });
}

TEST(CheckpointFile, SaysWhyItCannotBeRead) {
  const TempDir dir;
  const std::string path = dir / "one.h5";
  expect_unreadable(path, {"No such file"});
  write_file(path, "text");
  expect_unreadable(path, {"not an HDF5 file"});
  write_checkpoint(path, make_checkpoint());
  const std::string whole = read_file(path);
  for (const std::size_t size : {whole.size() - 1, whole.size() / 2, std::size_t{48}, std::size_t{8}}) {
    write_file(path, whole.substr(0, size));
    expect_unreadable(path, {"incomplete"});
  }
  write_file(path, "");
  expect_unreadable(path, {"empty"});
}

TEST(CheckpointFile, RefusesOtherFilesAndOtherVersions) {
  const TempDir dir;
  const std::string path = dir / "one.h5";
  using Fill = std::function<void(hdf5::Writer&)>;
  const auto refused = [&](hdf5::Writer& file, const Fill& fill, const std::vector<std::string>& parts) {
    fill(file);
    file.save(path);
    expect_unreadable(path, parts);
  };
  hdf5::Writer no_format, dataset("cifar_mpi dataset", 3);
  refused(no_format, [](hdf5::Writer& file) { file.group("/model"); }, {"not a cifar_mpi checkpoint"});
  refused(dataset, [](hdf5::Writer&) {}, {"not a cifar_mpi checkpoint"});
  const auto refuse_version = [&](int version, const Fill& fill, const std::vector<std::string>& parts) {
    hdf5::Writer file("cifar_mpi checkpoint", version);
    refused(file, fill, parts);
  };
  const auto trained_with = [](const char* optimizer) {
    return [optimizer](hdf5::Writer& file) {
      file.group("/optimizer");
      file.attribute("/optimizer", "kind", optimizer);
    };
  };
  for (const int version : {1, 4})
    refuse_version(version, [](hdf5::Writer&) {}, {concat("version ", version), "reads 2 to 3"});
  refuse_version(2, trained_with("sgd"), {"/model"});
  refuse_version(3, trained_with("lion"), {"optimizer lion, which this program does not have"});
  const auto five_dimensions = [&](hdf5::Writer& file) {
    trained_with("sgd")(file);
    file.write("/model/conv1/weights", {1, 1, 1, 1, 1}, std::vector<float>{1.0f});
  };
  refuse_version(2, five_dimensions, {"/model/conv1/weights", "dimensions"});
}

TEST(CheckpointFile, IsDamagedWithoutTensorsOrIdentityWhateverItsHash) {
  const TempDir dir;
  const std::string path = dir / "one.h5";
  const std::vector<std::pair<std::string, std::function<void(Checkpoint&)>>> losses{
      {"/model", [](Checkpoint& c) { c.state[optim::StateRole::weights].clear(); }},
      {"/ema", [](Checkpoint& c) { c.state[optim::StateRole::average].clear(); }},
      {"/progress/identity", [](Checkpoint& c) { c.progress.identity.clear(); }}};
  for (const auto& [group, lose] : losses) {
    Checkpoint checkpoint = make_checkpoint();
    lose(checkpoint);
    write_checkpoint(path, checkpoint);
    expect_unreadable(path, {group, "damaged", "empty"});
  }
}

TEST(CheckpointFile, KeepsHowManyBatchesEachWorkerHasComputed) {
  const TempDir dir;
  Checkpoint checkpoint = make_checkpoint();
  const std::uint64_t without = content_hash(checkpoint);
  checkpoint.progress.batches = {12, 0, 9};
  EXPECT_NE(content_hash(checkpoint), without);
  write_checkpoint(dir / "file.h5", checkpoint);
  EXPECT_EQ(read_checkpoint(dir / "file.h5").progress.batches, checkpoint.progress.batches);
  checkpoint.progress.batches[1] = std::uint64_t{1} << 60;
  write_checkpoint(dir / "file.h5", checkpoint);
  expect_unreadable(dir / "file.h5", {"not a number of batches"});
}

TEST(CheckpointFile, HasNoSettingsOfSeveralLines) {
  const TempDir dir;
  for (RunFingerprint Progress::*list : {&Progress::identity, &Progress::resolved}) {
    Checkpoint checkpoint = make_checkpoint();
    (checkpoint.progress.*list).emplace_back("threads\nranks", "2");
    write_checkpoint(dir / "file.h5", checkpoint);
    expect_unreadable(dir / "file.h5", {"line break"});
  }
}

TEST(CheckpointFile, SaysWhereItCouldNotBeWritten) {
  const TempDir dir;
  expect_error(ErrorKind::io, {dir / "none/one.h5"},
               [&] { write_checkpoint(dir / "none/one.h5", make_checkpoint()); });
  EXPECT_EQ(dir.files(), 0u);
}

TEST(CheckpointFile, IsEqualForH5diffInAllButItsProvenance) {
  ASSERT_EQ(std::system("command -v h5diff > /dev/null 2>&1"), 0) << "h5diff of hdf5-tools is not installed";
  const TempDir dir;
  Checkpoint checkpoint = make_checkpoint();
  write_checkpoint(dir / "one.h5", checkpoint);
  checkpoint.provenance.time = "2025-01-01 00:00:00";
  checkpoint.provenance.ranks = 2;
  checkpoint.provenance.kernels = "another plan";
  write_checkpoint(dir / "two.h5", checkpoint);
  checkpoint.state[optim::StateRole::average][3].values[2] *= 1.0f + std::numeric_limits<float>::epsilon();
  checkpoint.progress.identity[0].second = "wider";
  write_checkpoint(dir / "other.h5", checkpoint);
  const auto differ = [&](const std::string& other, const std::string& group) {
    return std::system(
               concat("h5diff ", dir / "one.h5", " ", dir / other, " ", group, " > /dev/null").c_str()) != 0;
  };
  for (const char* group : {"/model", "/ema", "/optimizer", "/progress"}) {
    EXPECT_FALSE(differ("two.h5", group)) << group;
  }
  EXPECT_TRUE(differ("two.h5", "/provenance"));
  EXPECT_TRUE(differ("other.h5", "/ema"));
  EXPECT_TRUE(differ("other.h5", "/progress"));
}

TEST(CheckpointFile, NoticesTwoTensorsThatChangedPlaces) {
  const TempDir dir;
  const std::string path = dir / "one.h5";
  const Checkpoint checkpoint = make_checkpoint();
  write_checkpoint(path, checkpoint);
  std::string bytes = read_file(path);
  // With their checksums, so that each chunk by itself is valid.
  const auto chunk_at = [&](const NamedTensor& tensor) {
    const std::size_t size = 4 * tensor.values.size();
    return std::pair(bytes.find(std::string(reinterpret_cast<const char*>(tensor.values.data()), size)),
                     size + 4);
  };
  const auto [a, a_size] = chunk_at(checkpoint.state[optim::StateRole::weights][2]);
  const auto [b, b_size] = chunk_at(checkpoint.state[optim::StateRole::weights][4]);
  ASSERT_EQ(a_size, b_size);
  const std::string kept = bytes.substr(a, a_size);
  bytes.replace(a, a_size, bytes.substr(b, b_size));
  bytes.replace(b, b_size, kept);
  write_file(path, bytes);
  expect_unreadable(path, {"damaged", "hash"});
}

TEST(CheckpointFile, CarriesItsContentHashInWords) {
  const TempDir dir;
  const Checkpoint checkpoint = make_checkpoint();
  write_checkpoint(dir / "one.h5", checkpoint);
  const hdf5::Reader file(dir / "one.h5");
  EXPECT_EQ(file.attribute<std::string>("/", "content_hash"),
            fmt::format("{:016x}", content_hash(checkpoint)));
}

TEST(RecordedTestAccuracy, IsThereOnlyWhenTheCheckpointHasOne) {
  const TempDir dir;
  Checkpoint checkpoint = make_checkpoint();
  write_checkpoint(dir / "one.h5", checkpoint);
  EXPECT_EQ(recorded_test_accuracy(dir / "one.h5"), 0.861);
  checkpoint.provenance.test_accuracy.reset();
  write_checkpoint(dir / "one.h5", checkpoint);
  EXPECT_EQ(recorded_test_accuracy(dir / "one.h5"), std::nullopt);
  EXPECT_EQ(recorded_test_accuracy(dir / "none.h5"), std::nullopt);
}

TEST(MatchTensors, PutsThemInTheOrderOfTheTable) {
  const std::vector<NamedTensor> wanted = make_tensors(make_table(), 1.0f);
  std::vector<NamedTensor> shuffled(wanted.rbegin(), wanted.rend());
  std::swap(shuffled[0], shuffled[5]);
  expect_same_tensors(match_tensors(shuffled, make_table(), "file"), wanted);
}

TEST(MatchTensors, NamesWhatIsMissingLeftOverOrOfAnotherShape) {
  const auto expect_bad = [](const std::vector<std::string>& parts,
                             const std::function<void(std::vector<NamedTensor>&)>& change) {
    std::vector<NamedTensor> tensors = make_tensors(make_table(), 1.0f);
    change(tensors);
    expect_error(ErrorKind::checkpoint, parts, [&] { match_tensors(tensors, make_table(), "some/file.h5"); });
  };
  using Tensors = std::vector<NamedTensor>;
  expect_bad({"some/file.h5", "lacks conv10/weights"}, [](Tensors& t) { t.erase(t.begin() + 2); });
  expect_bad({"some/file.h5", "lacks softmax_linear/weights"}, [](Tensors& t) { t.clear(); });
  expect_bad({"some/file.h5", "holds conv11/biases"}, [](Tensors& t) {
    t.push_back({"conv11/biases", {1}, "[out]", {0.0f}});
  });
  expect_bad({"some/file.h5", "conv10/biases", "[5]", "[4]"}, [](Tensors& t) { t[3].shape = {5}; });
  expect_bad({"conv10/biases", "[4, 1]"}, [](Tensors& t) { t[3].shape = {4, 1}; });
}

}  // namespace
}  // namespace cifar_mpi::run
