#include <algorithm>
#include <span>
#include <sstream>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "cuda/kernels.hpp"

namespace cifar_mpi::cuda {

int Ladder::start_of(const std::string& kernel) const {
  const auto found = agreed_.find(kernel);
  return found == agreed_.end() ? 0 : found->second.rung;
}

void Ladder::step_down(const std::string& kernel, int rung, const std::string& text) {
  taken_[kernel] = {rung, text};
}

bool Ladder::agree(const comm::World& world) {
  std::string mine;
  for (const auto& [kernel, step] : taken_) mine += concat(step.rung, '\t', kernel, '\t', step.text, '\n');
  const auto all = world.collect(std::as_bytes(std::span(mine)));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::istringstream lines(std::string(reinterpret_cast<const char*>(all[rank].data()), all[rank].size()));
    for (std::string line; std::getline(lines, line);) {
      const std::size_t name = line.find('\t') + 1, text = line.find('\t', name) + 1;
      Step& step = agreed_[line.substr(name, text - name - 1)];
      const int rung = std::stoi(line);
      if (rung <= step.rung) continue;
      const std::string who =
          world.size() == 1 ? "" : concat(" (rank ", rank, " on ", world.hosts()[rank], ')');
      step = {rung, line.substr(text) + who};
    }
  }
  RunFingerprint told;
  for (const auto& [kernel, step] : agreed_) told.emplace_back(kernel, concat(step.rung, '\t', step.text));
  world.broadcast(told);
  agreed_.clear();
  for (const auto& [kernel, step] : told)
    agreed_[kernel] = {std::stoi(step), step.substr(step.find('\t') + 1)};
  const bool differ = std::ranges::any_of(agreed_, [&](const auto& item) {
    const auto own = taken_.find(item.first);
    return own == taken_.end() || own->second.rung < item.second.rung;
  });
  const std::vector<double> ranks = world.gather(differ ? 1.0 : 0.0);
  return std::ranges::find(ranks, 1.0) != ranks.end();
}

std::vector<std::string> Ladder::lines() const {
  std::vector<std::string> lines;
  for (const auto& [kernel, step] : agreed_) lines.push_back(concat(kernel, ": ", step.text));
  return lines;
}

}  // namespace cifar_mpi::cuda
