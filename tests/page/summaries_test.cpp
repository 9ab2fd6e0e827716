#include "page/summaries.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "hdf5/hdf5.hpp"
#include "page/bitmap.hpp"
#include "page/run.hpp"
#include "page/sections.hpp"
#include "support/errors.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::page {
namespace {

/// A value in bucket 0, two in bucket 10 and one in the last; edges from -1 on, 0.5 apart.
engine::ValueCounts four_values() {
  engine::ValueCounts counts;
  for (int i = 0; i <= engine::kHistogramBuckets; ++i) counts.edges[i] = -1.0f + 0.5f * static_cast<float>(i);
  counts.buckets[0] = 1;
  counts.buckets[10] = 2;
  counts.buckets[29] = 1;
  return counts;
}

void put_group(hdf5::Writer& file, const std::string& group, std::vector<std::uint64_t> steps = {100, 200}) {
  const std::uint64_t n = steps.size();
  file.write(group + "/steps", {n}, steps);
  std::vector<double> edges;
  std::vector<std::uint64_t> counts;
  const engine::ValueCounts values = four_values();
  for (std::uint64_t i = 0; i < n; ++i) {
    edges.insert(edges.end(), std::begin(values.edges), std::end(values.edges));
    counts.insert(counts.end(), std::begin(values.buckets), std::end(values.buckets));
  }
  file.write(group + "/edges", {n, 31}, edges);
  file.write(group + "/counts", {n, 30}, counts);
}

void put_head(hdf5::Writer& file) {
  file.attribute("/", "format", "cifar_mpi summaries");
  file.attribute("/", "version", 1);
}

TEST(Quantile, LiesBetweenTheEdgesOfItsBucket) {
  engine::ValueCounts counts = four_values();
  EXPECT_EQ(quantile(counts, 0.0), -1.0);
  EXPECT_EQ(quantile(counts, 0.5), 4.25);
  EXPECT_EQ(quantile(counts, 1.0), 14.0);
  counts.buckets[0] = counts.buckets[29] = 0;
  EXPECT_EQ(quantile(counts, 0.0), 4.0) << "empty buckets hold no value";
  EXPECT_EQ(quantile(counts, 1.0), 4.5);
  counts.edges[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(quantile(counts, 0.5)));
  EXPECT_TRUE(std::isnan(quantile({}, 0.5)));
}

TEST(Summaries, BecomeAFigureForEachTensor) {
  const TempDir folder;
  const std::string path = folder / "summaries.h5";
  {
    hdf5::Writer file;
    put_head(file);
    put_group(file, "/variables/conv1/weights");
    put_group(file, "/variables/conv1/biases");
    put_group(file, "/gradients/conv1/weights");
    put_group(file, "/activations/conv1");
    file.write("/activations/conv1/sparsity", {2}, std::vector<double>{0.25, 0.5});
    file.write("/images", {2, 1, 1, 3}, std::vector<std::uint8_t>{1, 2, 3, 4, 5, 6});
    file.save(path);
  }
  page::Run run;
  run.summaries = read_summaries(path);
  const Summaries& s = *run.summaries;
  ASSERT_EQ(s.variables.size(), 2u);
  EXPECT_EQ(s.variables[1].name, "conv1/weights");
  constexpr std::array<double, 5> kExpected{-1.0, -0.9, 4.25, 13.9, 14.0};
  for (std::size_t i = 0; i < kExpected.size(); ++i)
    EXPECT_NEAR(s.variables[1].quantiles[1][i], kExpected[i], 1e-12);
  EXPECT_EQ(s.activations[0].name, "conv1");
  EXPECT_EQ(s.activations[0].zeros, (std::vector<double>{0.25, 0.5}));
  const std::vector<Chart> charts = distribution_charts(run, s.gradients, "gradient");
  ASSERT_EQ(charts.size(), 1u);
  EXPECT_EQ(charts[0].series.size(), 3u);
  EXPECT_EQ(charts[0].series[0].points[1].value, 4.25);
  const std::string pictures = input_images_html(run);
  EXPECT_TRUE(contains(pictures, bitmap_of(&s.images.pixels[3], {1, 1, 3}).address()));
  EXPECT_EQ(zeros_chart(run).series[0].points[1].value, 0.5);
}

TEST(Summaries, AreCutToWhatOneLooksAt) {
  const TempDir folder;
  hdf5::Writer file;
  put_head(file);
  std::vector<std::uint64_t> steps(1000);
  for (std::size_t i = 0; i < steps.size(); ++i) steps[i] = i;
  for (int i = 0; i < 30; ++i)
    put_group(file, "/variables/" + std::to_string(i), i == 0 ? steps : std::vector<std::uint64_t>{1});
  file.save(folder / "s.h5");
  page::Run run;
  run.summaries = read_summaries(folder / "s.h5");
  EXPECT_EQ(run.summaries->variables.size(), 24u);
  EXPECT_EQ(run.summaries->left_out, 6u);
  const std::vector<Chart> charts = distribution_charts(run, run.summaries->variables, "v");
  EXPECT_EQ(charts[0].series[0].points.size(), 80u);
  EXPECT_EQ(charts[0].series[0].points.back().x[0], 999.0);
}

TEST(Summaries, AreRefusedWhereTheyAreOfAnotherProgramOrVersion) {
  const TempDir folder;
  const std::string path = folder / "s.h5";
  const auto refused = [&](const char* part, const std::function<void(hdf5::Writer&)>& make) {
    hdf5::Writer file;
    make(file);
    file.save(path);
    expect_error(ErrorKind::checkpoint, {path, part}, [&] { read_summaries(path); });
  };
  refused("no cifar_mpi summaries", [](hdf5::Writer&) {});
  refused("version 2", [](hdf5::Writer& file) {
    file.attribute("/", "format", "cifar_mpi summaries");
    file.attribute("/", "version", 2);
  });
}

}  // namespace
}  // namespace cifar_mpi::page
