#include <gtest/gtest.h>

#include "cifar_mpi/report/step_budget.hpp"
#include "page/sections.hpp"
#include "support/contains.hpp"

namespace cifar_mpi::page {
namespace {

/// Rank 1 works 6 of 10 ms and waits 4, rank 0 the other way round.
report::Timeline two_ranks(std::size_t ranks = 2) {
  report::Timeline timeline;
  timeline.collective = "ring";
  timeline.wire = "fp<32>";
  timeline.tasks = {{"augment", engine::kCompute, engine::TaskKind::work, 0, {}},
                    {"all-reduce bucket 1", engine::kComm, engine::TaskKind::collective, 100, {0}}};
  timeline.hosts.assign(ranks, "host<1>");
  timeline.clock_uncertainty_ns.assign(ranks, 0);
  for (std::uint64_t step = 0; step < 3; ++step) {
    report::Timeline::Step sampled;
    sampled.step = 10 + step;
    const auto begin = static_cast<std::int64_t>(step) * 10'000'000;
    for (std::size_t r = 0; r < ranks; ++r) {
      const std::int64_t work = r % 2 == 0 ? 4'000'000 : 6'000'000;
      sampled.ranks.push_back(
          {begin, begin + 10'000'000, {{0, begin, begin + work}, {1, begin + work, begin + 10'000'000}}, 0});
    }
    timeline.steps.push_back(sampled);
  }
  return timeline;
}

page::Run run_with(report::Timeline timeline) {
  page::Run run;
  run.timeline = std::move(timeline);
  return run;
}

TEST(Budget, ShowsEachRanksStepAsABarWithWordsAndATable) {
  const std::string page = budget_html(run_with(two_ranks()));
  EXPECT_TRUE(contains(page,
                       "rank 1 on host&lt;1&gt;, 10.00 ms: input 6.00 ms, forward 0.00 ms, backward 0.00 ms, "
                       "all-reduce exposed 4.00 ms, update 0.00 ms, other 0.00 ms\""));
  EXPECT_TRUE(contains(page, "<span class=\"b0 p60\"></span><span class=\"b3 p40\">"));
  EXPECT_TRUE(contains(page,
                       "<tr><th scope=\"row\">augment</th><td "
                       "class=\"word\">input</td><td>5.00</td><td>4.00</td><td>6.00</td><td>1</td>"));
  EXPECT_TRUE(contains(page, "Mean of 3 sampled steps, 10 to 12; all-reduce ring, sent as fp&lt;32&gt;"));
  EXPECT_FALSE(contains(page, "<1>"));
}

TEST(Budget, OfManyRanksShowsThoseThatDifferMost) {
  const std::string page = budget_html(run_with(two_ranks(100)));
  std::size_t bars = 0;
  for (std::size_t at = page.find("class=\"bar\""); at != std::string::npos;
       at = page.find("class=\"bar\"", at + 1))
    ++bars;
  EXPECT_EQ(bars, 24u);
  EXPECT_TRUE(contains(page, "Of 100 ranks"));
}

TEST(Budget, IsNotThereWithoutATimeline) {
  EXPECT_EQ(budget_html(page::Run()), "");
  EXPECT_TRUE(verdict_of(page::Run(), nullptr).empty());
  EXPECT_EQ(verdict_html({}), "");
}

TEST(Verdict, IsASentenceAndAListOfNumbers) {
  const std::vector<std::string> lines = verdict_of(run_with(two_ranks()), nullptr);
  ASSERT_GT(lines.size(), 1u);
  const std::string page = verdict_html(lines);
  EXPECT_TRUE(contains(page, "<dt>load balance <b>0.83</b></dt><dd>"));
  EXPECT_EQ(verdict_html({"<b>", "no number <i>", ""}),
            "<p class=\"verdict\">&lt;b&gt;</p><dl class=\"numbers\"><dt>no number &lt;i&gt; "
            "<b></b></dt><dd></dd><dt> <b></b></dt><dd></dd></dl>");
}

}  // namespace
}  // namespace cifar_mpi::page
