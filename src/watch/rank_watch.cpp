#include "watch/rank_watch.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::watch {
namespace {

using engine::ControlLayout;

/// The value of a rank's slot; a record's slots are the control block after its header.
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
  for (int rank = 0; rank < layout_.ranks; ++rank) {
    const double ms = slot_value(record, rank, ControlLayout::compute_ms);
    if (ms == 0.0) continue;
    Times& times = times_[static_cast<std::size_t>(rank)];
    times.sum += ms;
    times.steps += steps;
  }
}

std::optional<RankTimes> RankWatch::take() {
  RankTimes found;
  std::vector<double> means;
  for (std::size_t rank = 0; rank < times_.size(); ++rank) {
    const Times times = std::exchange(times_[rank], {});
    if (times.steps == 0) continue;
    means.push_back(times.sum / times.steps);
    if (means.back() <= found.most) continue;
    found.most = means.back();
    found.slowest = static_cast<int>(rank);
  }
  if (means.empty()) return std::nullopt;
  std::ranges::sort(means);
  found.least = means.front();
  found.median = means[(means.size() - 1) / 2];
  return found;
}

std::string slowest_text(const RankTimes& times, const std::vector<std::string>& hosts) {
  if (times.most <= 1.1 * times.median) return {};
  const bool is_pair = hosts.size() == 2;  // whose median would be the other rank's time
  return concat("rank ", times.slowest, " on ", hosts[static_cast<std::size_t>(times.slowest)],
                is_pair ? " is the slower one: " : " is the slowest: ",
                fmt::format("{:.1f} ms of compute per step, the {} {:.1f}", times.most,
                            is_pair ? "other takes" : "median is", times.median));
}

std::string desync_text(const engine::StepRecord& record, const std::vector<std::string>& hosts) {
  std::vector<std::uint64_t> hashes;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) hashes.push_back(hash_of(record, rank));
  return desync_text(hashes, hosts, record.step + 1);
}

std::string desync_text(const std::vector<std::uint64_t>& hashes, const std::vector<std::string>& hosts,
                        std::uint64_t step) {
  std::map<std::uint64_t, std::vector<int>> groups;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank)
    groups[hashes[rank]].push_back(static_cast<int>(rank));
  if (groups.size() == 1) return {};
  // The largest group is taken as right; of equally large ones, that of the lowest rank.
  const auto& right = std::ranges::max_element(groups, [](const auto& a, const auto& b) {
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
  return concat("the parameters of rank ", others, " differ from those of rank ", right.front(),
                " before step ", step);
}

}  // namespace cifar_mpi::watch
