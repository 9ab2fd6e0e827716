#pragma once

#include <cstddef>
#include <string>

#include "report/losses.hpp"

/// What a verdict says of the network.
namespace cifar_mpi::report {

/// How many hosts the sampled ranks are on.
std::size_t nodes_of(const Timeline& timeline, const SampledSteps& sampled);

/// "bucket 1 between nodes": what ranks wait for longest.
std::string waited_for(const Timeline& timeline, const SampledSteps& sampled);

/// "; --wire bf16 would halve that, ...": what there is to try, with what it would gain, replayed; empty where there is
/// nothing. Names no option that the run's other options refuse.
std::string network_advice(const Timeline& timeline, const SampledSteps& sampled, const Losses& losses,
                           const WhatIf& what_if);

/// " (256 images)": of a step of a rank with twice the batch; empty where the timeline does not say.
std::string twice_the_images(const Timeline& timeline);

}  // namespace cifar_mpi::report
