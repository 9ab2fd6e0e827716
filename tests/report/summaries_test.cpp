#include <gtest/gtest.h>

#include <cmath>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/model/net_builder.hpp"
#include "hdf5/hdf5.hpp"
#include "report/summary_history.hpp"
#include "report/tensorboard.hpp"
#include "support/errors.hpp"
#include "support/event_reader.hpp"
#include "support/file_size_limit.hpp"
#include "support/temp_dir.hpp"

/// Histograms in event files and in summaries.h5.
namespace cifar_mpi::report {
namespace {

using engine::ValueCounts;

model::NetSpec one_layer() {
  model::NetBuilder net("one", {2, 2, 1}, 2);
  return net.softmax_cross_entropy(net.linear(net.image(), {.name = "only", .outputs = 2}));
}

/// From `least` on, buckets of width 0.5 with 1, 2, … values.
ValueCounts counts_from(float least) {
  ValueCounts counts;
  for (int i = 0; i <= 30; ++i) counts.edges[i] = least + 0.5f * static_cast<float>(i);
  for (std::uint64_t i = 0; i < 30; ++i) counts.finite += counts.buckets[i] = i + 1;
  counts.zeros = 93;
  return counts;
}

StepSummary summary_of(std::uint64_t step) {
  StepSummary summary;
  summary.step = step;
  const auto least = static_cast<float>(step);
  summary.variables = {{"only/weights", counts_from(least)}};
  summary.gradients = {{"only/weights", counts_from(least + 1)}};
  summary.activations = {{"only", counts_from(least + 2)}};
  // This distinguishes the counts of one step from those of another.
  for (auto* list : {&summary.variables, &summary.gradients, &summary.activations})
    list->front().counts.buckets[29] += step;
  return summary;
}

std::size_t kept(const SummaryHistory& history, const std::string& group) {
  return history.series().at(group).size();
}

TEST(Histograms, StandInEventFilesUnderTheNamesOfTheTutorial) {
  const TempDir folder;
  {
    TensorBoard board(folder / "board", 0, {one_layer(), {}}, Log(0));
    StepSummary summary = summary_of(7);
    summary.gradient_norm = 2.5;
    summary.gradients[0].counts.not_finite = 3;
    board.write(summary);
  }
  const test::EventRead event = test::read_events(test::event_files(folder / "board").at(0)).back();
  EXPECT_EQ(event.step, 7u);
  const std::vector<std::pair<std::string, float>> scalars{
      {"only/weights/gradients/not_finite", 3.0f}, {"only/sparsity", 0.2f}, {"gradient_norm", 2.5f}};
  EXPECT_EQ(event.scalars, scalars);
  const std::vector<std::pair<std::string, double>> tags{
      {"only/weights", 7.0}, {"only/weights/gradients", 8.0}, {"only/activations", 9.0}};
  ASSERT_EQ(event.doubles.size(), tags.size());
  for (std::size_t t = 0; t < tags.size(); ++t) {
    EXPECT_EQ(event.doubles[t].first, tags[t].first);
    const std::vector<double>& rows = event.doubles[t].second;
    ASSERT_EQ(rows.size(), 90u);
    for (std::size_t i = 0; i < 30; ++i) {
      const double left = tags[t].second + 0.5 * static_cast<double>(i);
      EXPECT_EQ(rows[3 * i], left);
      EXPECT_EQ(rows[3 * i + 1], left + 0.5);
      EXPECT_EQ(rows[3 * i + 2], static_cast<double>(i + 1 + (i == 29 ? event.step : 0)));
    }
  }
}

TEST(InputImages, AreCountedAlsoWhereThePixelsOfOneAreMoreThanAnIntHolds) {
  const InputImages images{{4096, 4096, 256}, std::vector<std::uint8_t>(100)};  // 2^32
  EXPECT_EQ(images.count(), 0u);
}

TEST(VisibleImages, AreMadeAsTheTutorialsSummariesAre) {
  const Extent extent{1, 3, 1};
  const InputImages images =
      visible_images(extent, {0.0f, 1.0f, 2.0f, -2.0f, 0.0f, 1.0f, 0.0f, 0.0f, 0.0f, -1.0f, 4.0f, 2.0f});
  EXPECT_EQ(images.count(), 4u);
  const std::vector<std::uint8_t> wanted{0, 128, 255, 1, 128, 192, 0, 0, 0, 96, 255, 192};
  EXPECT_EQ(images.pixels, wanted);
  EXPECT_EQ(visible_images(extent, {1.0f, std::nanf(""), 2.0f}).pixels,
            (std::vector<std::uint8_t>{128, 0, 255}));
}

TEST(SummaryHistory, IsReadAsItWasWrittenUpToTheStepThatARunGoesOnFrom) {
  const TempDir folder;
  const std::string path = folder / "summaries.h5";
  EXPECT_EQ(SummaryHistory::read(path, 5).series().size(), 0u) << "there is no file";
  SummaryHistory history;
  for (const std::uint64_t step : {1u, 100u, 200u, 300u}) history.add(summary_of(step));
  history.keep({{2, 1, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}});
  history.lacks("no other");
  history.write(path);
  SummaryHistory resumed = SummaryHistory::read(path, 200);
  EXPECT_TRUE(resumed.has_images());
  EXPECT_EQ(resumed.lacking(), "no other");
  resumed.add(summary_of(250));
  resumed.write(path);

  const hdf5::Reader file(path);
  EXPECT_EQ(file.attribute<std::string>("/", "format"), "cifar_mpi summaries");
  EXPECT_EQ(file.attribute<std::int64_t>("/", "version"), 1);
  EXPECT_EQ(file.dims("/images"), (hdf5::Dims{2, 2, 1, 3}));
  EXPECT_EQ(file.read<std::uint8_t>("/images").back(), 12);
  for (const auto& [group, offset] : {std::pair<std::string, double>{"/variables/only/weights", 0.0},
                                      {"/gradients/only/weights", 1.0},
                                      {"/activations/only", 2.0}}) {
    const auto steps = file.read<std::uint64_t>(group + "/steps");
    EXPECT_EQ(steps, (std::vector<std::uint64_t>{1, 100, 200, 250})) << group;
    EXPECT_EQ(file.dims(group + "/edges"), (hdf5::Dims{4, 31}));
    EXPECT_EQ(file.dims(group + "/counts"), (hdf5::Dims{4, 30}));
    const auto edges = file.read<double>(group + "/edges");
    const auto counts = file.read<std::uint64_t>(group + "/counts");
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(edges[i * 31], static_cast<double>(steps[i]) + offset);
      EXPECT_EQ(edges[i * 31 + 30], static_cast<double>(steps[i]) + offset + 15.0);
      EXPECT_EQ(counts[i * 30 + 29], 30u + steps[i]);
    }
  }
  EXPECT_EQ(file.read<double>("/activations/only/sparsity"), std::vector<double>(4, 0.2));
  EXPECT_FALSE(file.has("/variables/only/weights/sparsity"));
}

/// A fifth of all steps stays: they are 5 apart in the mean, and 4 or 8 after each round of thinning.
TEST(SummaryHistory, ThinsOutWhatIsTooMuchEvenly) {
  const TempDir folder;
  SummaryHistory history;
  constexpr std::uint64_t kLast = 5000;
  for (std::uint64_t step = 1; step <= kLast; ++step) {
    StepSummary summary;
    summary.step = step;
    summary.variables = {{"w", counts_from(0.0f)}};
    history.add(summary);
  }
  EXPECT_EQ(kept(history, "/variables/w"), 1000u);
  history.write(folder / "s.h5");
  const auto steps = hdf5::Reader(folder / "s.h5").read<std::uint64_t>("/variables/w/steps");
  EXPECT_EQ(steps.front(), 1u);
  EXPECT_EQ(steps.back(), kLast);
  std::uint64_t least = kLast, most = 0;
  for (std::size_t i = 0; i + 2 < steps.size(); ++i) {  // the last has had no time to be thinned out
    least = std::min(least, steps[i + 1] - steps[i]);
    most = std::max(most, steps[i + 1] - steps[i]);
  }
  EXPECT_LE(most, 8u);
  EXPECT_GE(least, 1u);
}

TEST(SummaryHistory, StaysSmallHoweverManyTensorsThereAre) {
  const TempDir folder;
  SummaryHistory history;
  for (std::uint64_t step = 1; step <= 100; ++step) {
    StepSummary summary;
    summary.step = step;
    for (int i = 0; i < 1200; ++i) summary.variables.push_back({"w" + std::to_string(i), counts_from(0.0f)});
    history.add(summary);
  }
  EXPECT_GE(kept(history, "/variables/w0"), 16u);
  EXPECT_LE(kept(history, "/variables/w0"), 40u);
  EXPECT_EQ(kept(history, "/variables/w0"), kept(history, "/variables/w1199"));
}

TEST(SummaryHistory, TakesNoOtherFileForItsOwn) {
  const TempDir folder;
  const std::string path = folder / "summaries.h5";
  const auto refused = [&](const std::string& part) {
    expect_error(ErrorKind::checkpoint, {path, part}, [&] { SummaryHistory::read(path, 1); });
  };
  write_file(path, "not HDF5");
  refused("");
  const auto write = [&](auto change) {
    hdf5::Writer file("cifar_mpi summaries", 1);
    change(file);
    file.save(path);
  };
  hdf5::Writer("something", 1).save(path);
  refused("no cifar_mpi summaries");
  write([&](hdf5::Writer& file) {
    file.write("/variables/w/steps", {2}, std::vector<std::uint64_t>{1, 2});
    file.write("/variables/w/edges", {2, 30}, std::vector<double>(60));
    file.write("/variables/w/counts", {2, 30}, std::vector<std::uint64_t>(60));
  });
  refused("31 edges");
  const auto at_steps = [&](const std::vector<std::uint64_t>& steps) {
    const std::uint64_t n = steps.size();
    write([&](hdf5::Writer& file) {
      file.write("/variables/w/steps", {n}, steps);
      file.write("/variables/w/edges", {n, 31}, std::vector<double>(31 * n));
      file.write("/variables/w/counts", {n, 30}, std::vector<std::uint64_t>(30 * n));
    });
  };
  for (const auto& steps : {std::vector<std::uint64_t>{2, 1}, {2, 2}}) {
    at_steps(steps);
    refused("/variables/w does not hold ascending steps");
  }
  at_steps(std::vector<std::uint64_t>(1001));
  refused("at most 1000 steps");
  write([&](hdf5::Writer& file) { file.write("/images", {3}, std::vector<std::uint8_t>(3)); });
  refused("/images");
}

TEST(SummaryHistory, LeavesTheFileAsItWasWhereTheDiskIsFull) {
  const TempDir folder;
  const std::string path = folder / "summaries.h5";
  SummaryHistory history;
  history.add(summary_of(1));
  history.write(path);
  const std::string before = read_file(path);
  history.add(summary_of(2));
  {
    const test::FileSizeLimit limit(1000);
    EXPECT_THROW(history.write(path), Error);
  }
  EXPECT_EQ(read_file(path), before);
}

}  // namespace
}  // namespace cifar_mpi::report
