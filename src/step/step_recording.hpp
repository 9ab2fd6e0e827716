#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cifar_mpi/comm/clock.hpp"
#include "cifar_mpi/engine/recorder.hpp"
#include "cifar_mpi/report/timeline_file.hpp"
#include "cifar_mpi/step/step.hpp"
#include "report/perfetto.hpp"
#include "report/trace_file.hpp"

namespace cifar_mpi::step {

/// The steps of a run that are samples: ten per epoch at even distances, but at most one in ten steps.
///
/// Each is the first typical step after the middle of its stretch: none of the first two of a start, which
/// warm up, and none that is followed by collective work between steps.
class SampleSchedule {
 public:
  /// Collective work between steps comes at this interval and after the last step. A replay of several steps
  /// counts as one here.
  SampleSchedule(double steps_per_epoch, std::uint64_t begun, std::uint64_t total,
                 std::vector<std::uint64_t> boundaries, std::uint64_t replay = 1);

  /// The first sample among the steps numbered `from` and more; nothing if there is none.
  std::optional<std::uint64_t> next(std::uint64_t from) const;

 private:
  bool is_ordinary(std::uint64_t step) const;

  double stretch_;
  std::uint64_t first_;  ///< that may be a sample
  std::uint64_t total_;
  std::vector<std::uint64_t> boundaries_;
};

/// The tasks of the step program, those of local steps once, and other facts that do not change while it
/// runs. `image_size` as StepKind has it.
report::Timeline timeline_head(const Plan& plan, const comm::Update& update,
                               const engine::StepProgram& program, int image_size = 0);

/// Logs a note if all steps of --trace are done.
void note_past_trace(const Plan& plan);

/// Records steps on this rank; rank 0 gathers them: samples for RUN_DIR/timeline.h5, ten at a time, and the steps of
/// a trace for RUN_DIR/trace when its last one is done.
///
/// Every rank has one, and calls it at the same steps. It costs a few messages for the gathering, and the
/// runner's recorder.
class StepRecording {
 public:
  /// Steps that SIGUSR2 asks for.
  static constexpr std::uint64_t kTracedOnRequest = 10;

  /// From the replay `first` on, with which the run starts or its program changes. Rank 0 reads what was
  /// written before. `plan`, `update` and `step` must outlive this object.
  StepRecording(const Plan& plan, const comm::Update& update, engine::Runner& step,
                std::vector<std::uint64_t> boundaries, const engine::Replay& first);

  /// Whether a replay of these steps is recorded, so that it must be launched by itself.
  bool records(const engine::Replay& steps) const { return samples(steps) || traces(steps); }
  /// The runner's recorder; null if it does not record now.
  engine::Recorder* recorder() const { return recording_ ? recorder_.get() : nullptr; }
  /// Right before the launch that begins with this replay; collective.
  void before_launch(const engine::Replay& next);
  /// A rank was asked for a trace, and all ranks know it: the trace begins with the next launch, unless one
  /// is in progress.
  void trace_next() { requested_ = !tracing_.has_value(); }
  /// Whether it has not begun.
  bool requested() const { return requested_; }
  /// The steps of a trace that the next program makes; empty if there are none.
  const engine::Replay& rest() const { return rest_; }
  /// Traces the rest of a trace that the previous program began.
  void trace_rest(const engine::Replay& steps) { rest_ = steps; }
  /// The record of the replay that began with this step; in order, and before the launch of the second replay
  /// after it.
  void note(std::uint64_t step, const engine::StepRecord& record);
  /// Marks that all launched steps are done.
  void pause();
  /// After the last step, when all are done; collective.
  void finish();

 private:
  /// A replay of the recorder.
  struct Recorded {
    std::uint64_t step = 0;  ///< with which it begins
    bool sample = false;
    std::optional<double> loss;
  };

  bool samples(const engine::Replay& steps) const { return next_ && steps.has(*next_); }
  bool traces(const engine::Replay& steps) const {
    return requested_ || (tracing_ && tracing_->overlaps(steps)) || asked_.overlaps(steps) ||
           rest_.overlaps(steps);
  }
  void begin_trace(const engine::Replay& first);
  void end_trace();
  void gather();
  std::vector<report::Timeline::Step> collect(std::size_t first, std::size_t count,
                                              const comm::ClockTranslation& clock);

  const Plan& plan_;
  const comm::Update& update_;
  engine::Runner& step_;
  const int image_size_;
  SampleSchedule schedule_;
  std::optional<std::uint64_t> next_;  ///< the next sample
  engine::Replay asked_;               ///< --trace
  engine::Replay rest_;                ///< of a trace: of the previous program, then for the next one
  bool requested_ = false;
  std::optional<engine::Replay> tracing_;
  std::vector<std::int32_t> rows_;  ///< by TaskId: which of the timeline's tasks it is
  std::unique_ptr<engine::Recorder> recorder_;
  std::vector<Recorded> recorded_;
  bool recording_ = false;
  comm::ClockReading clock_;  ///< when the first of them began
  std::vector<std::int64_t>
      clock_uncertainty_;  ///< by rank, of what was collected last; rank 0's, as the next
  std::unique_ptr<report::TimelineFile> file_;
};

}  // namespace cifar_mpi::step
