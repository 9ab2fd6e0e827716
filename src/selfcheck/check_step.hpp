#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cifar_mpi/step/step.hpp"

namespace cifar_mpi::selfcheck {

/// The training step of a run's network on generated images, on one device: what self-checks compare.
class CheckStep {
 public:
  /// Throws Error{device} where the device cannot be used.
  CheckStep(const config::TrainConfig& config, const data::DatasetInfo& info, const comm::World& world,
            const comm::PlatformFactory& make_platform);

  /// Plans the network anew for a step of this rank alone, of a batch in so many parts; the memory of the plan before is given
  /// back first.
  void plan_alone(engine::Precision precision, int batch, int parts);

  /// Plans what the run would replay, with its way to update, which must not be that of servers. Collective; an error of one
  /// rank is thrown on all. Returns a line for each kernel that is not the first choice.
  std::vector<std::string> plan_run(engine::Precision precision, const config::Sizes& sizes);

  /// Puts `count` generated images into the batch, the same ones again and again, each as often in every part, and
  /// weights of ordinary size, each of them off by that share up or down. All of it a function of `draw`.
  void fill(std::uint64_t draw, int count, double off = 0.0);
  /// Back to the weights of `fill`, before the first step.
  void rewind();
  /// The state as it is, by way of a checkpoint's tensors, after so many steps: as a run resumes.
  void resume(std::uint64_t step);

  /// plain: the centre of each image; distorted: as in the run; not_a_number: NaN in every value.
  enum class Input : std::uint8_t { plain, distorted, not_a_number };
  /// The step, on the filled batch.
  std::unique_ptr<engine::Runner> runner(engine::RunnerKind kind, Input input);
  /// What `plan_run` has planned; of local steps all those between two averagings.
  std::unique_ptr<engine::Runner> run_runner(engine::RunnerKind kind);

  /// Of the last step: by ParamTable index in logical order; of running statistics those of the batch.
  std::vector<std::vector<float>> gradients() const;
  /// The cross-entropy of the last step, a mean over the batch.
  double loss() const;
  /// Every row of the run's state, as it lies in memory.
  std::vector<std::vector<float>> rows() const;
  /// What the first part of the last batch looked like, where the runner looked on; behind one another.
  std::vector<float> images() const;
  /// What it should have looked like.
  std::vector<float> wanted_images() const;

  step::StepContext context() { return {plan, device, *blocks, *blocks->update}; }

  step::Plan plan;
  step::Device device;
  std::optional<step::Blocks> blocks;  ///< of the last plan
  comm::GradientBlock left_in_flight;  ///< of an exchange that failed; until the next plan

 private:
  void plan_network_for(engine::Precision precision, const config::Sizes& sizes);

  comm::UpdateKind update_;  ///< of the run
  data::AugmentSpec augment_;
  data::Samples samples_;  ///< in the order of the device's memory
  run::StateTensors begin_;
};

}  // namespace cifar_mpi::selfcheck
