#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/model/net_spec.hpp"
#include "cifar_mpi/model/param_table.hpp"

namespace cifar_mpi::model {
namespace {

using Row = std::array<std::string, 6>;

/// Text to the left, numbers to the right.
std::string lines_of(const std::vector<Row>& rows) {
  std::array<std::size_t, 6> widths{};
  for (const Row& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      line += c >= 4 ? padding + row[c] + "  " : row[c] + padding + "  ";
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return text;
}

}  // namespace

std::string summary(const NetSpec& net) {
  const ParamTable table = make_param_table(net);
  std::vector<Row> rows{{"name", "operation", "reads", "output", "parameters", "MFLOP"},
                        {"image", "", "", to_string(net.input), "", ""}};
  const auto name_of = [&](Value value) {
    for (const Operation& operation : net.operations) {
      if (operation.output == value) return operation.name;
    }
    return std::string("image");
  };
  double all = 0.0;
  for (std::size_t i = 0; i < net.operations.size(); ++i) {
    const Operation& operation = net.operations[i];
    std::string reads;
    for (const Value input : operation.inputs) reads += concat(reads.empty() ? "" : ", ", name_of(input));
    const std::int64_t params = param_count(operation.params);
    rows.push_back(
        {operation.name, std::string(operation.kind), reads, to_string(net.output_of(i)),
         params > 0 ? concat(params) : "",
         operation.forward.nominal > 0.0 ? fmt::format("{:.3f}", operation.forward.nominal * 1e-6) : ""});
    all += operation.forward.nominal;
  }
  std::int64_t trained = 0;
  std::uint64_t frozen_at = 0;
  for (const Param& param : table) {
    trained += param.role == ParamRole::trained ? param.shape.count() : 0;
    frozen_at = std::max(frozen_at, param.steps);
  }
  const auto step_mflop = [&](std::uint64_t done) { return training_flops(net, done).nominal * 1e-6; };
  return concat(
      "model ", net.name, ", ", net.classes, " classes\n", lines_of(rows), "parameters: ", param_count(table),
      ", of these trained: ", trained, "\nper image: ",
      fmt::format("{:.1f} MFLOP forward, {:.1f} MFLOP a training step", all * 1e-6, step_mflop(frozen_at)),
      frozen_at > 0 ? fmt::format(", {:.1f} in the first {} steps", step_mflop(0), frozen_at) : "",
      " (every tap counted; a multiply-add is two)\n");
}

}  // namespace cifar_mpi::model
