#include <gtest/gtest.h>

#include "report/metrics_reader.hpp"
#include "train/run_facts.hpp"
#include "train/run_fixture.hpp"

namespace cifar_mpi::train {
namespace {

TEST(HostsText, CountsTheRanksOfEachHost) {
  EXPECT_EQ(hosts_text({"a", "a", "b", "a"}), "a x 2, b x 1, a x 1");
  EXPECT_EQ(hosts_text({}), "");
  std::vector<std::string> many;
  for (int i = 0; i < 10000; ++i) many.push_back("node" + std::to_string(i));
  EXPECT_LT(hosts_text(many).size(), 4200u);
}

TEST(RepeatText, SaysWhyAllStepsAreRepeated) {
  EXPECT_EQ(repeat_text(21, 28), "the previous start logged step 28: this start repeats 7 steps");
  EXPECT_EQ(
      repeat_text(0, 1),
      "the previous start logged step 1: this start repeats 1 step, because the run directory holds no later "
      "checkpoint");
}

using RunEventsTest = RunTest;

/// KIND@STEP of each event, and the rest of its text.
std::string told(const std::string& run_dir) {
  const report::Metrics metrics = report::read_metrics(run_dir + "/metrics.jsonl");
  EXPECT_TRUE(metrics.problems.empty()) << metrics.problems.front();
  std::string text;
  for (const report::RunEvent& event : metrics.events) {
    text += std::string(to_string(event.kind)) + "@" + std::to_string(event.step);
    if (event.reached > event.step) text += " reached " + std::to_string(event.reached);
    if (!event.text.empty()) text += " (" + event.text.substr(0, 28) + ")";
    text += "\n";
  }
  return text;
}

TEST_F(RunEventsTest, TellOfStartsStopsResumesAndEnds) {
  config::TrainConfig c = config();
  c.log_every = 1;
  stop_ = 1;
  EXPECT_THROW(run(c), comm::AgreedError);
  stop_ = 0;
  run_loop(*start(c), "75 stopped on request");
  on_rank_zero([&] {
    EXPECT_EQ(told(c.run_dir),
              "start@0\nstop@2 (stopped on request at step 2)\nresume@2 (75 stopped on request)\nend@4\n");
    const report::Metrics metrics = report::read_metrics(c.run_dir + "/metrics.jsonl");
    const report::RunEvent& first = metrics.events.front();
    EXPECT_EQ(first.ranks, world().size());
    EXPECT_EQ(first.hosts, hosts_text(world().hosts()));
    EXPECT_EQ(first.global_batch, 12u);
    EXPECT_EQ(first.total_steps, 4u);
    EXPECT_FALSE(first.time.empty());
    // As if it had been killed at step 6 after its checkpoint of step 4.
    write_file(c.run_dir + "/metrics.jsonl",
               read_file(c.run_dir + "/metrics.jsonl") + "{\"step\":6,\"cross_entropy\":2}\n");
  });
  c.steps = 5;
  run(c);
  on_rank_zero([&] {
    EXPECT_TRUE(told(c.run_dir).ends_with("end@4\nresume@4 reached 6\nend@5\n")) << told(c.run_dir);
  });
}

TEST_F(RunEventsTest, TellWhyARunFailed) {
  config::TrainConfig c = config();
  c.lr = 1e8;
  c.steps = 40;
  EXPECT_THROW(run(c), comm::AgreedError);
  on_rank_zero([&] {
    EXPECT_TRUE(told(c.run_dir).starts_with("start@0\nfault@")) << told(c.run_dir);
    EXPECT_NE(told(c.run_dir).find("(diverged: the loss of step"), std::string::npos) << told(c.run_dir);
  });
}

}  // namespace
}  // namespace cifar_mpi::train
