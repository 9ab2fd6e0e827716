#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cifar_mpi/comm/clock.hpp"
#include "cifar_mpi/engine/recorder.hpp"
#include "cifar_mpi/report/timeline_file.hpp"
#include "train/state.hpp"

namespace cifar_mpi::train {

/// Which steps of a run are samples: ten per epoch at even distances, but at most one in ten steps.
///
/// Each is the first one from the middle of its stretch on that stands for the others: none of the first two of a
/// start, which warm up, and none that is followed by what the ranks do together between steps.
class SampleSchedule {
 public:
  /// Every so many steps the ranks do something together; they also do behind the last step.
  SampleSchedule(double steps_per_epoch, std::uint64_t begun, std::uint64_t total,
                 std::vector<std::uint64_t> boundaries);

  /// The first sample of the steps numbered `from` and more; nothing when there is none.
  std::optional<std::uint64_t> next(std::uint64_t from) const;

 private:
  bool is_ordinary(std::uint64_t step) const;

  double stretch_;
  std::uint64_t begun_;
  std::uint64_t total_;
  std::vector<std::uint64_t> boundaries_;
};

/// The tasks of the step program, and what else does not change in a run.
report::Timeline timeline_head(const SessionState& state);

/// Records the sampled steps on this rank; rank 0 gathers them for RUN_DIR/timeline.h5, ten at a time.
///
/// Every rank has one, and calls it at the same steps. Beside the gathering, which is a few messages, it costs what
/// the runner's recorder does.
class StepRecording {
 public:
  /// On rank 0 reads what an earlier start has left. `state` must outlive this object.
  StepRecording(SessionState& state, std::vector<std::uint64_t> boundaries);

  /// Whether step number `step`, from 0 on, is to be launched by itself.
  bool records(std::uint64_t step) const { return step == next_; }
  /// Right before the launch that begins with this step; collective.
  void before_launch(std::uint64_t step);
  /// After the last step, when all are done; collective.
  void finish();

 private:
  void stop_recording();
  void gather();

  SessionState& s_;
  SampleSchedule schedule_;
  std::optional<std::uint64_t> next_;  ///< the next sample
  engine::Recorder recorder_;
  std::vector<std::uint64_t> steps_;  ///< of the recorder's replays
  bool recording_ = false;
  comm::ClockReading clock_;                    ///< when `steps_` began
  std::unique_ptr<report::TimelineFile> file_;  ///< rank 0's
};

}  // namespace cifar_mpi::train
