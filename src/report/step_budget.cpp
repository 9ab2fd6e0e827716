#include "cifar_mpi/report/step_budget.hpp"

#include "report/sampled_steps.hpp"

namespace cifar_mpi::report {
namespace {

/// The section of a task with a fixed name; null for tasks of a layer.
const Section* section_of(std::string_view name) {
  struct Row {
    std::string_view beginning;
    Section section;
  };
  static constexpr Row kRows[] = {{"control", Section::other},
                                  {"compute time", Section::other},
                                  {"advance", Section::other},
                                  {"augment", Section::input},
                                  {"loss", Section::forward},
                                  {"update ", Section::update},
                                  {"muon ", Section::update},
                                  {"gradient norm", Section::update},
                                  {"running statistics", Section::update}};
  for (const Row& row : kRows) {
    if (name.starts_with(row.beginning)) return &row.section;
  }
  return nullptr;
}

}  // namespace

/// A program has its tasks in order: tasks after the input are forward, tasks after the loss backward.
std::string_view title_of(Section section, const Timeline& timeline) {
  return section == Section::all_reduce && is_served(timeline) ? "push, pull exposed" : to_string(section);
}

std::vector<Section> sections_of(const Timeline& timeline) {
  std::vector<Section> sections;
  Section layers = Section::other;
  for (const TimelineTask& task : timeline.tasks) {
    const Section* const own = section_of(task.name);
    if (task.kind == engine::TaskKind::collective) {
      sections.push_back(Section::all_reduce);
    } else if (task.name.find(" prepare ") != std::string::npos || task.name.ends_with(" prepare")) {
      sections.push_back(Section::other);
    } else {
      sections.push_back(own != nullptr ? *own : layers);
      if (task.name == "augment") layers = Section::forward;
      if (task.name == "loss") layers = Section::backward;
    }
  }
  return sections;
}

StepBudget step_budget(const Timeline& timeline) {
  const SampledSteps sampled = sampled_steps(timeline);
  const std::vector<Section> sections = sections_of(timeline);
  StepBudget budget;
  budget.ranks = sampled.ranks;
  budget.step_ms.assign(sampled.ranks.size(), 0.0);
  for (auto& section : budget.section_ms) section.assign(sampled.ranks.size(), 0.0);
  const double to_ms = ms_of_a_step(sampled);
  for (const SampledSteps::Step& step : sampled.steps) {
    for (std::size_t r = 0; r < step.ranks.size(); ++r) {
      for (const Stretch& stretch : step.ranks[r]) {
        const Section section = stretch.task == Stretch::kNobody
                                    ? Section::other
                                    : sections[static_cast<std::size_t>(stretch.task)];
        budget.section_ms[static_cast<std::size_t>(section)][r] += to_ms * stretch.ns();
        budget.step_ms[r] += to_ms * stretch.ns();
      }
    }
  }
  return budget;
}

}  // namespace cifar_mpi::report
