#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "cifar_mpi/base/names.hpp"
#include "cifar_mpi/report/timeline.hpp"

namespace cifar_mpi::report {

/// Parts of a step, in its order. `other`: copies of weights for kernels, control, and time without a task.
enum class Section : std::uint8_t { input, forward, backward, all_reduce, update, other };
constexpr std::size_t kSections = 6;
constexpr auto names_of(Section) {
  return std::to_array<Name<Section>>({{"input", Section::input},
                                       {"forward", Section::forward},
                                       {"backward", Section::backward},
                                       {"all-reduce exposed", Section::all_reduce},
                                       {"update", Section::update},
                                       {"other", Section::other}});
}

/// The title of a section in a report of this run; with servers there is no all-reduce.
std::string_view title_of(Section section, const Timeline& timeline);

/// The section of each task of the timeline.
std::vector<Section> sections_of(const Timeline& timeline);

/// Where the time of a step goes on each rank, means over the sampled steps.
///
/// Every moment counts once: under the running work (of several tasks, the one that began first), else under
/// a running all-reduce, which is then exposed, else under `other`. So the sections of a rank add up to its
/// step.
struct StepBudget {
  std::vector<int> ranks;  ///< recorded ranks, ascending; their indices index the next two
  std::array<std::vector<double>, kSections> section_ms;
  std::vector<double> step_ms;
};
/// Over the steps that all recorded ranks have, like `efficiencies`.
StepBudget step_budget(const Timeline& timeline);

}  // namespace cifar_mpi::report
