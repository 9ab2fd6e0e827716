#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cifar_mpi/engine/backend.hpp"

/// The tasks of a step as data: names and bytes read and written, equal on every device. A backend adds
/// `start` and the memory of its own that the task touches.
namespace cifar_mpi::engine {

/// `request_word` holds the binding's requests where the device reads them; empty: no requests.
Task declare_control(const TrainBinding& binding, const Bytes& request_word);
Task declare_compute_time(const RankFacts* facts);
/// The tasks write `batch` images, sized by the binding's AugmentSpec, with `value_bytes` per value, and
/// their labels. Throw Error{usage} as data::check_crop does.
Task declare_train_input(const TrainBinding& binding, int batch, std::size_t value_bytes, const void* x,
                         const std::uint8_t* labels);
Task declare_evaluate_input(const EvaluateBinding& binding, int batch, std::size_t value_bytes, const void* x,
                            const std::uint8_t* labels);
Task declare_update(const UpdateBinding& binding);
/// The tasks of a hidden matrix but its products. The first gathers its Nesterov direction, divided by its norm, into
/// `x` [rest, out]; one per iteration replaces the product `aa` [n, n] by a polynomial of it and `a`; the last writes
/// the result to the block of moves, with 0 for -0, because a sum with zeros loses that sign. The weights are
/// normalized in the steps of optim::normalizes.
Task declare_gather(const UpdateBinding& binding, const Matrix& matrix, const float* x);
Task declare_polynomial(const Matrix& matrix, std::size_t n, const float* a, const float* aa);
Task declare_scatter(const UpdateBinding& binding, const Matrix& matrix, const float* x);
Task declare_normalize(const UpdateBinding& binding, const Matrix& matrix);
Task declare_gradient_norm(const GradientNormBinding& binding);
Task declare_running(const RunningBinding& binding, const ParamLayout& layout);
Task declare_lookahead(const LookaheadBinding& binding);
/// The backend adds its records to the bytes that the task writes.
Task declare_advance(const AdvanceBinding& binding);
Task declare_sum(std::string name, const SumBinding& binding);
Task declare_copy(std::string name, const std::vector<CopyBinding>& bindings);
Task declare_increment(std::string name, const std::uint64_t* counter);

}  // namespace cifar_mpi::engine
