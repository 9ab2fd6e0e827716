#include "cifar_mpi/watch/watchdog.hpp"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <span>
#include <sstream>
#include <thread>
#include <vector>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "watch/stall.hpp"

namespace cifar_mpi::watch {
namespace {

constexpr double kBetweenLooks = 0.25;

/// Starts a thread to which no signal is delivered: they are to interrupt what the main thread waits in.
template <class Work>
std::thread start_thread(Work work) {
  sigset_t all{};
  sigset_t before{};
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(work));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
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

/// A device that hangs in its self-check has failed it; all else is a peer that was lost.
ErrorKind code_of(const Stall& stall, const std::vector<RankStatus>& ranks) {
  const bool by_itself = stall.reason == Stall::Reason::gone || stall.reason == Stall::Reason::stopped;
  const bool hangs = !by_itself && ranks[stall.culprit].activity == comm::Activity::checking;
  return hangs ? ErrorKind::device : ErrorKind::comm;
}

}  // namespace

struct Watchdog::State {
  State(const comm::World& the_world, WatchdogOptions chosen)
      : world(the_world), options(std::move(chosen)), hearts(the_world), judge(limits(options)) {}

  static StallLimits limits(const WatchdogOptions& options) {
    StallLimits limits;
    limits.timeout_s = options.timeout_s;
    return limits;
  }

  void run();
  std::vector<RankStatus> see() const;
  std::vector<bool> who_waits(const std::vector<RankStatus>& ranks) const;
  void end_job(const Stall& stall, const std::vector<RankStatus>& ranks);

  const comm::World& world;
  WatchdogOptions options;
  comm::Heartbeats hearts;
  StallJudge judge;
  std::mutex mutex;  ///< of what follows
  std::condition_variable changed;
  bool over = false;
  std::vector<WatchedProgram> programs;
  std::thread thread;
};

std::vector<RankStatus> Watchdog::State::see() const {
  std::vector<RankStatus> ranks;
  for (int place = 0; place < hearts.ranks(); ++place) {
    const comm::Heartbeat& heart = hearts.of(place);
    RankStatus status;
    status.gone = hearts.gone(place);
    status.rank = heart.rank.load(std::memory_order_relaxed);
    status.pid = hearts.pid(place);
    status.activity = heart.activity.load(std::memory_order_relaxed);
    status.step = heart.step.load(std::memory_order_relaxed);
    status.ticks = heart.ticks.load(std::memory_order_relaxed);
    status.progress = heart.progress.snapshot();
    ranks.push_back(status);
  }
  return ranks;
}

/// In a step a rank waits in a collective; outside of one it takes part in a vote or another call of all
/// ranks, but for rank 0 at a checkpoint, which writes it.
std::vector<bool> Watchdog::State::who_waits(const std::vector<RankStatus>& ranks) const {
  std::vector<bool> waits;
  for (const RankStatus& rank : ranks) {
    const std::vector<WatchedTask>& tasks = tasks_of(rank.rank, programs);
    const auto task = static_cast<std::size_t>(rank.progress.task);
    if (rank.progress.task == engine::ProgressCounter::kNobody) {
      const bool checks = rank.activity == comm::Activity::checking && rank.step > 0;
      waits.push_back(!checks && (rank.activity != comm::Activity::saving || rank.rank != 0));
    } else {
      waits.push_back(rank.activity == comm::Activity::training && task < tasks.size() &&
                      tasks[task].collective);
    }
  }
  return waits;
}

void Watchdog::State::run() {
  std::unique_lock lock(mutex);
  double last = steady_seconds();
  while (!changed.wait_for(lock, std::chrono::duration<double>(kBetweenLooks), [this] { return over; })) {
    hearts.mine().ticks.fetch_add(1, std::memory_order_relaxed);
    const double now = steady_seconds();
    const std::vector<RankStatus> ranks = see();
    if (const std::optional<Stall> stall = judge.look(now, ranks, who_waits(ranks))) end_job(*stall, ranks);
    if (options.at_look) options.at_look(now - last);
    last = now;
  }
}

/// Does not return. Neither MPI nor stdio nor destructors: whatever the main thread hangs in may hold them.
void Watchdog::State::end_job(const Stall& stall, const std::vector<RankStatus>& ranks) {
  const int code = exit_code(code_of(stall, ranks));
  if (!hearts.elect_reporter()) {
    // Somebody else of the node is speaking; his words come first, his exit is as good.
    std::this_thread::sleep_for(std::chrono::duration<double>(kLastWords + 1.0));
    std::_Exit(code);
  }
  const auto self = static_cast<std::size_t>(hearts.self());
  const std::string text = stall_text(stall, ranks, self, world.host(), programs);
  const std::string line = concat("cifar_mpi: ", text, "; ending the job, start it again\n");
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  if (options.before_end) {
    std::atomic<bool> done{false};
    start_thread([&] {
      options.before_end(code, text);
      done = true;
    }).detach();
    for (double waited = 0.0; !done && waited < kLastWords; waited += 0.01) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  std::_Exit(code);
}

Watchdog::Watchdog(const comm::World& world, WatchdogOptions options)
    : state_(std::make_unique<State>(world, std::move(options))) {
  state_->thread = start_thread([state = state_.get()] { state->run(); });
  world.started();
}

Watchdog::~Watchdog() {
  heart().activity.store(comm::Activity::leaving, std::memory_order_relaxed);
  {
    const std::scoped_lock lock(state_->mutex);
    state_->over = true;
  }
  state_->changed.notify_one();
  state_->thread.join();
}

comm::Heartbeat& Watchdog::heart() { return state_->hearts.mine(); }

void Watchdog::name_tasks(const engine::StepProgram& program) {
  const std::string mine = text_of(program);
  const auto texts = state_->world.collect(std::as_bytes(std::span(mine)));
  RunFingerprint by_first_rank;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const std::string text(reinterpret_cast<const char*>(texts[rank].data()), texts[rank].size());
    if (by_first_rank.empty() || by_first_rank.back().second != text)
      by_first_rank.emplace_back(std::to_string(rank), text);
  }
  state_->world.broadcast(by_first_rank);
  std::vector<WatchedProgram> programs;
  for (const auto& [first, text] : by_first_rank) programs.push_back({std::stoi(first), tasks_in(text)});
  const std::scoped_lock lock(state_->mutex);
  state_->programs = std::move(programs);
}

}  // namespace cifar_mpi::watch
