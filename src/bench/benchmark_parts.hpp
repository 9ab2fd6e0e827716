#pragma once

#include "cifar_mpi/step/step.hpp"

/// What benchmarks of whole steps have in common.
namespace cifar_mpi::bench {

/// A model on generated images of 32x32x3: the tutorial's with the tutorial's input and SGD, the others with what their
/// recipes give them, the whole image and momentum; at a rate at which nothing diverges.
config::TrainConfig benchmark_config(const std::string& model);

/// Those images, enough that a step does not find its own in the cache, as in a run.
data::DatasetInfo generated_images(const config::TrainConfig& config, int ranks);

/// The steps of a run on those images, without a run directory.
struct BenchmarkRun {
  BenchmarkRun(config::TrainConfig config, const comm::World& world)
      : plan(std::move(config), world, Log(world.rank())) {}

  /// Everything up to the planned network. Not all ranks may fail alike.
  void build(const comm::PlatformFactory& make_platform);
  /// The initial values of all rows.
  void write_initial_state();
  step::StepContext context() { return {plan, device, blocks, *blocks.update}; }

  step::Plan plan;
  step::Device device;
  step::Blocks blocks;
};

}  // namespace cifar_mpi::bench
