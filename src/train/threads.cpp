#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "train/state.hpp"

namespace cifar_mpi::train {
namespace {

/// The same on all ranks; servers have a backend of the host anyway.
bool computes_on_cpu(const SessionState& state) {
  return !state.world.any(!state.backend->description().starts_with("cpu"));
}

/// The least of all ranks, so that all plan the same kernels.
int fair_threads(const comm::World& world) { return std::ranges::min(world.gather(world.fair_threads())); }

}  // namespace

void resolve_threads(SessionState& state) {
  if (state.config.threads > 0) return;
  if (state.config.reproducible) {
    state.config.threads = 1;  // the number of threads is part of the result, and every rank count has one
    return;
  }
  state.config.threads = fair_threads(state.world);
}

std::string other_work_text(const SessionState& state) {
  if (!computes_on_cpu(state)) return {};
  const comm::World& world = state.world;
  const std::vector<double> lost = world.gather(world.cores_lost(state.config.threads));
  const auto most = std::max_element(lost.begin(), lost.end());
  if (*most == 0.0) return {};
  return fmt::format(
      "since the start other processes have used about {:.1f} cores of rank {} on {} ({}), so a step takes "
      "longer; end them, "
      "or start fewer ranks or threads",
      *most, most - lost.begin(), world.hosts()[static_cast<std::size_t>(most - lost.begin())],
      world.cores_text());
}

void describe_cores(const SessionState& state) {
  if (!computes_on_cpu(state)) return;
  const int threads = state.config.threads, fair = fair_threads(state.world);
  const std::string other_work = other_work_text(state), cores = state.world.cores_text();
  const std::vector<std::string> places = state.world.place_lines();
  state.log.info(
      concat("threads: ", threads, " per rank (", cores, places.size() == 1 ? "; " + places[0] : "", ")"));
  if (threads > fair) {
    state.log.warn(concat(threads, " threads per rank share fewer cores, so a step takes longer; --threads ",
                          fair, " uses each core once"));
  } else if (!other_work.empty()) {
    state.log.warn(other_work);
  }
}

}  // namespace cifar_mpi::train
