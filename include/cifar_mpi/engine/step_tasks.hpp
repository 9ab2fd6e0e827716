#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/engine/backend.hpp"

/// The tasks of a step as data: their names and the bytes they read and write are the same on every device. A backend
/// adds `start`, and whatever memory of its own the task touches.
namespace cifar_mpi::engine {

/// `request_word` holds the requests of the binding where the device reads them; empty: there are no requests.
Task declare_control(const TrainBinding& binding, const Bytes& request_word);
Task declare_compute_time(const RankFacts* facts);
/// The tasks write `batch` images of the size that the binding's AugmentSpec gives, of `value_bytes` per value, and their
/// labels. Throw Error{usage} as data::check_crop.
Task declare_train_input(const TrainBinding& binding, int batch, std::size_t value_bytes, const void* x,
                         const std::uint8_t* labels);
Task declare_evaluate_input(const EvaluateBinding& binding, int batch, std::size_t value_bytes, const void* x,
                            const std::uint8_t* labels);
Task declare_update(const UpdateBinding& binding);
Task declare_gradient_norm(const GradientNormBinding& binding);
Task declare_running(const RunningBinding& binding, const ParamLayout& layout);
/// The records are the backend's own: it adds them to what the task writes.
Task declare_advance(const AdvanceBinding& binding);
Task declare_sum(std::string name, const SumBinding& binding);
Task declare_copy(std::string name, const std::vector<CopyBinding>& bindings);
Task declare_increment(std::string name, const std::uint64_t* counter);

}  // namespace cifar_mpi::engine
