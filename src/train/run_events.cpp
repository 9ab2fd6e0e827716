#include "train/run_events.hpp"

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::train {

std::string hosts_text(const std::vector<std::string>& hosts) {
  constexpr std::size_t kMost = 4096;
  std::string text;
  for (std::size_t first = 0, end = 0; first < hosts.size(); first = end) {
    if (text.size() > kMost) return text + ", …";
    while (end < hosts.size() && hosts[end] == hosts[first]) ++end;
    text += concat(text.empty() ? "" : ", ", hosts[first], " x ", end - first);
  }
  return text;
}

report::RunEvent start_event(const SessionState& state, std::uint64_t step, std::uint64_t reached,
                             const std::string& last_end) {
  report::RunEvent event;
  event.kind = step > 0 ? report::RunEventKind::resume : report::RunEventKind::start;
  event.step = step;
  event.time = wall_time();
  event.text = last_end;
  event.ranks = state.world.size();
  event.hosts = hosts_text(state.world.hosts());
  event.global_batch = state.sizes.global_batch;
  event.total_steps = state.sizes.total_steps;
  event.reached = reached;
  return event;
}

}  // namespace cifar_mpi::train
