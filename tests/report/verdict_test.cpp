#include "cifar_mpi/report/verdict.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "report/made_timeline.hpp"
#include "support/contains.hpp"

namespace cifar_mpi::report {
namespace {

using namespace made;

std::vector<std::string> verdict_of(const Timeline& timeline) {
  return verdict(efficiencies(timeline), timeline);
}
std::string sentence_of(const Timeline& timeline) { return verdict_of(timeline).front(); }

/// The line that begins with this.
std::string line_of(const std::vector<std::string>& lines, const std::string& begin) {
  const auto line = std::find_if(lines.begin(), lines.end(),
                                 [&](const std::string& text) { return text.starts_with(begin); });
  return line == lines.end() ? "no line " + begin : *line;
}

/// A step of 50 ms that loses nearly nothing.
Line good_line() {
  return {{kAugment, 1},   {kForward, 20}, {kBackward1, 10}, {kBackward2, 17.5},
          {kBucket0, 0.2}, {kUpdate0, 1},  {kNobody, 0.3}};
}

TEST(Verdict, SaysThatAllIsWell) {
  EXPECT_EQ(sentence_of(timeline({{good_line(), good_line()}}, true)),
            "0.99: nothing to gain from faster communication: ranks compute 49.5 of 50.0 ms");
  EXPECT_EQ(sentence_of(timeline({{good_line()}})),
            "0.99: one rank, which computes 49.5 of 50.0 ms: nothing is exchanged");
}

TEST(Verdict, HasALineForEachNumber) {
  const std::vector<Line> step = {good_line(), good_line()};
  const std::vector<std::string> lines = verdict_of(timeline({step, step, step, step, step}));
  EXPECT_EQ(
      std::vector<std::string>(lines.begin() + 1, lines.end()),
      (std::vector<std::string>{"parallel efficiency      0.99  load balance 1.00 x serialization 0.99 x "
                                "transfer 1.00: ranks compute 49.5 of 50.0 ms",
                                "load balance             1.00  ranks compute for about the same time",
                                "load balance per step    1.00  no other imbalance shows in single steps",
                                "communication efficiency 0.99  serialization x transfer",
                                "serialization            0.99  ranks are ready for each other",
                                "transfer                 1.00  all-reduces are hidden or short"}));
}

// Of 48 ms of work and 16 of waiting, 15 are for bucket 1, which takes 17 after bucket 0, of whose 5 only 1
// is exposed. With the times halved bucket 1 takes 8.5 from 44 on, and the step ends at 54.5: 9.5 less. With
// twice the batch work takes 44 ms more, and the 17 stay: 256 images in 107 ms instead of 128 in 64, 1.2
// times.
TEST(Verdict, NamesTheBucketThatRanksWaitFor) {
  const Line line = {{kForward, 20}, {kBackward1, 20}, {kBackward2, 4}, {kBucket0, 1},
                     {kUpdate0, 2},  {kBucket1, 15},   {kUpdate1, 2}};
  const Timeline run = timeline({{line, line}}, true);
  const std::string sentence =
      "ranks wait 16.0 of 64.0 ms for bucket 1 between nodes; --wire bf16 would halve that, twice the batch "
      "per rank (256 images) would give 1.2 times the images/s";
  EXPECT_EQ(sentence_of(run), "0.75: " + sentence);
  EXPECT_EQ(line_of(verdict_of(run), "transfer"), "transfer                 0.75  " + sentence);
}

// Bucket 0 takes 30 ms, 20 of them during backward, which with twice the batch takes 40.
TEST(Verdict, SaysWhatWouldHideTheNetwork) {
  const Line line = {{kForward, 20}, {kBackward1, 6}, {kBackward2, 20}, {kBucket0, 10}, {kUpdate0, 4}};
  Timeline run = timeline({{line, line}}, true);
  EXPECT_EQ(sentence_of(run),
            "0.83: ranks wait 10.0 of 60.0 ms for bucket 0 between nodes; --wire bf16 would hide it, twice "
            "the batch per rank (256 images) would hide it");
  run.wire = "bf16";
  EXPECT_EQ(sentence_of(run),
            "0.83: ranks wait 10.0 of 60.0 ms for bucket 0 between nodes; twice the batch per rank (256 "
            "images) would hide it");
  run.wire = "fp32";
  run.reproducible = true;  // takes no other wire
  EXPECT_FALSE(contains(sentence_of(run), "--wire"));
  run.reproducible = false;
  run.collective = "mpi";  // leaves its messages to the MPI library
  EXPECT_FALSE(contains(sentence_of(run), "--wire"));
}

// Both buckets after all of backward: 10 and 6 ms.
TEST(Verdict, RecommendsOverlapWhereThereIsNone) {
  const Line line = {{kForward, 20}, {kBackward1, 10}, {kBackward2, 10},
                     {kBucket0, 10}, {kUpdate0, 1},    {kBucket1, 6}};
  Timeline run = timeline({{line, line}}, true);
  run.tasks[kBucket0].after = run.tasks[kBucket1].after = {kBackward2};
  EXPECT_EQ(sentence_of(run),
            "0.72: ranks wait 16.0 of 57.0 ms for all-reduces between nodes; --overlap on would run it "
            "concurrently with backward, --wire bf16 would halve that, twice the batch per rank (256 images) "
            "would give 1.2 times the images/s");
  run.tasks[kBucket1].kind = engine::TaskKind::work;  // a model with one bucket
  EXPECT_TRUE(contains(sentence_of(run), "a smaller --bucket-mib would start a part of it sooner"));
}

TEST(Verdict, RecommendsSharedMemoryInsideANode) {
  const Line line = {{kForward, 20}, {kBackward1, 20}, {kBucket0, 10}, {kUpdate0, 1}};
  Timeline run = timeline({{line, line}});
  run.collective = "ring";
  EXPECT_EQ(sentence_of(run),
            "0.80: ranks wait 10.0 of 51.0 ms for bucket 0 inside the node; --all-reduce auto would use "
            "shared memory, twice the batch per rank (256 images) would give 1.1 times the images/s");
  run.collective = "doubling";
  EXPECT_TRUE(contains(sentence_of(run), "--all-reduce"));
  run.reproducible = true;  // adds in a fixed tree
  EXPECT_FALSE(contains(sentence_of(run), "--all-reduce"));
  run.reproducible = false;
  run.collective = "window";
  EXPECT_FALSE(contains(sentence_of(run), "--all-reduce"));
  run.collective = "server, rank 2";
  EXPECT_EQ(sentence_of(run),
            "0.80: ranks wait 10.0 of 51.0 ms for the servers inside the node; more --servers would share "
            "their work, twice the batch per rank (256 images) would give 1.1 times the images/s");
}

// Another batch does not make the parts of every local step rarer.
TEST(Verdict, RecommendsMoreLocalSteps) {
  const Line slow = {{kForward, 20}, {kBackward1, 20}, {kBucket0, 10}, {kUpdate0, 1}};
  Timeline run = timeline({{slow, slow}}, true);
  run.program = kLocalSteps;
  const std::string sentence = sentence_of(run);
  EXPECT_TRUE(sentence.ends_with("twice the --local-steps would halve its share")) << sentence;
  EXPECT_NE(sentence_of(timeline({{slow, slow}}, true)), sentence);
  const Line work = {{kAugment, 0.2}, {kForward, 1.3}, {kBackward1, 1.5}, {kUpdate0, 1.5}, {kUpdate1, 0.5}};
  run = timeline({{work, work}});
  EXPECT_TRUE(contains(sentence_of(run), "batch"));
  run.program = kLocalSteps;
  EXPECT_FALSE(contains(sentence_of(run), "batch"));
  const std::vector<std::string> lines = verdict_of(run);
  EXPECT_EQ(std::count(lines.begin(), lines.end(),
                       "a step here is all local steps between two averagings plus the averaging"),
            1);
}

// 4 MB in 10 ms is slower than any memory; in 3.9 ms it is not.
TEST(Verdict, SaysThatRanksWaitForTheirCoresInsideANode) {
  const auto sentence = [](double ms) {
    const Line line = {{kForward, 20}, {kBackward1, 20}, {kBucket0, ms}, {kUpdate0, 1}};
    return sentence_of(timeline({{line, line}}));
  };
  const std::string part = "inside the node; memory access explains only a part of that: ranks share cores";
  EXPECT_TRUE(contains(sentence(10), part));
  EXPECT_FALSE(contains(sentence(3.9), part));
}

// With twice the batch the 4 ms stay, of 196: 1.02 times the images/s.
TEST(Verdict, RecommendsNothingThatGainsNothing) {
  const Line line = {{kForward, 60}, {kBackward1, 36}, {kBucket0, 4}};
  EXPECT_EQ(sentence_of(timeline({{line, line}})),
            "0.96: ranks wait 4.0 of 100.0 ms for bucket 0 inside the node");
}

// Rank 1 computes 60 ms, the others 50 and wait 9 for it: at their pace a step would take 50.
TEST(Verdict, NamesTheRankThatIsSlowInEveryTask) {
  const Line fast = {{kForward, 20}, {kBackward1, 25}, {kBucket0, 9}, {kUpdate0, 5}};
  const Line slow = {{kForward, 24}, {kBackward1, 30}, {kUpdate0, 6}};
  EXPECT_EQ(sentence_of(timeline({{fast, slow, fast}}, true)),
            "0.89: rank 1 on node2 computes 20 % slower in every task; at the others' pace a step would take "
            "about 50.0 instead of 60.0 ms: look for other work on its cores, a lower clock, or fewer "
            "--threads than elsewhere");
}

TEST(Verdict, NamesTheTaskInWhichRanksAreSlow) {
  const Line fast = {{kForward, 20}, {kBackward1, 25}, {kBucket0, 10}, {kUpdate0, 5}};
  const Line slow = {{kForward, 20}, {kBackward1, 35}, {kUpdate0, 5}};
  Timeline run = timeline({{fast, fast, slow, slow}});
  for (std::size_t r = 2; r < 4; ++r) run.hosts[r] = "node2";
  const std::string sentence = sentence_of(run);
  EXPECT_TRUE(
      sentence.starts_with("0.92: ranks 2 and 3 on node2 compute 20 % slower mostly in local3 weight "
                           "gradient (10.0 ms); at the others' pace"))
      << sentence;
}

// Rank 0 computes as long as rank 1 in two steps of three, and twice as long in the third: 4/3 in the mean.
TEST(Verdict, SaysWhereARankIsSlowInFewSteps) {
  const Line usual = {{kForward, 20}, {kBackward1, 25}, {kUpdate0, 5}};
  const Line twice = {{kForward, 40}, {kBackward1, 50}, {kUpdate0, 10}};
  const Line waits = {{kForward, 20}, {kBackward1, 25}, {kBucket0, 45}, {kUpdate0, 5}};
  const std::string sentence = sentence_of(timeline({{usual, usual}, {twice, waits}, {usual, usual}}));
  EXPECT_TRUE(
      sentence.starts_with("0.88: rank 0 on node1 computes 33 % slower in every task, but only in 1 of 3 "
                           "steps; at the others' pace a step would take about 50.0 instead of 66.7 ms: "))
      << sentence;
}

// Three of four are at the pace of the slowest: none stands out.
TEST(Verdict, NamesNobodyWhereMostAreSlow) {
  const Line fast = {{kBackward1, 30}, {kBucket0, 20}, {kUpdate0, 5}};
  const Line slow = {{kBackward1, 50}, {kUpdate0, 5}};
  EXPECT_EQ(sentence_of(timeline({{fast, slow, slow, slow}})),
            "0.91: ranks compute for 35.0 to 55.0 ms and wait 5.0 of 55.0 ms for the slowest");
}

TEST(Verdict, SaysThatTheSlowestRankIsAnotherInEachStep) {
  const Line slow = {{kBackward1, 45}, {kUpdate0, 5}};
  const Line fast = {{kBackward1, 35}, {kBucket0, 10}, {kUpdate0, 5}};
  const std::vector<std::string> lines =
      verdict_of(timeline({{slow, fast}, {fast, slow}, {fast, slow}, {slow, fast}}));
  const std::string sentence =
      "ranks wait 5.0 of 50.0 ms for a slowest rank that changes from step to step (it was rank 0 in 2 and "
      "rank 1 in 2 of 4 steps): other work on these machines, or ranks that share cores; give each its own "
      "(mpirun --bind-to core) and leave one free";
  EXPECT_EQ(lines.front(), "0.90: " + sentence);
  EXPECT_EQ(line_of(lines, "load balance per step"), "load balance per step    0.90  " + sentence);
  EXPECT_EQ(line_of(lines, "serialization"), "serialization            0.90  see load balance per step");
}

// Rank 0 computes 70, 50 and 70 ms, rank 1 50, 60 and 50: 20 of 25 ms of waiting are for rank 0, which is not
// slower but happened to be slow twice. (190 - 175) / 3 of imbalance and (200 - 190) / 3 of wandering are one
// matter.
TEST(Verdict, TakesTheRestOfAWanderingImbalanceForNoSlowRank) {
  const auto line = [](double ms, double waits) { return Line{{kBackward1, ms}, {kBucket0, waits}}; };
  const std::vector<std::string> lines = verdict_of(
      timeline({{line(70, 0), line(50, 20)}, {line(50, 10), line(60, 0)}, {line(70, 0), line(50, 20)}}));
  EXPECT_TRUE(
      lines.front().starts_with("0.88: ranks wait 8.3 of 66.7 ms for a slowest rank that changes from step "
                                "to step (it was rank 0 in 2 and rank 1 in 1 of 3 steps): "))
      << lines.front();
  EXPECT_EQ(line_of(lines, "load balance  "), "load balance             0.92  see load balance per step");
}

TEST(Verdict, SaysThatRanksAreSlowInDifferentTasks) {
  const Line first = {{kBackward1, 30}, {kUpdate0, 10}, {kBucket1, 20}};
  const Line second = {{kBackward1, 10}, {kBucket0, 20}, {kUpdate0, 30}};
  Timeline run = timeline({{first, second}});
  run.tasks[kBucket1].after = {kUpdate0};
  EXPECT_TRUE(
      sentence_of(run).starts_with("0.67: ranks wait 20.0 of 60.0 ms because they begin a step at different "
                                   "times, or are slow in different tasks of it: "))
      << sentence_of(run);
}

TEST(Verdict, NamesWorkOfTheHostBetweenStepsAndInsideOfThem) {
  const Line between = {{kForward, 20}, {kBackward1, 20}, {kUpdate0, 2}, {kNobody, 8}};
  EXPECT_EQ(sentence_of(timeline({{between, between}})),
            "0.84: in 8.0 of 50.0 ms no task runs, mostly between steps: the host does other work; larger "
            "--log-every, --check-every and --checkpoint-every reduce it");
  const Line inside = {{kForward, 20}, {kNobody, 8}, {kBackward1, 20}, {kUpdate0, 2}};
  EXPECT_EQ(sentence_of(timeline({{inside, inside}})),
            "0.84: in 8.0 of 50.0 ms no task runs, mostly within steps: the host does other work; other "
            "processes use its cores");
}

/// The CPU time of each rank's work in all steps, in ms.
void set_work_cpu(Timeline& run, const std::vector<double>& ms) {
  for (Timeline::Step& step : run.steps) {
    for (std::size_t r = 0; r < ms.size(); ++r) step.ranks[r].work_cpu_ns = ns(ms[r]);
  }
}

// Rank 1 shares its core; a rank alone does, too.
TEST(Verdict, NamesTheRankWhoseWorkHasNoCore) {
  const Line line = {{kForward, 30}, {kBackward1, 20}, {kBucket0, 3}, {kUpdate0, 5}};
  Timeline run = timeline({{line, line}, {line, line}}, true);
  set_work_cpu(run, {54.2, 36.5});
  EXPECT_EQ(
      sentence_of(run),
      "0.95: rank 1 on node2 has no core for its work in 18.5 of 58.0 ms, because other programs or other "
      "threads of this run occupy it: end those programs, start fewer ranks or --threads, or give each rank "
      "its own cores (mpirun --map-by slot:PE=THREADS --bind-to core)");
  Timeline alone = timeline({{line}});
  set_work_cpu(alone, {30.0});
  EXPECT_TRUE(contains(sentence_of(alone), "rank 0 on node1 has no core for its work in 25.0 of 58.0 ms"));
}

TEST(Verdict, FindsNoLostCoresInAHealthyRun) {
  const Line waits = {{kForward, 20}, {kBackward1, 20}, {kBucket0, 30}, {kUpdate0, 2}};
  for (const std::vector<double>& cpu : {std::vector<double>{41.8, 41.8},  // one thread; waiting is no work
                                         {36.0, 35.5},  // a team, for whose threads this one sleeps at times
                                         {44.0, 43.0},  // the clocks differ
                                         {-1.0, -1.0}}) {  // a GPU, or an old file
    Timeline run = timeline({{waits, waits}}, true);
    set_work_cpu(run, cpu);
    if (cpu[0] < 0.0) {
      for (RankStep& rank : run.steps[0].ranks) rank.work_cpu_ns = -1;
    }
    EXPECT_TRUE(sentence_of(run).starts_with("0.58: ranks wait 30.0 of 72.0 ms for bucket 0"))
        << sentence_of(run);
  }
  Timeline run = timeline({{good_line()}});
  set_work_cpu(run, {46.0});
  EXPECT_EQ(sentence_of(run), "0.99: one rank, which computes 49.5 of 50.0 ms: nothing is exchanged");
}

// 2 of 5 ms are updates: twice the batch makes 256 images in 8 ms of 128 in 5, 1.25 times.
// Rank 0 begins 30 ms after rank 1, and after its last task does something else for as long.
TEST(Verdict, NamesTheRankWhoseHostIsAtOtherWorkBetweenSteps) {
  Timeline run = timeline({{{}, {}}, {{}, {}}});
  const auto let_wait = [&](std::size_t late) {
    for (std::size_t s = 0; s < run.steps.size(); ++s) {
      const double begin = 1e4 * static_cast<double>(s);
      run.steps[s].ranks[late] = made::rank_step(
          {{kForward, 20}, {kBackward1, 20}, {kBucket0, 1}, {kUpdate0, 1}, {kNobody, 30}}, begin + 30);
      run.steps[s].ranks[1 - late] =
          made::rank_step({{kForward, 20}, {kBackward1, 20}, {kBucket0, 31}, {kUpdate0, 1}}, begin);
    }
  };
  let_wait(0);
  EXPECT_EQ(sentence_of(run),
            "0.57: ranks wait 30.0 of 72.0 ms for rank 0 on node1, whose host does other work between steps "
            "(30.0 ms): it writes the run's output; a larger --log-every writes less, and --run-dir may be "
            "on a slow file system");
  let_wait(1);
  EXPECT_EQ(sentence_of(run),
            "0.57: ranks wait 30.0 of 72.0 ms for rank 1 on node1, whose host does other work between steps "
            "(30.0 ms): look for other work on its cores");
}

TEST(Verdict, SaysThatTheBatchIsTooSmall) {
  const Line line = {{kAugment, 0.2}, {kForward, 1.3}, {kBackward1, 1.5}, {kUpdate0, 1.5}, {kUpdate1, 0.5}};
  Timeline run = timeline({{line, line}});
  run.images_per_rank = 8;
  EXPECT_EQ(
      sentence_of(run),
      "1.00: 2.0 of 5.0 ms of a step do not grow with the batch, because they are work on weights (update, "
      "copies for kernels); twice the batch per rank (16 images) would give 1.2 times the images/s");
  run.tasks[kAugment].name = "something else";  // without layers the verdict does not mention them
  EXPECT_FALSE(contains(sentence_of(run), "batch"));
}

// Bucket 0 takes 1.5 ms from 2.5 on. With twice the batch it is ready at 5 and ends at 6.5, half a ms after backward:
// 2 · 128 images in 8.5 ms instead of 128 in 6. In a step of 60 ms the network is the thing to inspect.
TEST(Verdict, CountsWaitingInShortStepsAsTooSmallABatch) {
  const auto step = [](double k) {
    return Line{{kAugment, 0.2 * k}, {kForward, 1.3 * k}, {kBackward1, k},    {kBackward2, 0.5 * k},
                {kBucket0, k},       {kUpdate0, 1.5 * k}, {kUpdate1, 0.5 * k}};
  };
  EXPECT_EQ(sentence_of(timeline({{step(1), step(1)}})),
            "0.83: 3.0 of 6.0 ms of a step do not grow with the batch, because 1.0 are waiting and 2.0 work "
            "on weights (update, copies for kernels); twice the batch per rank (256 images) would give 1.4 "
            "times the images/s");
  EXPECT_TRUE(sentence_of(timeline({{step(10), step(10)}}))
                  .starts_with("0.83: ranks wait 10.0 of 60.0 ms for bucket 0"));
}

// 2 of 5 ms are waiting and 0.5 updates: between nodes the network decides, inside a node only the batch.
TEST(Verdict, BlamesTheBatchForWaitingInsideANodeInShortSteps) {
  const Line line = {{kAugment, 0.2}, {kForward, 1.3}, {kBackward1, 1.0}, {kBucket0, 2.0}, {kUpdate0, 0.5}};
  EXPECT_TRUE(sentence_of(timeline({{line, line}}))
                  .starts_with("0.60: 2.5 of 5.0 ms of a step do not grow with the batch"));
  EXPECT_TRUE(
      sentence_of(timeline({{line, line}}, true)).starts_with("0.60: ranks wait 2.0 of 5.0 ms for bucket 0"));
}

TEST(Verdict, SaysThatInputIsSlow) {
  const Line line = {{kAugment, 15}, {kForward, 15}, {kBackward1, 15}, {kUpdate0, 1}};
  EXPECT_EQ(sentence_of(timeline({{line, line}})),
            "1.00: input takes 15.0 of 46.0 ms; more --threads per rank share it, a simpler --augment "
            "reduces it, and a node short of memory may be reading its images from swap");
}

TEST(Verdict, TellsOfComputationScaling) {
  const Line slow = {{kForward, 30}, {kBackward1, 30}}, fast = {{kForward, 25}, {kBackward1, 25}};
  const Timeline run = timeline({{slow, slow}}), baseline = timeline({{fast}});
  EXPECT_EQ(
      line_of(verdict(efficiencies(run, baseline), run), "computation scaling"),
      "computation scaling      0.83  an image takes 1.20 times the computing time that it takes on 1 rank: "
      "more ranks share caches, memory or the clock, or each image of a smaller batch carries more of the "
      "work that does not shrink with the batch");
  EXPECT_EQ(
      line_of(verdict(efficiencies(run, run), run), "computation scaling"),
      "computation scaling      1.00  an image takes 1.00 times the computing time that it takes on 2 ranks; "
      "a baseline with fewer ranks would show how it scales");
}

TEST(Verdict, SaysWhatItIsNotOf) {
  const std::string advice = "; train more steps: ten per epoch are sampled, but at most one in ten";
  EXPECT_EQ(verdict_of({}), std::vector<std::string>{"no verdict: no step was sampled" + advice});
  const Line line = good_line();
  EXPECT_EQ(verdict_of(timeline({{line, Line{}}, {Line{}, line}})),
            std::vector<std::string>{
                "no verdict: each sampled step lacks the record of a rank, or a part of it" + advice});
  Timeline some = timeline({{line, Line{}, line, Line{}}, {line, Line{}, Line{}, Line{}}});
  some.clock_uncertainty_ns = {0, 0, 1'500'000, 0};
  const std::vector<std::string> lines = verdict_of(some);
  EXPECT_EQ(
      std::vector<std::string>(lines.end() - 4, lines.end()),
      (std::vector<std::string>{"ranks 1 and 3 recorded no samples: the numbers cover the other 2 ranks",
                                "1 of 2 sampled steps lack a rank and are left out",
                                "only 1 sampled step: a longer run gives a more reliable verdict",
                                "the clocks of the hosts are known only to within 1.50 ms: the split between "
                                "transfer and serialization is as uncertain"}));
  const Efficiencies found = efficiencies(some);
  EXPECT_EQ(verdict(found, some, some.steps.back().step), lines);
  EXPECT_EQ(line_of(verdict(found, some, 101), "no step was sampled"),
            "no step was sampled since the run resumed at step 101: the numbers are of earlier steps");
}

}  // namespace
}  // namespace cifar_mpi::report
