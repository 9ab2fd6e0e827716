#include "watch/rank_watch.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::watch {
namespace {

using engine::ControlLayout;

/// The value of a rank's slot; a record's slots are the control block behind its header.
double slot_value(const engine::StepRecord& record, int rank, std::size_t item) {
  return record.slots[ControlLayout{}.slot(rank) - ControlLayout::header_floats + item];
}

std::uint64_t hash_of(const engine::StepRecord& record, int rank) {
  std::uint64_t hash = 0;
  for (std::size_t piece = 0; piece < 4; ++piece) {
    hash |= static_cast<std::uint64_t>(slot_value(record, rank, ControlLayout::hash_pieces + piece))
            << (16 * piece);
  }
  return hash;
}

}  // namespace

void RankWatch::add(const engine::StepRecord& record, int steps) {
  if (slot_value(record, 0, ControlLayout::compute_ms) == 0.0) return;
  for (int rank = 0; rank < layout_.ranks; ++rank) {
    sums_[static_cast<std::size_t>(rank)] += slot_value(record, rank, ControlLayout::compute_ms);
  }
  steps_ += steps;
}

std::optional<RankTimes> RankWatch::take() {
  if (steps_ == 0) return std::nullopt;
  for (double& sum : sums_) sum /= steps_;
  RankTimes times;
  times.slowest = static_cast<int>(std::max_element(sums_.begin(), sums_.end()) - sums_.begin());
  std::sort(sums_.begin(), sums_.end());
  times.least = sums_.front();
  times.median = sums_[(sums_.size() - 1) / 2];
  times.most = sums_.back();
  std::fill(sums_.begin(), sums_.end(), 0.0);
  steps_ = 0;
  return times;
}

std::string slowest_text(const RankTimes& times, const std::vector<std::string>& hosts) {
  if (times.most <= 1.1 * times.median) return {};
  return concat("rank ", times.slowest, " on ", hosts[static_cast<std::size_t>(times.slowest)],
                fmt::format(" is the slowest: {:.1f} ms of compute per step, the median is {:.1f}",
                            times.most, times.median));
}

std::string desync_text(const engine::StepRecord& record, const std::vector<std::string>& hosts) {
  std::map<std::uint64_t, std::vector<int>> groups;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank)
    groups[hash_of(record, rank)].push_back(rank);
  if (groups.size() == 1) return {};
  // The largest group is right; of equally large ones, that of the lowest rank.
  const auto& right = std::max_element(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
                        if (a.second.size() != b.second.size()) return a.second.size() < b.second.size();
                        return a.second.front() > b.second.front();
                      })->second;
  std::string others;
  for (const auto& [hash, ranks] : groups) {
    if (&ranks == &right) continue;
    for (const int rank : ranks) {
      others += concat(others.empty() ? "" : ", ", rank, " (", hosts[static_cast<std::size_t>(rank)], ")");
    }
  }
  return concat("the parameters of rank ", others, " are no longer those of rank ", right.front(),
                " before step ", record.step + 1);
}

}  // namespace cifar_mpi::watch
