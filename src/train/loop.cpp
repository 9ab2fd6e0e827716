#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <span>
#include <utility>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/hash.hpp"
#include "cifar_mpi/base/terminal.hpp"
#include "cifar_mpi/base/text.hpp"
#include "report/run_summary.hpp"
#include "report/step_reporter.hpp"
#include "report/tensorboard.hpp"
#include "run/run_checkpoints.hpp"
#include "train/board_facts.hpp"
#include "train/finite.hpp"
#include "train/roles.hpp"
#include "train/run_events.hpp"
#include "train/snapshot.hpp"
#include "train/state.hpp"
#include "train/step_recording.hpp"
#include "train/summaries.hpp"
#include "watch/deadline.hpp"
#include "watch/rank_watch.hpp"

namespace cifar_mpi::train {
namespace {

constexpr const char* kAdvice =
    "; nothing was written after the last checkpoint. Try a smaller --lr, or --warmup-epochs, in a new "
    "--run-dir";

report::StepScale step_scale(const SessionState& state) {
  return {state.sizes.total_steps, state.sizes.steps_per_epoch, state.sizes.global_batch,
          static_cast<std::uint64_t>(state.config.log_every), state.skips()};
}

/// Of the ranks that compute, by rank.
std::vector<std::string> workers_hosts(const SessionState& state) {
  const std::vector<std::string>& hosts = state.world.hosts();
  return {hosts.begin(), hosts.begin() + state.sizes.workers};
}

/// Replays the step, reads its records, and acts at boundaries.
///
/// Every decision (stop, diverged, evaluate, checkpoint) is a function of the summed control block and of the
/// step number, so all ranks take it at the same step without asking each other.
class Loop {
 public:
  explicit Loop(SessionState& state)
      : s_(state),
        view_(
            state.log, [rank = state.world.rank()] { return rank == 0 ? terminal_columns() : 0; },
            terminal_takes_utf8()),
        schedule_(schedule_spec(state.config, state.sizes, state.info.train_count)),
        checkpoints_(
            state.world, *state.run, retention_of(state.config),
            [this](std::uint64_t step, std::optional<double> test_accuracy) {
              return snapshot(s_, schedule_, step, test_accuracy);
            },
            view_),
        reporter_(
            state.world.rank(), workers_hosts(state), step_scale(state), schedule_, {view_, metrics_, board_},
            [&state] { return communicated_seconds(state); },
            [&state] { return state.update->push_counts(); }),
        launched_(state.progress.step),
        replayed_from_(launched_),
        finished_(launched_),
        timed_(launched_),
        absorbed_(launched_),
        looked_(launched_) {}

  void run(const std::string& last_end);

 private:
  double epoch(std::uint64_t step) const { return static_cast<double>(step) / s_.sizes.steps_per_epoch; }

  void enter(comm::Activity activity) { s_.heart->activity.store(activity, std::memory_order_relaxed); }
  int replays_of_launch() const;
  bool reads_at_once() const;
  std::uint64_t steps_made() const;
  void note_done();
  void write_event(report::RunEventKind kind, const std::string& text = {});
  void finish();
  void begin_step();
  void save();
  bool was_concluded() const;
  void train();
  void stop();
  void conclude();
  void absorb(std::uint64_t until);
  void note_parameter_hash();
  void require_finite();
  bool evaluate();
  void keep(const run::EvaluationFile& evaluation);
  void compare(std::uint64_t hash);
  void tell_pushes();
  void tell_best();
  void tell_summary();
  bool compares(std::uint64_t done) const;
  void begin_local_steps();
  std::vector<std::uint64_t> boundaries() const;

  SessionState& s_;
  report::ProgressView view_;
  optim::Schedule schedule_;
  run::RunCheckpoints checkpoints_;
  watch::Deadline deadline_{{}, 0.0};  ///< rank 0's counts
  report::MetricsFile metrics_;
  report::TensorBoard board_;
  report::StepReporter reporter_;
  std::optional<StepRecording> recording_;  ///< while it trains
  std::optional<Summaries> summaries_;
  std::uint64_t launched_;       ///< steps enqueued since the run began
  std::uint64_t replayed_from_;  ///< steps that were done before the first replay of this runner
  std::uint64_t finished_;       ///< steps that were done when the last launch returned
  std::uint64_t timed_;          ///< steps of which the end has been noted
  std::uint64_t absorbed_;       ///< steps whose records have been read
  std::uint64_t looked_;         ///< steps for which it is known whether there is a summary
  bool stopping_ = false;
  bool warned_of_evaluation_ = false;
  std::optional<double> test_accuracy_;  ///< of the current step, when it was evaluated
};

void Loop::run(const std::string& last_end) {
  const std::uint64_t total = s_.sizes.total_steps;
  note_past_trace(s_);
  if (launched_ > total) {
    view_.event(concat("this run is at step ", launched_, " already, more than the ", total,
                       " it was asked for: nothing to train; cifar_mpi_eval evaluates it"));
    return;
  }
  if (launched_ == total && was_concluded()) {
    view_.event(concat("this run is finished: step ", launched_, " of ", total,
                       optim::depends_on_length(s_.config.schedule)
                           ? concat("; --schedule ", to_string(s_.config.schedule), " ends with it")
                           : std::string("; raise --steps or --epochs to go on")));
    return;
  }
  s_.world.together([&] {
    summaries_.emplace(s_, board_, launched_);
    if (s_.world.rank() != 0) return;
    if (s_.look != nullptr) checkpoints_.also_write([this] { return summaries_->write_file(); });
    metrics_ = report::MetricsFile(*s_.run / "metrics.jsonl", launched_, s_.log, launched_ >= total);
    if (!s_.config.tensorboard) return;
    board_ = report::TensorBoard(*s_.run / "tensorboard", launched_,
                                 {s_.network.net, hparams(s_), s_.look != nullptr ? unseen_outputs(s_) : ""},
                                 s_.log);
  });
  s_.world.together([&] { recording_.emplace(s_, boundaries(), launched_); });
  metrics_.write(start_event(s_, launched_, metrics_.reached(), last_end));
  try {
    train();
    if (launched_ < total) stop();
    conclude();
    write_event(report::RunEventKind::end);
    tell_summary();
  } catch (const comm::AgreedError& error) {
    const bool stopped = error.kind() == ErrorKind::stopped;
    write_event(stopped ? report::RunEventKind::stop : report::RunEventKind::fault, error.what());
    throw;
  }
}

void Loop::write_event(report::RunEventKind kind, const std::string& text) {
  report::RunEvent event;
  event.kind = kind;
  event.step = absorbed_;
  event.time = wall_time();
  event.text = text;
  metrics_.write(event);
}

/// Whether a run at its last step was also evaluated, before it ended or was killed.
bool Loop::was_concluded() const {
  return s_.world.any(s_.world.rank() == 0 &&
                      run::recorded_test_accuracy(run::open_checkpoint(*s_.run, launched_)).has_value());
}

/// Every so many steps there is more to do than to go on. What is due behind each replay of local steps tells none from the
/// others.
std::vector<std::uint64_t> Loop::boundaries() const {
  std::vector<std::uint64_t> steps{eval_every(s_)};
  for (const std::int64_t every :
       {s_.config.checkpoint_every, s_.config.check_every, s_.config.summary_every}) {
    if (every > 0) steps.push_back(static_cast<std::uint64_t>(every));
  }
  const std::uint64_t replay = s_.sizes.steps_of_replay(launched_);
  if (replay > 1) std::erase_if(steps, [&](std::uint64_t every) { return every <= replay; });
  return steps;
}

/// Whether the ranks' parameters are compared before the replay that begins here.
bool Loop::compares(std::uint64_t done) const {
  return done == 0 || s_.sizes.due(static_cast<std::uint64_t>(s_.config.check_every), done);
}

/// From here on a replay is all the steps between two averagings.
void Loop::begin_local_steps() {
  finish();
  recording_->finish();
  s_.step = std::move(s_.local_steps);
  write_step(s_, launched_);
  replayed_from_ = launched_;
  s_.show_step();
  s_.world.together([&] { recording_.emplace(s_, boundaries(), launched_); });
  view_.event(concat("step ", launched_, ": from here on ", s_.config.local.steps,
                     " steps of each rank between averagings"));
  enter(comm::Activity::training);
  reporter_.begin_interval(launched_);
}

/// To the last step, or to the one at which all ranks know that they were asked to stop.
void Loop::train() {
  const std::uint64_t total = s_.sizes.total_steps;
  const auto eval_steps = eval_every(s_);
  const auto checkpoint_steps = static_cast<std::uint64_t>(s_.config.checkpoint_every);
  reporter_.begin_interval(launched_);
  deadline_ = watch::Deadline(watch::time_limits(s_.config.stop_after_min, std::getenv, wall_seconds()),
                              steady_seconds());
  if (const std::string text = deadline_.describe(); !text.empty()) s_.log.info(text);
  enter(comm::Activity::training);

  while (launched_ < total && !stopping_) {
    // A launch comes after the records of all but the last one have been read: a device always has one to
    // work on meanwhile. But of local steps the next averaging is far away, and what this one says holds at once.
    if (reads_at_once()) {
      s_.step->finish();
      note_done();
      finished_ = launched_;
    }
    absorb(finished_);
    if (stopping_) break;
    if (launched_ == s_.sizes.local_from && s_.local_steps) {
      begin_local_steps();
      if (stopping_) break;
    }
    if (compares(launched_)) note_parameter_hash();
    begin_step();
    const int replays = replays_of_launch();
    const std::uint64_t steps = static_cast<std::uint64_t>(replays) * s_.sizes.steps_of_replay(launched_);
    recording_->before_launch(launched_);
    const bool looked_at = replays == 1 && summaries_->due_within(looked_, launched_ + steps - looked_);
    looked_ = launched_ + steps;
    if (looked_at) summaries_->begin(recording_->recorder());
    s_.step->replay(replays);
    finished_ = launched_;
    launched_ = s_.skips() ? steps_made() : launched_ + steps;
    if (looked_at) summaries_->end(launched_, recording_->recorder());
    note_done();
    test_accuracy_.reset();
    checkpoints_.poll();
    const bool evaluation_due = s_.sizes.due(eval_steps, launched_);
    const bool checkpoint_due = s_.sizes.due(checkpoint_steps, launched_);
    if (launched_ == total || (!evaluation_due && !checkpoint_due)) continue;
    finish();
    if (stopping_) break;
    const bool best = evaluation_due && evaluate();
    if (checkpoint_due || best) save();
    enter(comm::Activity::training);
    reporter_.begin_interval(launched_);
  }
  finish();
  recording_->finish();
  tell_pushes();
}

bool Loop::reads_at_once() const { return s_.skips() || s_.sizes.steps_of_replay(launched_) > 1; }

/// Behind a replay that may end later than with the next step: the counter knows the last one. One that did not apply
/// is known by its record, and counts here like any other.
std::uint64_t Loop::steps_made() const {
  s_.step->finish();
  std::uint64_t counter = 0;
  s_.backend->copy(reinterpret_cast<std::byte*>(&counter), s_.step_counter.data(), sizeof counter);
  const engine::StepRecord& record = s_.records[engine::record_place(counter, 1)];
  const bool failed = record.step == counter && record.samples > 0.0 && !record.applied;
  return failed ? counter + 1 : counter;
}

void Loop::note_done() {
  if (s_.skips()) {
    if (timed_ < launched_) reporter_.note_done(timed_, launched_);
    timed_ = launched_;
    return;
  }
  const std::uint64_t replay = s_.sizes.steps_of_replay(replayed_from_);
  const std::uint64_t done = replayed_from_ + replay * s_.step->finished();
  for (; timed_ < done; timed_ += replay) reporter_.note_done(timed_, timed_ + replay);
}

void Loop::finish() {
  s_.step->finish();
  recording_->pause();
  note_done();
  absorb(launched_);
  complete_state(s_);
}

/// As many as asked for, where no log line, evaluation, checkpoint or comparison is due before their end, and none of
/// them is recorded or looked at. A replay of several steps is a launch of its own.
int Loop::replays_of_launch() const {
  const TrainConfig& config = s_.config;
  const int usual = s_.step->replays_graphs() ? kUsualGraphSteps : 1;
  const int most = config.graph_steps > 0 ? config.graph_steps : usual;
  if (most == 1 || reads_at_once()) return 1;
  const auto wanted = static_cast<std::uint64_t>(most);
  const auto straddles = [&](std::uint64_t every) { return launched_ % every + wanted > every; };
  for (std::uint64_t step = launched_; step < launched_ + wanted; ++step) {
    if (recording_->records(step)) return 1;
  }
  const bool changes = launched_ < s_.sizes.local_from && launched_ + wanted > s_.sizes.local_from;
  const bool due = changes || straddles(eval_every(s_)) || straddles(s_.sizes.total_steps) ||
                   straddles(static_cast<std::uint64_t>(config.checkpoint_every)) ||
                   straddles(static_cast<std::uint64_t>(config.check_every)) ||
                   straddles(static_cast<std::uint64_t>(config.log_every)) ||
                   summaries_->due_within(launched_, wanted);
  return due ? 1 : most;
}

/// Shows the watchdogs where this rank is, and passes on what it is asked, or why it would stop; the sum over the
/// ranks decides.
void Loop::begin_step() {
  s_.heart->step.store(launched_, std::memory_order_relaxed);
  int asked = s_.requests.load(std::memory_order_relaxed);
  const bool stops = (s_.request_word.load(std::memory_order_relaxed) & engine::kStopRequest) != 0;
  if (s_.world.rank() == 0 && !stops) {
    deadline_.checkpoint_took(checkpoints_.last_seconds());
    if (const auto reason = deadline_.due(steady_seconds())) {
      view_.event(*reason);
      asked |= engine::kStopRequest;
    }
  }
  if (s_.skips() && (asked & engine::kTraceRequest) != 0) {
    s_.log.info("note: with --aggregate workers are in different steps at a time: nothing is traced");
    s_.requests.fetch_and(~engine::kTraceRequest, std::memory_order_relaxed);
    asked &= ~engine::kTraceRequest;
  }
  s_.request_word.fetch_or(asked, std::memory_order_relaxed);
}

void Loop::save() {
  enter(comm::Activity::saving);
  require_finite();
  checkpoints_.save(launched_, test_accuracy_);
}

/// Leaves with the state of this step on the disk.
void Loop::stop() {
  save();
  checkpoints_.require_written();
  throw comm::AgreedError(ErrorKind::stopped, concat("stopped on request at step ", launched_,
                                                     "; start the same command again to go on"));
}

/// The last state is safe before it is evaluated: a run killed meanwhile has only the evaluation left to do.
void Loop::conclude() {
  test_accuracy_.reset();
  save();
  checkpoints_.require_written();
  evaluate();
  save();
  checkpoints_.require_written();
  tell_best();
}

void Loop::absorb(std::uint64_t until) {
  while (absorbed_ < until) {
    const std::uint64_t steps = s_.sizes.steps_of_replay(absorbed_);
    const std::uint64_t end = s_.skips() ? launched_ : absorbed_ + steps;
    const engine::StepRecord& record = s_.records[engine::record_place(end - 1, steps)];
    if (!record.applied) {
      const double loss = record.cross_entropy + record.decay_term;
      const bool by_loss = !std::isfinite(loss);
      throw comm::AgreedError(
          ErrorKind::diverged,
          concat("diverged: the ", by_loss ? "loss" : "gradient's norm", " of step ",
                 steps == 1 ? "" : concat(absorbed_ + 1, " to "), end, " is ",
                 std::isnan(by_loss ? loss : record.gradient_norm) ? "not a number" : "infinite", kAdvice));
    }
    if (compares(absorbed_) && !s_.skips()) {
      const std::string difference = watch::desync_text(record, workers_hosts(s_));
      if (!difference.empty()) throw comm::AgreedError(ErrorKind::desync, difference);
    }
    if (record.stop_requests > 0.0) stopping_ = true;
    if (record.trace_requests > 0.0) {
      s_.requests.fetch_and(~engine::kTraceRequest, std::memory_order_relaxed);
      s_.request_word.fetch_and(~engine::kTraceRequest, std::memory_order_relaxed);
      recording_->trace_next();
    }
    recording_->note(absorbed_, record);
    reporter_.add(absorbed_, end, record);
    absorbed_ = end;
  }
}

/// The hash travels in the control block of the next step; every rank then compares all of them. Where that may be the
/// sum of a few ranks they are compared here.
void Loop::note_parameter_hash() {
  s_.step->finish();
  recording_->pause();
  complete_state(s_);
  require_finite();
  if (board_) board_.write(launched_ + 1, weight_losses(s_));
  const std::uint64_t hash = s_.state.hash(*s_.backend);
  if (s_.skips()) return compare(hash);
  std::byte* const place = s_.facts.data() + offsetof(engine::RankFacts, param_hash);
  s_.backend->copy(place, reinterpret_cast<const std::byte*>(&hash), sizeof hash);
}

/// Collective.
void Loop::compare(std::uint64_t hash) {
  const std::string difference = watch::desync_text(s_.world.gather(hash), workers_hosts(s_), launched_ + 1);
  if (!difference.empty()) throw comm::AgreedError(ErrorKind::desync, difference);
}

/// Collective; between steps. Throws an AgreedError{diverged} unless what a checkpoint would hold is finite.
void Loop::require_finite() {
  std::optional<Error> mine;
  const std::string what = s_.state.first_not_finite(*s_.backend, s_.layout, s_.network.params);
  if (!what.empty()) {
    mine.emplace(ErrorKind::diverged,
                 concat("diverged: after step ", launched_, ' ', what, " are not finite", kAdvice));
  }
  s_.world.agree(mine);
}

/// Whether its state is to be kept as the best so far.
bool Loop::evaluate() {
  enter(comm::Activity::evaluating);
  const Accuracy accuracy = s_.evaluator->run();
  test_accuracy_ = accuracy.precision_at_1();
  run::EvaluationFile record = s_.evaluator->record(accuracy);
  enter(comm::Activity::saving);  // it may wait for the file being written
  const bool best = s_.config.keep_best && checkpoints_.would_be_best(launched_, *test_accuracy_);
  if (s_.world.rank() != 0) return best;
  view_.event(
      concat("step ", launched_,
             fmt::format(", epoch {:.2f}: test accuracy {:.2f} %", epoch(launched_), 100.0 * *test_accuracy_),
             " (EMA weights, ", accuracy.count(), " images)", best ? ", the best so far" : ""));
  const report::EvaluationReport report{launched_, epoch(launched_), *test_accuracy_, accuracy.cross_entropy};
  metrics_.write(report);
  board_.write(report);
  record.step = launched_;
  keep(record);
  return best;
}

/// For people and reports: training goes on without.
void Loop::keep(const run::EvaluationFile& evaluation) {
  try {
    run::write_evaluation(*s_.run / "evaluation.h5", evaluation);
  } catch (const Error& error) {
    if (!std::exchange(warned_of_evaluation_, true))
      view_.warning(concat(error.what(), "; training continues"));
  }
}

void Loop::tell_pushes() {
  if (s_.world.rank() != 0) return;
  if (const auto pushes = s_.update->push_counts())
    view_.event(concat("pushes: ", report::pushes_text(*pushes)));
}

void Loop::tell_best() {
  if (s_.world.rank() != 0 || !s_.config.keep_best) return;
  if (const auto best = checkpoints_.best(launched_)) {
    view_.event(concat("best checkpoint: ", run::checkpoint_path(s_.config.run_dir, best->step),
                       fmt::format(", test accuracy {:.2f} %", 100.0 * best->test_accuracy)));
  }
}

void Loop::tell_summary() {
  const std::string other_work = other_work_text(s_);
  if (s_.world.rank() != 0) return;
  if (!other_work.empty()) view_.warning(other_work);
  const char* const why_none =
      s_.skips() ? "workers are in different steps at a time, so none is sampled" : "no step was sampled";
  for (const std::string& line : report::run_summary(*s_.run, why_none)) view_.event(line);
}

}  // namespace

void run_loop(SessionState& state, const std::string& last_end) { Loop(state).run(last_end); }

}  // namespace cifar_mpi::train
