#include "train/step_recording.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/engine/dependencies.hpp"

namespace cifar_mpi::train {
namespace {

constexpr double kSamplesPerEpoch = 10.0;
constexpr double kLeastDistance = 10.0;  // steps
constexpr std::uint64_t kWarmUp = 2;
constexpr std::size_t kGathered = 10;  // samples

/// Of a replay. A task lets collectives move between its pieces, and is charged anew behind each time.
std::size_t most_slices(const engine::StepProgram& program) { return 4096 + 16 * program.tasks().size(); }

/// What a rank sends of its replays: numbers in a row.
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

/// Replays [first, first + count), by rank 0's clock; of what a runner did not record, nothing at no time.
Packed pack(const engine::Recorder& recorder, std::size_t first, std::size_t count,
            const comm::ClockTranslation& clock) {
  Packed packed;
  packed.put(clock.uncertainty());
  for (std::size_t i = first; i < first + count; ++i) {
    if (i >= recorder.replays()) {
      for (int zero = 0; zero < 4; ++zero) packed.put(0);
      continue;
    }
    const engine::Recorder::Replay replay = recorder[i];
    packed.put(clock.to_rank_zero(replay.begin_ns));
    packed.put(clock.to_rank_zero(replay.end_ns));
    packed.put(static_cast<std::int64_t>(replay.dropped));
    packed.put(static_cast<std::int64_t>(replay.slices.size()));
    for (const engine::Recorder::Slice& slice : replay.slices) {
      packed.put(slice.task);
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
  step.slices.resize(static_cast<std::size_t>(from.take()));
  for (report::Slice& slice : step.slices) {
    slice.task = static_cast<std::int32_t>(from.take());
    slice.begin_ns = from.take();
    slice.end_ns = from.take();
  }
  return step;
}

/// What the task sums, where it is a collective.
std::uint64_t summed_bytes(const engine::Task& task) {
  std::uint64_t most = 0;
  if (task.kind != engine::TaskKind::collective) return most;
  for (const engine::Bytes& range : task.writes) most = std::max<std::uint64_t>(most, range.size);
  return most;
}

}  // namespace

SampleSchedule::SampleSchedule(double steps_per_epoch, std::uint64_t begun, std::uint64_t total,
                               std::vector<std::uint64_t> boundaries)
    : stretch_(std::max(steps_per_epoch / kSamplesPerEpoch, kLeastDistance)),
      begun_(begun),
      total_(total),
      boundaries_(std::move(boundaries)) {}

bool SampleSchedule::is_ordinary(std::uint64_t step) const {
  const std::uint64_t done = step + 1;
  return step >= begun_ + kWarmUp && done < total_ &&
         std::none_of(boundaries_.begin(), boundaries_.end(),
                      [&](std::uint64_t every) { return done % every == 0; });
}

std::optional<std::uint64_t> SampleSchedule::next(std::uint64_t from) const {
  const auto middle = [&](std::uint64_t stretch) {
    return static_cast<std::uint64_t>((static_cast<double>(stretch) + 0.5) * stretch_);
  };
  auto stretch = static_cast<std::uint64_t>(static_cast<double>(from) / stretch_);
  if (stretch > 0) --stretch;  // the sample of the one before may stand in this one
  for (; middle(stretch) < total_; ++stretch) {
    const std::uint64_t end = std::min(middle(stretch + 1), total_);
    std::uint64_t step = middle(stretch);
    while (step < end && !is_ordinary(step)) ++step;
    if (step < end && step >= from) return step;
  }
  return std::nullopt;
}

report::Timeline timeline_head(const SessionState& state) {
  const engine::StepProgram& program = state.step->program();
  const std::vector<engine::LaneId> lanes = engine::lanes_of(program);
  std::vector<std::vector<engine::TaskId>> after = engine::find_dependencies(program);
  report::Timeline head;
  head.program = program.name();
  const RunFingerprint settings = state.update->settings();
  const std::string* const collective = find_item(settings, "all-reduce");
  head.collective = collective != nullptr ? *collective : std::string(state.update->name());
  head.wire = to_string(state.config.wire);
  head.images_per_rank = static_cast<std::uint64_t>(state.sizes.batch);
  for (std::size_t i = 0; i < program.tasks().size(); ++i) {
    const engine::Task& task = program.tasks()[i];
    head.tasks.push_back({task.name, lanes[i], task.kind, summed_bytes(task), std::move(after[i])});
  }
  head.hosts = state.world.hosts();
  head.clock_uncertainty_ns.resize(head.hosts.size(), 0);
  return head;
}

StepRecording::StepRecording(SessionState& state, std::vector<std::uint64_t> boundaries)
    : s_(state),
      schedule_(state.sizes.steps_per_epoch, state.progress.step, state.sizes.total_steps,
                std::move(boundaries)),
      next_(schedule_.next(state.progress.step)),
      recorder_(kGathered, most_slices(state.step->program())) {
  if (s_.world.rank() != 0) return;
  file_ = std::make_unique<report::TimelineFile>(s_.config.run_dir + "/timeline.h5", timeline_head(s_),
                                                 s_.progress.step, s_.log);
}

void StepRecording::before_launch(std::uint64_t step) {
  if (recording_) stop_recording();
  if (recorder_.full()) gather();
  if (!records(step)) return;
  if (steps_.empty()) clock_ = comm::compare_clocks(s_.world);
  next_ = schedule_.next(step + 1);
  steps_.push_back(step);
  recording_ = true;
  s_.step->observe({&recorder_});
}

void StepRecording::stop_recording() {
  s_.step->observe({});
  recording_ = false;
}

void StepRecording::finish() {
  if (recording_) stop_recording();
  if (!steps_.empty()) gather();
  if (file_) file_->finish();
}

void StepRecording::gather() {
  const comm::ClockTranslation clock{clock_, comm::compare_clocks(s_.world)};
  const std::vector<std::vector<std::byte>> ranks =
      s_.world.collect(pack(recorder_, 0, steps_.size(), clock).bytes());
  const std::vector<std::uint64_t> numbers = std::exchange(steps_, {});
  recorder_.clear();
  if (!file_) return;
  std::vector<report::Timeline::Step> steps(numbers.size());
  std::vector<std::int64_t> uncertainty;
  for (std::size_t i = 0; i < steps.size(); ++i) steps[i].step = numbers[i];
  for (const std::vector<std::byte>& bytes : ranks) {
    Unpacked from(bytes);
    uncertainty.push_back(from.take());
    for (report::Timeline::Step& step : steps) step.ranks.push_back(unpack(from));
  }
  file_->add(std::move(steps), uncertainty);
}

}  // namespace cifar_mpi::train
