#include "cifar_mpi/watch/watchdog.hpp"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/base/signals.hpp"
#include "cifar_mpi/base/text.hpp"
#include "watch/node_reports.hpp"
#include "watch/stall.hpp"

namespace cifar_mpi::watch {
namespace {

constexpr double kBetweenLooks = 0.25;
constexpr double kBetweenReports = 1.0;

/// Starts a thread that receives no signals.
template <class Work>
std::jthread start_thread(Work work) {
  const SignalBlock block;
  return std::jthread(std::move(work));
}

constexpr char kWaits = '=', kWorks = '-';

/// A line for each task.
std::string text_of(const engine::StepProgram& program) {
  std::string text;
  for (const engine::Task& task : program.tasks()) {
    text.append(1, task.kind == engine::TaskKind::collective ? kWaits : kWorks);
    text.append(task.name).append(1, '\n');
  }
  return text;
}

std::vector<WatchedTask> tasks_in(const std::string& text) {
  std::vector<WatchedTask> tasks;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) tasks.push_back({line.substr(1), line[0] == kWaits});
  return tasks;
}

void print(const std::string& text) {
  const std::string line = concat("cifar_mpi: ", text, '\n');
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

void sleep_s(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// A device that hangs in its self-check has failed it; all other stalls count as a lost peer.
ErrorKind code_of(const Stall& stall, const std::vector<RankStatus>& ranks) {
  using Reason = Stall::Reason;
  const bool in_work = stall.reason == Reason::stuck || stall.reason == Reason::waiting;
  const bool hangs = in_work && ranks[stall.culprit].activity == comm::Activity::checking;
  return hangs ? ErrorKind::device : ErrorKind::comm;
}

}  // namespace

struct Watchdog::State {
  State(const comm::World& the_world, WatchdogOptions chosen)
      : world(the_world),
        options(std::move(chosen)),
        hearts(the_world),
        node(hearts.of(0).rank),
        others(find_other_nodes(the_world, node)),
        judge(limits(options), static_cast<std::size_t>(hearts.self()), others.nodes) {}

  static StallLimits limits(const WatchdogOptions& options) {
    StallLimits limits;
    limits.timeout_s = options.timeout_s;
    return limits;
  }

  void run(const std::stop_token& over);
  std::vector<RankStatus> see() const;
  StallScene scene(const std::vector<RankStatus>& ranks) const {
    return {ranks, static_cast<std::size_t>(hearts.self()), world.host(), programs, judge.others()};
  }
  void hear(const std::vector<RankStatus>& ranks);
  void report(double now);
  void say_that_all_leave();
  void end_job(const Stall& stall, const std::vector<RankStatus>& ranks);
  void follow(std::size_t sender, const NodeReport& ending, const std::vector<RankStatus>& ranks);
  bool is_first_besides(std::size_t other) const;
  void tell(int code, const std::string& text) const;
  void leave_to_reporter(int code) const;

  const comm::World& world;
  WatchdogOptions options;
  comm::Heartbeats hearts;
  int node;  ///< its lowest rank
  OtherNodes others;
  StallJudge judge;
  double reported = 0.0;  ///< when this rank last reported for its node
  std::mutex mutex;       ///< of what follows
  std::condition_variable_any wake;
  std::vector<WatchedProgram> programs;
  std::jthread thread;  ///< last: it ends first
};

std::vector<RankStatus> Watchdog::State::see() const {
  std::vector<RankStatus> ranks;
  for (int place = 0; place < hearts.ranks(); ++place) {
    const comm::Heartbeat& heart = hearts.of(place);
    RankStatus status;
    status.gone = hearts.gone(place);
    status.rank = heart.rank.load(std::memory_order_relaxed);
    status.pid = hearts.pid(place);
    status.spare = heart.spare.load(std::memory_order_relaxed);
    status.logs = heart.logs.load(std::memory_order_relaxed);
    status.activity = heart.activity.load(std::memory_order_relaxed);
    status.step = heart.step.load(std::memory_order_relaxed);
    status.ticks = heart.ticks.load(std::memory_order_relaxed);
    status.progress = heart.progress.snapshot();
    status.waits = waits_for_others(status, tasks_of(status.rank, programs));
    ranks.push_back(status);
  }
  return ranks;
}

void Watchdog::State::run(const std::stop_token& over) {
  std::unique_lock lock(mutex);
  double last = steady_seconds();
  const auto is_over = [&] {
    wake.wait_for(lock, over, std::chrono::duration<double>(kBetweenLooks), [] { return false; });
    return over.stop_requested();
  };
  while (!is_over()) {
    hearts.mine().ticks.fetch_add(1, std::memory_order_relaxed);
    hearts.mine().logs.store(is_logging(), std::memory_order_relaxed);
    const double now = steady_seconds();
    const std::vector<RankStatus> ranks = see();
    hear(ranks);
    if (const std::optional<Stall> stall = judge.look(now, ranks)) {
      if (stall->ends) end_job(*stall, ranks);
      if (stall->reason != Stall::Reason::unheard || is_first_besides(stall->culprit))
        print(stall_text(*stall, scene(ranks)));
    }
    report(now);
    if (options.at_look) options.at_look(now - last);
    last = now;
  }
  say_that_all_leave();
}

void Watchdog::State::hear(const std::vector<RankStatus>& ranks) {
  if (!others.link) return;
  others.link->receive([&](std::size_t sender, const NodeReport& report) {
    judge.hear(sender, report.quiet);
    if (report.code != 0) follow(sender, report, ranks);
  });
}

void Watchdog::State::report(double now) {
  if (!others.link || !judge.speaks() || now - reported < kBetweenReports) return;
  others.link->send(judge.quiet());
  reported = now;
}

/// Called on the last rank of the node to exit: the other nodes need no more of its reports.
void Watchdog::State::say_that_all_leave() {
  if (!others.link) return;
  for (int place = 0; place < hearts.ranks(); ++place) {
    if (hearts.of(place).activity.load(std::memory_order_relaxed) != comm::Activity::leaving) return;
  }
  others.link->send(std::numeric_limits<double>::infinity());
}

/// Another rank of the node, or of another node, prints the message; this rank exits after it.
void Watchdog::State::leave_to_reporter(int code) const {
  sleep_s(kLastWords + 1.0);
  std::_Exit(code);
}

void Watchdog::State::tell(int code, const std::string& text) const {
  print(concat(text, "; ending the job; start it again"));
  if (!options.before_end) return;
  std::atomic<bool> done{false};
  start_thread([&] {
    options.before_end(code, text);
    done = true;
  }).detach();
  for (double waited = 0.0; !done && waited < kLastWords; waited += 0.01) sleep_s(0.01);
}

/// Does not return. Uses no MPI, stdio or destructors, because the hanging main thread may hold their locks.
void Watchdog::State::end_job(const Stall& stall, const std::vector<RankStatus>& ranks) {
  const int code = exit_code(code_of(stall, ranks));
  if (!hearts.elect_reporter()) leave_to_reporter(code);
  if (others.link) {
    const bool all_wait = stall.reason == Stall::Reason::waiting;
    const std::string text = all_wait ? std::string() : culprit_text(stall, scene(ranks));
    for (int times = 0; times < 3; ++times) others.link->send(judge.quiet(), code, text);
  }
  tell(code, stall_text(stall, scene(ranks)));
  // Lets another node print which rank waits there before the launcher ends it.
  if (others.link) sleep_s(2 * kBetweenLooks);
  std::_Exit(code);
}

/// Selects the one node, besides `other`, that prints.
bool Watchdog::State::is_first_besides(std::size_t other) const {
  for (std::size_t i = 0; i < others.first_ranks.size(); ++i) {
    if (i != other && others.first_ranks[i] < node) return false;
  }
  return true;
}

/// Another node ends the job. One of the remaining nodes prints which of its ranks waits for the rank that
/// hangs. That node exits first, because the launcher then ends the rest at once.
void Watchdog::State::follow(std::size_t sender, const NodeReport& ending,
                             const std::vector<RankStatus>& ranks) {
  if (!hearts.elect_reporter()) leave_to_reporter(ending.code);
  if (ending.text.front() != '\0' && is_first_besides(sender))
    tell(ending.code, ending.text.data() + waiter_text(scene(ranks), " on " + world.host()));
  leave_to_reporter(ending.code);
}

Watchdog::Watchdog(const comm::World& world, WatchdogOptions options)
    : state_(std::make_unique<State>(world, std::move(options))) {
  state_->thread = start_thread([state = state_.get()](const std::stop_token& over) { state->run(over); });
  world.started();
}

Watchdog::~Watchdog() { heart().activity.store(comm::Activity::leaving, std::memory_order_relaxed); }

comm::Heartbeat& Watchdog::heart() { return state_->hearts.mine(); }

void Watchdog::name_tasks(const engine::StepProgram& program) {
  const std::vector<std::string> texts = state_->world.gather(text_of(program));
  std::vector<WatchedProgram> programs;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (rank == 0 || texts[rank] != texts[rank - 1])
      programs.push_back({static_cast<int>(rank), tasks_in(texts[rank])});
  }
  const std::scoped_lock lock(state_->mutex);
  state_->programs = std::move(programs);
}

}  // namespace cifar_mpi::watch
