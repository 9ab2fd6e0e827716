#include <string>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "support/launch_counter.hpp"
#include "train/run_fixture.hpp"

/// Ranks that share a communicator must make the same calls to it in the same order, and on GPUs capture and launch the same
/// graphs, whatever is observed, traced or resumed, and whichever rank writes it down.
namespace cifar_mpi::train {
namespace {

class UniformReplays : public RunTest {
 protected:
  /// The launches of this rank's run, one per line: program, replays, what is observed, and the exchanges of one replay.
  std::string launches_of(const config::TrainConfig& config) {
    const auto state = start(config);
    std::string lines;
    state->programs.step = noted(std::move(state->programs.step), lines);
    for (Programs::Next& next : state->programs.later) next.step = noted(std::move(next.step), lines);
    run(*state);
    return lines;
  }

  /// Those of each rank of [begin, end), on rank 0; nothing on the others.
  static std::vector<std::string> of_ranks(const std::string& mine, int begin, int end) {
    std::vector<std::string> texts;
    const auto all = world().collect(std::as_bytes(std::span(mine)));
    if (all.empty()) return texts;
    for (int rank = begin; rank < end; ++rank) {
      const auto& bytes = all[static_cast<std::size_t>(rank)];
      texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    return texts;
  }

  static void expect_equal_lines(const std::string& mine, int begin, int end) {
    for (const std::string& text : of_ranks(mine, begin, end)) EXPECT_EQ(text, mine);
  }

 private:
  /// A timeline has one list of tasks for all ranks.
  static std::string tasks_of(const engine::StepProgram& program) {
    std::string names;
    for (const engine::Task& task : program.tasks()) names += task.name + '\n';
    return concat(", ", program.tasks().size(), " tasks ", std::hash<std::string>()(names));
  }

  static std::string exchanges_of(const engine::StepProgram& program, bool look) {
    std::string text;
    for (const engine::Task& task : program.tasks()) {
      if (task.kind != engine::TaskKind::collective || (task.observer && !look)) continue;
      std::size_t bytes = 0;
      for (const engine::Bytes& range : task.writes) bytes += range.size;
      text += concat(", ", task.name, " of ", bytes, " bytes");
    }
    return text;
  }

  static std::unique_ptr<engine::Runner> noted(std::unique_ptr<engine::Runner> runner, std::string& lines) {
    auto seen = std::make_shared<const test::LaunchCounter*>(nullptr);
    auto counter = std::make_unique<test::LaunchCounter>(std::move(runner), [&lines, seen](int times) {
      const engine::Observation& now = (*seen)->observation();
      const engine::StepProgram& program = (*seen)->program();
      lines += concat(program.name(), " x ", times, now.look ? ", observed" : "",
                      now.recorder != nullptr ? ", recorded" : "", tasks_of(program),
                      exchanges_of(program, now.look), '\n');
    });
    *seen = counter.get();
    return counter;
  }
};

TEST_F(UniformReplays, HappenOnAllRanksThatShareACommunicator) {
  struct Case {
    comm::UpdateKind update;
    optim::OptimizerKind optimizer = optim::OptimizerKind::sgd;
  };
  for (const auto& [update, optimizer] :
       {Case{comm::UpdateKind::all_reduce}, Case{comm::UpdateKind::local}, Case{comm::UpdateKind::server},
        Case{comm::UpdateKind::all_reduce, optim::OptimizerKind::muon}}) {
    const int servers = update == comm::UpdateKind::server ? 1 : 0, workers = world().size() - servers;
    if (workers == 0) continue;
    config::TrainConfig c = config();
    c.update = update;
    if (servers > 0) c.servers = servers;
    if (update == comm::UpdateKind::local) c.local.steps = 2;
    c.batch_size = 12 / workers;
    c.optimizer.kind = optimizer;
    if (optimizer == optim::OptimizerKind::muon) c.share_matrices = comm::Share::on;
    c.run_dir = path(concat(to_string(update), "_", to_string(optimizer)));
    c.summary_every = 4;
    c.graph_steps = 2;
    c.log_every = 6;
    std::string lines;
    for (const int steps : {8, 14}) {  // the second run resumes the first
      c.steps = steps;
      c.trace = {static_cast<std::uint64_t>(steps - 1), static_cast<std::uint64_t>(steps)};
      lines += launches_of(c);
    }
    SCOPED_TRACE(c.run_dir);
    expect_equal_lines(lines, 0, workers);
    if (world().rank() > 0) continue;
    for (const char* const part : {", observed", ", recorded"})
      EXPECT_NE(lines.find(part), std::string::npos) << lines;
    EXPECT_EQ(lines.find(" x 2") != std::string::npos, update != comm::UpdateKind::local) << lines;
    EXPECT_EQ(lines.find(" bytes") != std::string::npos, world().size() > 1) << lines;
  }
}

}  // namespace
}  // namespace cifar_mpi::train
