#include "page/chart.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "support/contains.hpp"

namespace cifar_mpi::page {
namespace {

Chart small_chart() {
  Chart chart;
  chart.id = "loss";
  chart.title = "Loss & <more>";
  Series series;
  series.name = "run \"</script>\"";
  series.band = "all";
  for (int i = 0; i <= 4; ++i) {
    const double x = i;
    series.points.push_back({{x, x / 10, 60 * x}, 9.0 - x, 10.0 - x, 12.0 - x});
  }
  series.points.insert(series.points.begin() + 2,
                       {{1.5, 0.15, 90.0}, std::nan(""), std::nan(""), std::nan("")});
  chart.series.push_back(series);
  chart.marks.push_back({{2, 0.2, 120}, "fault", "rank 1 was <lost>"});
  return chart;
}

TEST(Scale, HasRoundLines) {
  const Scale scale = scale_for(0.3, 4.6, 4, true);
  EXPECT_EQ(scale.low, 0.0);
  EXPECT_EQ(scale.ticks, (std::vector<double>{0, 2, 4, 6}));
  EXPECT_EQ(scale.high, 6.0);
  EXPECT_EQ(scale.place(3.0), 0.5);
  const Scale inside = scale_for(0.0, 781.0, 5, false);
  EXPECT_EQ(inside.high, 781.0);
  EXPECT_EQ(inside.ticks, (std::vector<double>{0, 200, 400, 600}));
}

TEST(Scale, HoldsWhateverThereIs) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  for (const auto& [low, high] : std::vector<std::pair<double, double>>{{0, 0},
                                                                        {5, 5},
                                                                        {-3, -3},
                                                                        {nan, 1},
                                                                        {inf, -inf},
                                                                        {-1e99, 1e99},
                                                                        {1e-300, 2e-300},
                                                                        {5e-324, 1e-323},
                                                                        {0, 5e-324},
                                                                        {1e-310, 3e-310},
                                                                        {-1e307, 1e307},
                                                                        {1, 1 + 1e-15}}) {
    for (const bool whole : {true, false}) {
      const Scale scale = scale_for(low, high, 4, whole);
      EXPECT_LT(scale.low, scale.high) << low << ' ' << high;
      EXPECT_LT(scale.ticks.size(), 20u) << low << ' ' << high;
      if (low <= high) {
        EXPECT_LE(scale.low, low);
        EXPECT_GE(scale.high, high);
      }
    }
  }
}

TEST(Figure, SaysInWordsWhatItShows) {
  const std::string page = figure_html(small_chart());
  EXPECT_TRUE(contains(page,
                       "Loss &amp; &lt;more&gt; over step, 1 line. run &quot;&lt;/script&gt;&quot;: from "
                       "10.00 at step 0 to 6.00 at step 4, least 5.00, most "
                       "12.00. rank 1 was &lt;lost&gt; at step 2."));
  for (const char* part : {"over epoch", "over time", "role=\"img\"", "<details><summary>Table: Loss",
                           "tabindex=\"0\"", "title=\"rank 1 was &lt;lost&gt;\""})
    EXPECT_TRUE(contains(page, part));
  EXPECT_FALSE(contains(page, "<more>"));
  EXPECT_FALSE(contains(page, "nan"));
}

TEST(Figure, LeavesOutWhatHasNoPlace) {
  Chart chart = small_chart();
  chart.marks.push_back({{3, std::nan(""), 1e300}, "stop", "asked to stop"});
  chart.series[0].points.push_back({{5, 0.5, 300}, 1e300, 1e300, 1e300});
  const std::string page = figure_html(chart);
  EXPECT_TRUE(contains(page, "M0 0H2000\"/>"));
  EXPECT_FALSE(contains(page, "nan"));
  EXPECT_FALSE(contains(page, std::to_string(std::lround(1e300))));
  std::size_t flags = 0;
  for (std::size_t at = page.find(">stop<"); at != std::string::npos; at = page.find(">stop<", at + 1))
    ++flags;
  EXPECT_EQ(flags, 1u) << "over steps alone";
}

TEST(Figure, ShowsNoShareBeyondAll) {
  Chart chart = small_chart();
  chart.unit = Unit::share;
  chart.from_zero = true;
  chart.series[0].points = {{{0, 0, 0}, 0.5, 0.5, 0.5}, {{1, 1, 1}, 1.0, 1.0, 1.0}};
  const std::string page = figure_html(chart);
  EXPECT_TRUE(contains(page, ">100 %</span>"));
  EXPECT_FALSE(contains(page, ">150 %</span>"));
}

TEST(Figure, LiftsThePenWhereAValueIsMissing) {
  const std::string page = figure_html(small_chart());
  const std::size_t line = page.find("class=\"line s0\" d=\"M0 ", page.find("class=\"mark\""));
  ASSERT_NE(line, std::string::npos) << page;
  const std::string path = page.substr(line, page.find("/>", line) - line);
  EXPECT_EQ(std::count(path.begin(), path.end(), 'M'), 2) << path;
}

TEST(Figure, GivesItsValuesToTheScript) {
  const std::string json = figure_json(small_chart());
  EXPECT_FALSE(contains(json, "</"));
  for (const char* part :
       {"\"step\":[0,1,1.5,2,3,4]", "\"time\":[0,60,90,120,180,240]", "\"value\":[10,9,null,8,7,6]",
        "\"low\":[9,8,null,7,6,5]", "\"range\":{\"step\":[0,4],"})
    EXPECT_TRUE(contains(json, part));
}

}  // namespace
}  // namespace cifar_mpi::page
