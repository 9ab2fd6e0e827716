#pragma once

#include <string>
#include <vector>

#include "cifar_mpi/comm/update.hpp"
#include "cifar_mpi/step/plan.hpp"
#include "cifar_mpi/step/step.hpp"
#include "run/resume.hpp"

/// What the log says when a run starts.
namespace cifar_mpi::train {

/// ", whitening/biases frozen"; empty if all trained parameters have gradients in such steps.
std::string frozen_text(const step::Plan& plan, const step::StepKind& kind);

/// Model, data, schedule, length and notes. Rank 0 logs it; it is a worker, and a server lacks some of these facts.
void describe_run(const step::Plan& plan, const step::Device& device, const comm::Update& update,
                  const run::Start& start);

/// `slower`: one line per kernel that is not the first choice. Rank 0 logs it, and rank 0 computes.
void describe_kernels(const step::Plan& plan, const step::Device& device,
                      const std::vector<std::string>& slower);

}  // namespace cifar_mpi::train
