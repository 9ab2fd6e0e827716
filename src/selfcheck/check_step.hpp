#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cifar_mpi/step/step.hpp"

namespace cifar_mpi::selfcheck {

/// The training step of a run's network on generated images, on one device; self-checks compare its results.
class CheckStep {
 public:
  /// Throws Error{device} if the device cannot be used.
  CheckStep(const config::TrainConfig& config, const data::DatasetInfo& info, const comm::World& world,
            const comm::PlatformFactory& make_platform);

  /// Plans the network again for a step of this rank alone, with the batch in so many parts; first frees the
  /// memory of the previous plan.
  void plan_alone(engine::Precision precision, int batch, int parts);

  /// Plans the programs that the run would replay, with its way to update, which must not be servers.
  /// Collective; an error of one rank is thrown on all. Returns a line for each kernel that is not the first
  /// choice.
  std::vector<std::string> plan_run(engine::Precision precision, const config::Sizes& sizes);

  /// Fills the batch with `count` generated images, repeated, each equally often in every part, and sets
  /// weights of ordinary size, each off by that share up or down. All of it is a function of `draw`.
  void fill(std::uint64_t draw, int count, double off = 0.0);
  /// Restores the weights of `fill`, before the first step.
  void rewind();
  /// Saves and restores the state after so many steps through a checkpoint's tensors, as a run resumes.
  void resume(std::uint64_t step);

  /// plain: the centre of each image; distorted: as in the run; not_a_number: NaN in every value.
  enum class Input : std::uint8_t { plain, distorted, not_a_number };
  /// The step, on the filled batch.
  std::unique_ptr<engine::Runner> runner(engine::RunnerKind kind, Input input);
  /// The program of `plan_run`; with local steps, all those between two averagings.
  std::unique_ptr<engine::Runner> run_runner(engine::RunnerKind kind);

  /// Gradients of the last step, by ParamTable index in logical order; for running statistics, the batch's.
  std::vector<std::vector<float>> gradients() const;
  /// The cross-entropy of the last step, a mean over the batch.
  double loss() const;
  /// Every row of the run's state, as it lies in memory.
  std::vector<std::vector<float>> rows() const;
  /// The images of the first part of the last batch, one after another, if the runner observed them.
  std::vector<float> images() const;
  /// The expected images.
  std::vector<float> wanted_images() const;

  step::StepContext context() { return {plan, device, *blocks, *blocks->update}; }

  step::Plan plan;
  step::Device device;
  std::optional<step::Blocks> blocks;  ///< of the last plan
  comm::GradientBlock left_in_flight;  ///< from an exchange that failed; kept until the next plan

 private:
  void plan_network_for(engine::Precision precision, const config::Sizes& sizes);

  comm::UpdateKind update_;  ///< of the run
  data::AugmentSpec augment_;
  data::Samples samples_;  ///< in the order of the device's memory
  run::StateTensors begin_;
};

}  // namespace cifar_mpi::selfcheck
