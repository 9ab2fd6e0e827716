#include "step/step_recording.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/engine/dependencies.hpp"

namespace cifar_mpi::step {
namespace {

constexpr double kSamplesPerEpoch = 10.0;
constexpr double kLeastDistance = 10.0;  // steps
constexpr std::uint64_t kWarmUp = 2;
constexpr std::size_t kGathered = 10;  // steps

/// Per replay. A task lets collectives make progress between its pieces, and its clock restarts after each
/// time.
std::size_t most_slices(const engine::StepProgram& program) { return 4096 + 16 * program.tasks().size(); }

/// The numbers that a rank sends about its replays.
class Packed {
 public:
  void put(std::int64_t number) { numbers_.push_back(number); }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(numbers_)); }

 private:
  std::vector<std::int64_t> numbers_;
};

class Unpacked {
 public:
  explicit Unpacked(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::int64_t take() {
    std::int64_t number = 0;
    std::memcpy(&number, bytes_.data(), sizeof number);
    bytes_ = bytes_.subspan(sizeof number);
    return number;
  }

 private:
  std::span<const std::byte> bytes_;
};

/// For a replay's work tasks; -1 if one of them is unknown.
std::int64_t work_cpu_ns(const engine::StepProgram& program, const engine::Recorder::Replay& replay) {
  std::int64_t sum = 0;
  for (const engine::Recorder::Slice& slice : replay.slices) {
    if (program.tasks()[static_cast<std::size_t>(slice.task)].kind != engine::TaskKind::work) continue;
    if (slice.cpu_ns < 0) return -1;
    sum += slice.cpu_ns;
  }
  return sum;
}

/// Replays [first, first + count), with the timeline's task for each of the program's, by rank 0's clock;
/// tasks that a runner did not record have start and length 0.
Packed pack(const engine::Recorder& recorder, std::size_t first, std::size_t count,
            const comm::ClockTranslation& clock, const engine::StepProgram& program,
            const std::vector<std::int32_t>& rows) {
  Packed packed;
  packed.put(clock.uncertainty());
  for (std::size_t i = first; i < first + count; ++i) {
    if (i >= recorder.replays()) {
      for (int zero = 0; zero < 5; ++zero) packed.put(0);
      continue;
    }
    const engine::Recorder::Replay replay = recorder[i];
    packed.put(clock.to_rank_zero(replay.begin_ns));
    packed.put(clock.to_rank_zero(replay.end_ns));
    packed.put(static_cast<std::int64_t>(replay.dropped));
    packed.put(work_cpu_ns(program, replay));
    packed.put(static_cast<std::int64_t>(replay.slices.size()));
    for (const engine::Recorder::Slice& slice : replay.slices) {
      packed.put(rows[static_cast<std::size_t>(slice.task)]);
      packed.put(clock.to_rank_zero(slice.begin_ns));
      packed.put(clock.to_rank_zero(slice.end_ns));
    }
  }
  return packed;
}

report::RankStep unpack(Unpacked& from) {
  report::RankStep step;
  step.begin_ns = from.take();
  step.end_ns = from.take();
  step.dropped = static_cast<std::uint64_t>(from.take());
  step.work_cpu_ns = from.take();
  step.slices.resize(static_cast<std::size_t>(from.take()));
  for (report::Slice& slice : step.slices) {
    slice.task = static_cast<std::int32_t>(from.take());
    slice.begin_ns = from.take();
    slice.end_ns = from.take();
  }
  return step;
}

std::unique_ptr<engine::Recorder> make_recorder(const engine::StepProgram& program, std::size_t replays) {
  return std::make_unique<engine::Recorder>(replays, most_slices(program));
}

/// The task's sum, if it is a collective.
std::uint64_t summed_bytes(const engine::Task& task) {
  std::uint64_t most = 0;
  if (task.kind != engine::TaskKind::collective) return most;
  for (const engine::Bytes& range : task.writes) most = std::max<std::uint64_t>(most, range.size);
  return most;
}

/// The timeline's task for each task of the program: all local steps have the same tasks, which are shown
/// together.
std::vector<std::int32_t> timeline_rows(const engine::StepProgram& program) {
  const bool local = program.name().starts_with(report::kLocalSteps);
  const std::vector<engine::LaneId> lanes = engine::lanes_of(program);
  std::map<std::pair<std::string, engine::LaneId>, std::int32_t> known;
  std::vector<std::int32_t> rows;
  std::int32_t next = 0;
  for (std::size_t i = 0; i < program.tasks().size(); ++i) {
    const auto [place, is_new] = known.try_emplace({program.tasks()[i].name, lanes[i]}, next);
    rows.push_back(is_new || !local ? next++ : place->second);
  }
  return rows;
}

}  // namespace

SampleSchedule::SampleSchedule(double steps_per_epoch, std::uint64_t begun, std::uint64_t total,
                               std::vector<std::uint64_t> boundaries, std::uint64_t replay)
    : stretch_(std::max(steps_per_epoch / kSamplesPerEpoch, kLeastDistance * static_cast<double>(replay))),
      first_(begun + kWarmUp * replay),
      total_(total),
      boundaries_(std::move(boundaries)) {}

bool SampleSchedule::is_ordinary(std::uint64_t step) const {
  const std::uint64_t done = step + 1;
  return step >= first_ && done < total_ &&
         std::ranges::none_of(boundaries_, [&](std::uint64_t every) { return done % every == 0; });
}

std::optional<std::uint64_t> SampleSchedule::next(std::uint64_t from) const {
  const auto middle = [&](std::uint64_t stretch) {
    return static_cast<std::uint64_t>((static_cast<double>(stretch) + 0.5) * stretch_);
  };
  auto stretch = static_cast<std::uint64_t>(static_cast<double>(from) / stretch_);
  if (stretch > 0) --stretch;  // the previous stretch's sample may lie in this one
  for (; middle(stretch) < total_; ++stretch) {
    const std::uint64_t end = std::min(middle(stretch + 1), total_);
    std::uint64_t step = middle(stretch);
    while (step < end && !is_ordinary(step)) ++step;
    if (step < end && step >= from) return step;
  }
  return std::nullopt;
}

report::Timeline timeline_head(const Plan& plan, const comm::Update& update,
                               const engine::StepProgram& program, int image_size) {
  const std::vector<engine::LaneId> lanes = engine::lanes_of(program);
  std::vector<std::vector<engine::TaskId>> after = engine::find_dependencies(program);
  report::Timeline head;
  head.program = program.name();
  const RunFingerprint settings = update.settings();
  const std::string* const collective = find_item(settings, "all-reduce");
  head.collective = collective != nullptr ? *collective : std::string(update.name());
  head.wire = to_string(plan.config.wire);
  head.reproducible = plan.config.reproducible;
  const bool local = program.name().starts_with(report::kLocalSteps);
  head.images_per_rank = static_cast<std::uint64_t>(plan.sizes.batch * (local ? plan.sizes.local_steps : 1));
  head.image_size = static_cast<std::uint64_t>(image_size);
  const std::vector<std::int32_t> rows = timeline_rows(program);
  for (std::size_t i = 0; i < program.tasks().size(); ++i) {
    const engine::Task& task = program.tasks()[i];
    if (static_cast<std::size_t>(rows[i]) < head.tasks.size()) continue;
    for (engine::TaskId& other : after[i]) other = rows[static_cast<std::size_t>(other)];
    head.tasks.push_back({task.name, lanes[i], task.kind, summed_bytes(task), std::move(after[i])});
  }
  head.hosts.assign(plan.world.hosts().begin(), plan.world.hosts().begin() + plan.sizes.workers);
  head.clock_uncertainty_ns.resize(head.hosts.size(), 0);
  return head;
}

void note_past_trace(const Plan& plan) {
  const config::TraceWindow& asked = plan.config.trace;
  if (asked.first == 0 || asked.last > plan.progress.step) return;
  plan.log.info(concat("note: the run is at step ", plan.progress.step, ", past those of --trace ",
                       describe(asked), ": nothing is traced"));
}

StepRecording::StepRecording(const Plan& plan, const comm::Update& update, engine::Runner& step,
                             std::vector<std::uint64_t> boundaries, const engine::Replay& first)
    : plan_(plan),
      update_(update),
      step_(step),
      image_size_(step_kind(plan, first.begin).image_size),
      schedule_(plan.sizes.steps_per_epoch, first.begin, program_end(plan, first.begin),
                std::move(boundaries), first.steps()),
      next_(plan.sizes.partial_aggregation() ? std::nullopt : schedule_.next(first.begin)),
      rows_(timeline_rows(step_.program())),
      recorder_(make_recorder(step_.program(), kGathered)) {
  const config::TraceWindow& asked = plan_.config.trace;
  // The rest of a trace is one of its own, except after the change to local steps, whose replays are longer.
  const bool first_program =
      first.begin == plan_.progress.step || plan_.config.update != comm::UpdateKind::local;
  if (asked.first > 0 && (first_program || asked.first > first.begin)) asked_ = {asked.first - 1, asked.last};
  if (plan_.world.rank() != 0) return;
  const DirectoryEntry file = *plan_.run / "timeline.h5";
  // With partial aggregation ranks are in different steps: an earlier start's records say nothing about this
  // one.
  if (plan_.sizes.partial_aggregation()) {
    remove_file(file);
    return;
  }
  file_ = std::make_unique<report::TimelineFile>(
      file, timeline_head(plan_, update_, step_.program(), image_size_), first.begin, plan_.log);
}

void StepRecording::before_launch(const engine::Replay& next) {
  // A step later than possible, so that the last step's loss is known, too.
  if (tracing_ && (next.begin > tracing_->end || (next.begin == tracing_->end && traces(next)))) end_trace();
  if (!records(next)) pause();
  if (!tracing_ && recorder_->full()) {
    pause();
    gather();
  }
  if (!records(next)) return;
  if (!tracing_ && traces(next)) begin_trace(next);
  if (recorded_.empty()) clock_ = comm::compare_clocks(plan_.world);
  const bool sample = samples(next);
  if (sample) next_ = schedule_.next(next.end);
  recorded_.push_back({next.begin, sample, {}});
  if (recording_) return;
  recording_ = true;
  step_.observe({recorder_.get()});
}

void StepRecording::note(std::uint64_t step, const engine::StepRecord& record) {
  for (Recorded& recorded : recorded_) {
    if (recorded.step == step) recorded.loss = record.cross_entropy + record.decay_term;
  }
}

void StepRecording::pause() {
  if (recording_) step_.observe({});
  recording_ = false;
}

void StepRecording::finish() {
  pause();
  if (tracing_) {
    end_trace();
  } else if (!recorded_.empty()) {
    gather();
  }
  if (file_) file_->finish();
}

/// With space for all of its steps, and for a sample after them.
void StepRecording::begin_trace(const engine::Replay& first) {
  pause();
  if (!recorded_.empty()) gather();
  std::uint64_t asked = requested_              ? first.begin + kTracedOnRequest
                        : rest_.overlaps(first) ? rest_.end
                                                : asked_.end;
  if (asked_.begin <= asked) asked = std::max(asked, asked_.end);  // one trace for both
  const std::uint64_t program_end = step::program_end(plan_, first.begin);
  const bool spans = asked > program_end && plan_.config.update != comm::UpdateKind::local;
  rest_ = spans ? engine::Replay{program_end, asked} : engine::Replay{};
  asked = std::min(asked, program_end);
  requested_ = false;
  std::uint64_t end = first.begin, replays = 0;
  for (; end < asked; ++replays) end += first.steps();
  tracing_ = engine::Replay{first.begin, end};
  recorder_ = make_recorder(step_.program(), replays + 1);
  plan_.log.info(concat("tracing steps ", first.begin + 1, " to ", tracing_->end,
                        step_.replays_graphs()
                            ? "; meanwhile the step's graph is split into its tasks, which takes longer"
                            : ""));
}

void StepRecording::end_trace() {
  pause();
  gather();
  tracing_.reset();
  recorder_ = make_recorder(step_.program(), kGathered);
}

std::vector<report::Timeline::Step> StepRecording::collect(std::size_t first, std::size_t count,
                                                           const comm::ClockTranslation& clock) {
  std::vector<std::vector<std::byte>> ranks =
      plan_.world.collect(pack(*recorder_, first, count, clock, step_.program(), rows_).bytes());
  // A server's program differs.
  if (!ranks.empty()) ranks.resize(static_cast<std::size_t>(plan_.sizes.workers));
  std::vector<report::Timeline::Step> steps(plan_.world.rank() == 0 ? count : 0);
  clock_uncertainty_.clear();
  for (const std::vector<std::byte>& bytes : ranks) {
    Unpacked from(bytes);
    clock_uncertainty_.push_back(from.take());
    for (report::Timeline::Step& step : steps) step.ranks.push_back(unpack(from));
  }
  for (std::size_t i = 0; i < steps.size(); ++i) steps[i].step = recorded_[first + i].step;
  return steps;
}

/// A few steps at a time, which limits the memory that rank 0 needs.
void StepRecording::gather() {
  const comm::ClockTranslation clock{clock_, comm::compare_clocks(plan_.world)};
  const bool traced = tracing_ && plan_.world.rank() == 0;
  report::TraceFile trace;
  std::optional<report::PerfettoTrace> perfetto;
  std::vector<report::Timeline::Step> samples;
  if (traced) trace = report::TraceFile(*plan_.run / "trace", recorded_.front().step + 1, plan_.log);
  for (std::size_t first = 0; first < recorded_.size(); first += kGathered) {
    std::vector<report::Timeline::Step> steps =
        collect(first, std::min(kGathered, recorded_.size() - first), clock);
    if (traced && !perfetto) {
      report::Timeline head = timeline_head(plan_, update_, step_.program(), image_size_);
      head.clock_uncertainty_ns = clock_uncertainty_;
      perfetto.emplace(std::move(head));
      trace.append(perfetto->begin());
    }
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const Recorded& recorded = recorded_[first + i];
      if (traced && tracing_->has(recorded.step)) trace.append(perfetto->step(steps[i], recorded.loss));
      if (recorded.sample) samples.push_back(std::move(steps[i]));
    }
  }
  if (const std::string path = trace.finish(); !path.empty()) {
    const std::uint64_t last = std::min(recorded_.back().step + 1, tracing_->end);
    plan_.log.info(concat("trace: steps ", recorded_.front().step + 1, " to ", last, " of all ranks in ",
                          path, "; https://ui.perfetto.dev shows it"));
  }
  recorded_.clear();
  recorder_->clear();
  if (file_ && !samples.empty()) file_->add(std::move(samples), clock_uncertainty_);
}

}  // namespace cifar_mpi::step
