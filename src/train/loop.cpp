#include <fmt/core.h>

#include <cstdlib>
#include <utility>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/hash.hpp"
#include "cifar_mpi/base/terminal.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/step/step.hpp"
#include "report/run_summary.hpp"
#include "report/step_reporter.hpp"
#include "report/tensorboard.hpp"
#include "run/run_checkpoints.hpp"
#include "step/step_recording.hpp"
#include "train/launches.hpp"
#include "train/patience.hpp"
#include "train/run_facts.hpp"
#include "train/session_state.hpp"
#include "train/summaries.hpp"
#include "watch/deadline.hpp"
#include "watch/rank_watch.hpp"

namespace cifar_mpi::train {
namespace {

report::StepScale step_scale(const step::Plan& plan) {
  return {plan.sizes.total_steps, plan.sizes.steps_per_epoch, plan.sizes.global_batch,
          static_cast<std::uint64_t>(plan.config.log_every), plan.sizes.partial_aggregation()};
}

/// For the ranks that compute, by rank.
std::vector<std::string> workers_hosts(const step::Plan& plan) {
  const std::vector<std::string>& hosts = plan.world.hosts();
  return {hosts.begin(), hosts.begin() + plan.sizes.workers};
}

/// Replays the step, reads its records, and acts at boundaries.
///
/// Every decision (stop, diverged, evaluate, checkpoint) is a function of the summed control block and of the
/// step number, so all ranks take it at the same step without asking each other.
class Loop {
 public:
  explicit Loop(SessionState& state)
      : s_(state),
        plan_(state.plan),
        view_(
            state.plan.log, [rank = state.plan.world.rank()] { return rank == 0 ? terminal_columns() : 0; },
            terminal_takes_utf8()),
        schedule_(config::schedule_spec(state.plan.config, state.plan.sizes, state.plan.info.train_count)),
        checkpoints_(
            state.plan.world, *state.plan.run, step::retention_of(state.plan.config),
            [this](std::uint64_t step, std::optional<double> test_accuracy) {
              return snapshot(plan_, s_.device, s_.blocks.state, schedule_, step, test_accuracy);
            },
            view_),
        reporter_(
            state.plan.world.rank(), workers_hosts(state.plan), step_scale(state.plan), schedule_,
            {view_, metrics_, board_}, [&state] { return communicated_seconds(*state.programs.step); },
            [&state] { return state.blocks.update->push_counts(); }),
        patience_(state.plan.config.patience, state.plan.config.views),
        launches_(state.plan, state.device, state.blocks, state.programs) {}

  void run(const std::string& last_end);

 private:
  std::uint64_t launched() const { return launches_.steps(); }
  double epoch(std::uint64_t step) const { return static_cast<double>(step) / plan_.sizes.steps_per_epoch; }

  void enter(comm::Activity activity) { s_.heart->activity.store(activity, std::memory_order_relaxed); }
  void launch();
  int replays_of_launch() const;
  void write_event(report::RunEventKind kind, const std::string& text = {});
  void finish();
  void begin_step();
  void save();
  void save_and_go_on();
  bool wants_checkpoint() const;
  bool was_concluded() const;
  void train();
  void stop();
  void conclude(bool early);
  void read_records(std::uint64_t until) {
    launches_.read_records(
        until, [this](const Launch& launch, const engine::StepRecord& record) { read(launch, record); });
  }
  void read(const Launch& launch, const engine::StepRecord& record);
  void note_parameter_hash();
  bool evaluate();
  void keep(const run::EvaluationFile& evaluation);
  void change_program();

  SessionState& s_;
  step::Plan& plan_;
  report::ProgressView view_;
  optim::Schedule schedule_;
  run::RunCheckpoints checkpoints_;
  watch::Deadline deadline_{{}, 0.0};  ///< rank 0's counts
  report::MetricsFile metrics_;
  report::TensorBoard board_;
  report::StepReporter reporter_;
  Patience patience_;
  std::optional<step::StepRecording> recording_;  ///< while it trains
  std::optional<Summaries> summaries_;
  Launches launches_;
  bool stopping_ = false;
  bool saving_ = false;   ///< all ranks know of a request for a checkpoint
  double saved_s_ = 0.0;  ///< when the last checkpoint was begun, on the steady clock
  bool warned_of_evaluation_ = false;
  std::optional<double> test_accuracy_;  ///< of the current step, when it was evaluated
};

void Loop::run(const std::string& last_end) {
  const std::uint64_t total = plan_.sizes.total_steps;
  step::note_past_trace(plan_);
  if (launched() > total) {
    view_.event(concat("this run is at step ", launched(), " already, more than the ", total,
                       " it was asked for: nothing to train; cifar_mpi_eval evaluates it"));
    return;
  }
  if (launched() == total && was_concluded()) {
    const std::string dependent = config::length_dependence(plan_.config);
    view_.event(
        concat("this run is finished: step ", launched(), " of ", total, "; ",
               dependent.empty() ? "raise --steps or --epochs to continue" : dependent + " ends with it"));
    return;
  }
  patience_.resume(plan_.world, *plan_.run, launched(), plan_.log);
  if (launched() < total && patience_.exhausted()) {
    view_.event(concat("this run is finished at step ", launched(), ": ", patience_.text(),
                       "; raise --patience to continue"));
    return;
  }
  plan_.world.together([&] {
    summaries_.emplace(plan_, s_.device, s_.blocks, s_.programs, board_, launched());
    if (plan_.world.rank() != 0) return;
    if (s_.programs.histograms != nullptr)
      checkpoints_.also_write([this] { return summaries_->write_file(); });
    metrics_ = report::MetricsFile(*plan_.run / "metrics.jsonl", launched(), plan_.log, launched() >= total);
    if (!plan_.config.tensorboard) return;
    board_ = report::TensorBoard(
        *plan_.run / "tensorboard", launched(),
        {plan_.network.net, hparams(plan_),
         s_.programs.histograms != nullptr ? unseen_outputs(plan_.network.net, *s_.device.tower) : ""},
        plan_.log);
  });
  plan_.world.together([&] {
    recording_.emplace(plan_, *s_.blocks.update, *s_.programs.step, step::boundaries(plan_, launches_.next()),
                       launches_.next());
  });
  if (metrics_.reached() > launched()) plan_.log.info(repeat_text(launched(), metrics_.reached()));
  const std::uint64_t resumed = launched();
  metrics_.write(start_event(plan_, resumed, metrics_.reached(), last_end));
  try {
    train();
    const bool early = launched() < total && patience_.exhausted();
    if (launched() < total && !early) stop();
    conclude(early);
    write_event(report::RunEventKind::end, early ? patience_.text() : "");
    log_summary(plan_, *s_.device.backend, view_,
                launches_.pace().in_step() ? report::kNoSample
                                           : "workers are in different steps at a time, so none is sampled",
                resumed);
  } catch (const comm::AgreedError& error) {
    const bool stopped = error.kind() == ErrorKind::stopped;
    write_event(stopped ? report::RunEventKind::stop : report::RunEventKind::fault, error.what());
    throw;
  }
}

void Loop::write_event(report::RunEventKind kind, const std::string& text) {
  report::RunEvent event;
  event.kind = kind;
  event.step = launches_.steps_read();
  event.time = wall_time();
  event.text = text;
  metrics_.write(event);
}

/// Whether a run that reached its last step was also evaluated before it ended.
bool Loop::was_concluded() const {
  return plan_.world.any(
      plan_.world.rank() == 0 &&
      run::recorded_test_accuracy(run::open_checkpoint(*plan_.run, launched())).has_value());
}

/// From here on a replay takes all the steps between two averagings, images of another size, or no gradients of frozen
/// parameters.
void Loop::change_program() {
  finish();
  recording_->finish();
  const bool traces = recording_->requested();
  const engine::Replay rest = recording_->rest();
  const std::string text = s_.programs.change();
  step::write_step(s_.device, s_.blocks, launched());
  launches_.change_program();
  s_.show_step();
  plan_.world.together([&] {
    recording_.emplace(plan_, *s_.blocks.update, *s_.programs.step, step::boundaries(plan_, launches_.next()),
                       launches_.next());
  });
  if (traces) recording_->trace_next();
  recording_->trace_rest(rest);
  view_.event(concat("after step ", launched(), ": ", text));
  enter(comm::Activity::training);
  reporter_.begin_interval(launched());
}

/// Trains to the last step, or to the step at which all ranks know of a request to stop.
void Loop::train() {
  const std::uint64_t total = plan_.sizes.total_steps;
  const auto eval_steps = step::eval_every(plan_);
  const auto checkpoint_steps = static_cast<std::uint64_t>(plan_.config.checkpoint_every);
  reporter_.begin_interval(launched());
  saved_s_ = steady_seconds();
  deadline_ =
      watch::Deadline(watch::time_limits(plan_.config.stop_after_min, std::getenv, wall_seconds()), saved_s_);
  if (const std::string text = deadline_.describe(); !text.empty()) plan_.log.info(text);
  enter(comm::Activity::training);

  while (launched() < total && !stopping_) {
    // Launches the next replay once the records of all but the last have been read, so that the device always
    // has one to work on.
    const bool at_once = launches_.reads_at_once();
    if (at_once) launches_.finish(reporter_);
    read_records(at_once ? launched() : launches_.last().begin);
    if (stopping_) break;
    if (saving_) {
      save_and_go_on();
      if (stopping_) break;
    }
    if (!s_.programs.later.empty() && launched() == s_.programs.later.front().from) {
      change_program();
      if (stopping_) break;
    }
    launch();
    test_accuracy_.reset();
    checkpoints_.poll();
    const bool evaluation_due = launches_.last().crosses(eval_steps);
    const bool checkpoint_due = launches_.last().crosses(checkpoint_steps);
    if (launched() == total || (!evaluation_due && !checkpoint_due)) continue;
    finish();
    if (stopping_) break;
    const bool best = evaluation_due && evaluate();
    if (patience_.exhausted()) break;
    if (checkpoint_due || best) save();
    saving_ = false;
    enter(comm::Activity::training);
    reporter_.begin_interval(launched());
  }
  finish();
  recording_->finish();
  if (const auto pushes = s_.blocks.update->push_counts(); pushes && plan_.world.rank() == 0)
    view_.event(concat("pushes: ", report::pushes_text(*pushes)));
}

/// A checkpoint between those of --checkpoint-every.
void Loop::save_and_go_on() {
  finish();
  saving_ = false;
  if (stopping_) return;
  save();
  enter(comm::Activity::training);
  reporter_.begin_interval(launched());
}

/// Launches the next replay, or several in a row if nothing is due between them.
void Loop::launch() {
  const auto check_every = static_cast<std::uint64_t>(plan_.config.check_every);
  const bool compared = launched() == 0 || launches_.last().crosses(check_every);
  if (compared) note_parameter_hash();
  begin_step();
  const int replays = replays_of_launch();
  recording_->before_launch(launches_.next());
  const bool has_summary = summaries_->take_due(launches_.next(replays).end);
  if (has_summary) summaries_->begin(recording_->recorder());
  launches_.launch(replays, compared);
  if (has_summary) summaries_->end(launches_.last(), recording_->recorder());
  launches_.note_done(reporter_);
}

void Loop::finish() {
  launches_.finish(reporter_);
  recording_->pause();
  read_records(launched());
  step::complete_state(plan_, s_.device, s_.blocks);
}

/// As many replays as configured, if no log line, evaluation, checkpoint or comparison is due before their
/// end, and none is recorded or observed. A replay of several steps is a launch of its own.
int Loop::replays_of_launch() const {
  const config::TrainConfig& config = plan_.config;
  const int usual = s_.programs.step->replays_graphs() ? config::kUsualGraphSteps : 1;
  const int most = config.graph_steps > 0 ? config.graph_steps : usual;
  if (most == 1 || launches_.reads_at_once()) return 1;
  const engine::Replay all = launches_.next(most);
  return step::is_unbroken(plan_, all) && !recording_->records(all) && !summaries_->due_within(all) ? most
                                                                                                    : 1;
}

/// Shows the watchdogs where this rank is, and passes on requests and reasons to stop; the sum over the ranks
/// decides.
void Loop::begin_step() {
  s_.heart->step.store(launched(), std::memory_order_relaxed);
  int asked = s_.requests.load(std::memory_order_relaxed);
  const bool stops = (s_.blocks.request_word.load(std::memory_order_relaxed) & engine::kStopRequest) != 0;
  if (plan_.world.rank() == 0 && !stops) {
    deadline_.checkpoint_took(checkpoints_.last_seconds());
    if (const auto reason = deadline_.due(steady_seconds())) {
      view_.event(*reason);
      asked |= engine::kStopRequest;
    }
    if (wants_checkpoint()) asked |= engine::kSaveRequest;
  }
  if (!launches_.pace().in_step() && (asked & engine::kTraceRequest) != 0) {
    plan_.log.info("note: with --aggregate workers are in different steps at a time: nothing is traced");
    s_.requests.fetch_and(~engine::kTraceRequest, std::memory_order_relaxed);
    asked &= ~engine::kTraceRequest;
  }
  s_.blocks.request_word.fetch_or(asked, std::memory_order_relaxed);
}

/// Whether --checkpoint-minutes have passed, by the clock of the rank that asks.
bool Loop::wants_checkpoint() const {
  const config::TrainConfig& config = plan_.config;
  if (config.checkpoint_minutes <= 0.0 || config.aggregation.arrival_order) return false;
  return steady_seconds() - saved_s_ >= 60.0 * config.checkpoint_minutes;
}

void Loop::save() {
  saved_s_ = steady_seconds();
  enter(comm::Activity::saving);
  require_finite(plan_, s_.device, s_.blocks.state, launched());
  checkpoints_.save(launched(), test_accuracy_);
}

/// Ends the run with the state of this step in a checkpoint.
void Loop::stop() {
  save();
  checkpoints_.require_written();
  const int requests = s_.requests.load(std::memory_order_relaxed);
  const bool orphaned = plan_.world.any((requests & kLauncherGone) != 0);
  throw comm::AgreedError(ErrorKind::stopped,
                          orphaned ? "stopped because mpirun ended, at step " : "stopped on request at step ",
                          launched(), "; rerun the same command to resume");
}

/// The last state is saved before it is evaluated: if the run is killed meanwhile, only the evaluation is
/// left. A run that ends early has just been evaluated.
void Loop::conclude(bool early) {
  if (early) {
    view_.event(concat("ending at step ", launched(), ": ", patience_.text()));
  } else {
    test_accuracy_.reset();
    save();
    checkpoints_.require_written();
    evaluate();
  }
  save();
  checkpoints_.require_written();
  log_best(plan_, checkpoints_, launched(), view_);
}

void Loop::read(const Launch& launch, const engine::StepRecord& record) {
  const engine::Replay& replay = launch.replay;
  require_converging(replay, record, launches_.pace().in_step());
  if (launch.compares && launches_.pace().in_step()) {
    const std::string difference = watch::desync_text(record, workers_hosts(plan_));
    if (!difference.empty()) throw comm::AgreedError(ErrorKind::desync, difference);
  }
  if (record.stop_requests > 0.0) stopping_ = true;
  if (record.trace_requests > 0.0) {
    s_.requests.fetch_and(~engine::kTraceRequest, std::memory_order_relaxed);
    s_.blocks.request_word.fetch_and(~engine::kTraceRequest, std::memory_order_relaxed);
    recording_->trace_next();
  }
  if (record.save_requests > 0.0) {
    saving_ = true;
    s_.blocks.request_word.fetch_and(~engine::kSaveRequest, std::memory_order_relaxed);
  }
  recording_->note(replay.begin, record);
  reporter_.add(replay, launch.done.value(), record);
}

/// The hash travels in the control block of the next step; then every rank compares all hashes. With partial
/// aggregation that sum lacks ranks, so the hashes are compared here.
void Loop::note_parameter_hash() {
  s_.programs.step->finish();
  recording_->pause();
  step::complete_state(plan_, s_.device, s_.blocks);
  require_finite(plan_, s_.device, s_.blocks.state, launched());
  if (board_) board_.write(launched() + 1, weight_losses(plan_, s_.device, s_.blocks.state));
  const std::uint64_t hash = s_.blocks.state.hash(*s_.device.backend);
  if (launches_.pace().in_step()) {
    std::byte* const place = s_.blocks.facts.data() + offsetof(engine::RankFacts, param_hash);
    return s_.device.backend->copy(place, &hash, sizeof hash);
  }
  const std::string difference =
      watch::desync_text(plan_.world.gather(hash), workers_hosts(plan_), launched() + 1);
  if (!difference.empty()) throw comm::AgreedError(ErrorKind::desync, difference);
}

/// Whether this state is the best so far and is kept.
bool Loop::evaluate() {
  enter(comm::Activity::evaluating);
  const evaluation::Accuracy accuracy = s_.programs.evaluator->run();
  test_accuracy_ = accuracy.precision_at_1();
  patience_.note(launched(), *test_accuracy_);
  reporter_.note_test_accuracy(*test_accuracy_);
  run::EvaluationFile record = s_.programs.evaluator->record(accuracy);
  enter(comm::Activity::saving);  // it may wait for an earlier write
  const bool best = plan_.config.keep_best && checkpoints_.would_be_best(launched(), *test_accuracy_);
  if (plan_.world.rank() != 0) return best;
  const std::string views = plan_.config.views > 1 ? concat(", ", plan_.config.views, " views of each") : "";
  view_.event(concat(
      "step ", launched(),
      fmt::format(", epoch {:.2f}: test accuracy {:.2f} %", epoch(launched()), 100.0 * *test_accuracy_),
      " (EMA weights, ", accuracy.count(), " images", views, ")", best ? ", the best so far" : ""));
  const report::EvaluationReport report{launched(), epoch(launched()), *test_accuracy_,
                                        accuracy.cross_entropy, plan_.config.views};
  metrics_.write(report);
  board_.write(report);
  record.step = launched();
  keep(record);
  return best;
}

/// For people and reports: training continues without them.
void Loop::keep(const run::EvaluationFile& evaluation) {
  try {
    run::write_evaluation(*plan_.run / "evaluation.h5", evaluation);
  } catch (const Error& error) {
    if (!std::exchange(warned_of_evaluation_, true))
      view_.warning(concat(error.what(), "; training continues"));
  }
}

}  // namespace

void run_loop(SessionState& state, const std::string& last_end) { Loop(state).run(last_end); }

}  // namespace cifar_mpi::train
