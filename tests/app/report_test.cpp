#include "app/programs.hpp"

/// cifar_mpi_report as users start it; tests/page tests its text and drawings.
namespace cifar_mpi::test {
namespace {

class ReportProgram : public Programs {};

TEST_F(ReportProgram, TellsOfARunAndWritesItsPage) {
  ASSERT_EQ(run_command(kTrain + small("reported") + " --log-every 1").code, 0);
  const std::string report = output_of(run_command(kReport + " " + file("reported")));
  EXPECT_TRUE(contains(report, "ended with code 0: done"));
  EXPECT_TRUE(contains(report, "step 2 of 2"));
  EXPECT_TRUE(contains(report, file("reported/report.html")));
  EXPECT_FALSE(contains(report, "warning"));
  const std::string page = read_file(file("reported/report.html"));
  for (const char* part : {"id=\"loss\"", "id=\"accuracy\"", "All settings", "h5dump -n"})
    EXPECT_TRUE(contains(page, part));
  EXPECT_EQ(run_command(kTrain + small("reported")).code, 0) << "the page disturbs no run";
  const std::string none =
      "  no step was sampled since the run resumed at step 30: the numbers are of earlier";
  EXPECT_EQ(count_lines_with(run_command(kTrain + small("reported") + " --steps 30").output, none), 0);
  EXPECT_EQ(count_lines_with(run_command(kTrain + small("reported") + " --steps 32").output, none), 1);
  EXPECT_EQ(count_lines_with(run_command(kReport + " " + file("reported")).output, none), 1);
}

TEST_F(ReportProgram, EndsWithTheCodeOfWhatIsWrong) {
  ASSERT_EQ(run_command("mkdir -p " + file("bare") + " && echo 0 done > " + file("bare/exit")).code, 0);
  expect_refusal(run_command(kReport), 2,
                 "run-dir is missing; example: cifar_mpi_report runs/tutorial; see --help");
  expect_refusal(run_command(kReport + " " + file("nowhere")), 4, "nowhere does not exist");
  expect_refusal(run_command(kReport + " " + file("small.h5")), 4, "is not a folder");
  const std::string goal = " --goal " + file("step.goal");
  expect_refusal(run_command(kReport + " " + file("bare") + goal), 2, "--goal needs --forecast");
  expect_refusal(run_command(kReport + " " + file("bare") + " --forecast 4 --link 1us,1gbit" + goal), 4,
                 "nothing can be forecast from it");
  for (const char* const list : {" --forecast 4,", " --forecast=,4", " --forecast 2 4,,8"})
    expect_refusal(run_command(kReport + " " + file("bare") + list + " --link 1us,1gbit"), 2,
                   "--forecast has an empty value in '");
  expect_refusal(run_command(kReport + " x --forecast 4,"), 2,
                 "in '4,', as from an unset variable; give one, or leave it out");
  expect_refusal(run_command(kReport + " " + file("bare") + " --html " + file("none/page.html")), 5,
                 "none/page.html");
  const Outcome folder = run_command(kReport + " " + file("bare") + " --html " + file("bare"));
  expect_refusal(folder, 5, "it exists and is not a regular file (a folder); name a file");
  EXPECT_EQ(count_lines_with(folder.output, "state"), 0) << folder.output;
  expect_refusal(run_command(kReport + " " + file("bare") + " --html " + file("page.html") + " >/dev/full"),
                 5, "standard output could not be written");
}

}  // namespace
}  // namespace cifar_mpi::test
