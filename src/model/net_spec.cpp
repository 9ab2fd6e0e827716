#include "cifar_mpi/model/net_spec.hpp"

#include <algorithm>
#include <variant>

namespace cifar_mpi::model {

bool Operation::trains(std::uint64_t done) const {
  return std::ranges::any_of(params, [done](const Param& param) { return param.trains(done); });
}

std::vector<std::vector<std::size_t>> readers_of(const NetSpec& net) {
  std::vector<std::vector<std::size_t>> readers(net.values.size());
  for (std::size_t i = 0; i < net.operations.size(); ++i) {
    for (const Value input : net.operations[i].inputs) readers[input.id].push_back(i);
  }
  return readers;
}

std::vector<bool> wants_gradient(const NetSpec& net, std::uint64_t done) {
  std::vector<bool> wants(net.values.size(), false);
  for (const Operation& operation : net.operations) {
    const bool inherits = std::ranges::any_of(operation.inputs, [&](Value input) { return wants[input.id]; });
    wants[operation.output.id] = inherits || operation.trains(done);
  }
  return wants;
}

std::string_view classifier_of(const NetSpec& net) {
  for (const Operation& operation : net.operations) {
    if (operation.output == net.logits() && std::holds_alternative<Linear>(operation.layer))
      return operation.name;
  }
  return {};
}

Flops training_flops(const NetSpec& net, std::uint64_t done) {
  const std::vector<bool> wants = wants_gradient(net, done);
  Flops total;
  for (const Operation& operation : net.operations) {
    const double passes =
        1.0 + (operation.trains(done) ? 1.0 : 0.0) + (wants[operation.inputs.front().id] ? 1.0 : 0.0);
    total.nominal += passes * operation.forward.nominal;
    total.in_image += passes * operation.forward.in_image;
  }
  return total;
}

}  // namespace cifar_mpi::model
