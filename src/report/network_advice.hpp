#pragma once

#include <cstddef>
#include <string>

#include "report/losses.hpp"

/// The part of a verdict about the network.
namespace cifar_mpi::report {

/// The number of hosts of the sampled ranks.
std::size_t nodes_of(const Timeline& timeline, const SampledSteps& sampled);

/// The collective that ranks wait for longest: "bucket 1 between nodes".
std::string waited_for(const Timeline& timeline, const SampledSteps& sampled);

/// "; --wire bf16 would halve that, ...": options to try, with their replayed gains; empty if there are none.
/// Names no option that conflicts with the run's other options.
std::string network_advice(const Timeline& timeline, const SampledSteps& sampled, const Losses& losses,
                           const WhatIf& what_if);

/// " (256 images)": the images of a step of a rank with twice the batch; empty if the timeline lacks their number.
std::string twice_the_images(const Timeline& timeline);

}  // namespace cifar_mpi::report
