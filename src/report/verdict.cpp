#include "cifar_mpi/report/verdict.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/report/step_budget.hpp"
#include "report/losses.hpp"

namespace cifar_mpi::report {
namespace {

constexpr const char* kNoWholeSample =
    "each sampled step lacks the record of a rank, or a part of it; train more steps: ten per epoch are "
    "sampled, but at most one in ten";

/// Smaller shares of a step are not mentioned.
constexpr double kWorthIt = 0.03;
/// If input, or work that does not grow with the batch, takes this share of a step, the verdict names it first.
constexpr double kMuch = 0.2;
/// On an idle machine, interrupts and threads that wait for each other cost a smaller share of a step than this.
constexpr double kCoresLost = 0.1;
/// In shorter steps the costs of pauses and messages are assumed not to depend on the batch.
constexpr double kShortStepMs = 20.0;
/// If a smaller share of the waiting is for slow ranks, they are not slow themselves, only disturbed more
/// often.
constexpr double kTheirOwn = 0.85;
/// With fewer samples one disturbed step can decide the verdict.
constexpr int kFewSteps = 5;

/// "a", "a and b", "a, b and c"
std::string enumerate(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += concat(i == 0 ? "" : i + 1 == words.size() ? " and " : ", ", words[i]);
  return text;
}

/// "rank 3", "ranks 0 and 2", "ranks 4 to 7"
std::string rank_list(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return concat("rank ", ranks.front());
  if (ranks.size() > 2 && ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size()))
    return concat("ranks ", ranks.front(), " to ", ranks.back());
  std::vector<std::string> words;
  for (const int rank : ranks) words.push_back(std::to_string(rank));
  return "ranks " + enumerate(words);
}

/// Chooses and words the verdict.
class Verdict {
 public:
  Verdict(const Efficiencies& efficiencies, const Timeline& timeline)
      : e_(efficiencies),
        timeline_(timeline),
        sampled_(sampled_steps(timeline)),
        losses_(losses_of(timeline, sampled_)),
        what_if_(what_if(timeline, sampled_)),
        slow_(slow_ranks(timeline, sampled_)),
        lost_cores_(report::lost_cores(timeline, sampled_)) {
    const StepBudget budget = step_budget(timeline);
    for (std::size_t s = 0; s < kSections; ++s) {
      for (const double ms : budget.section_ms[s])
        section_ms_[s] += ms / static_cast<double>(budget.ranks.size());
    }
    for (const Section section : sections_of(timeline)) has_input_ = has_input_ || section == Section::input;
  }

  std::string main_sentence() const;
  std::vector<std::string> number_lines() const;

 private:
  std::string host(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return r < timeline_.hosts.size() ? timeline_.hosts[r] : std::string();
  }
  std::string on_hosts(const std::vector<int>& ranks) const;
  double ms_of(Section section) const { return section_ms_[static_cast<std::size_t>(section)]; }
  /// The work of a step that does not depend on the batch.
  double fixed_ms() const {
    return std::max(
        0.0, losses_.useful - ms_of(Section::input) - ms_of(Section::forward) - ms_of(Section::backward));
  }
  /// Whether the imbalance over all steps is only the remainder of one that moves between ranks.
  bool wanders() const { return !slow_.ranks.empty() && slow_.share_of_waiting < kTheirOwn; }
  double imbalance_ms() const { return wanders() ? 0.0 : losses_.imbalance; }
  double wander_ms() const { return losses_.wander + losses_.imbalance - imbalance_ms(); }
  /// The time of a step that does not depend on the batch.
  double per_step_ms() const {
    if (losses_.step >= kShortStepMs) return fixed_ms();
    return fixed_ms() + losses_.wander + losses_.host + losses_.order + losses_.transfer;
  }
  std::string of_step(double ms) const { return fmt::format("{:.1f} of {:.1f} ms", ms, losses_.step); }
  bool matters(double ms) const { return ms >= kWorthIt * losses_.step; }

  std::string lost_cores() const;
  std::string imbalance() const;
  std::string wander() const;
  std::string host_work() const;
  std::string order() const;
  std::string transfer() const;
  std::string small_batch() const;
  std::string slow_input() const;
  std::string all_well() const;
  std::string scaling() const;

  const Efficiencies& e_;
  const Timeline& timeline_;
  SampledSteps sampled_;
  Losses losses_;
  WhatIf what_if_;
  SlowRanks slow_;
  LostCores lost_cores_;
  double section_ms_[kSections] = {};  ///< of the mean rank
  bool has_input_ = false;
};

/// " on node2" if all of them are there.
std::string Verdict::on_hosts(const std::vector<int>& ranks) const {
  std::set<std::string> names;
  for (const int rank : ranks) names.insert(host(rank));
  return names.size() == 1 && !names.begin()->empty() ? " on " + *names.begin() : std::string();
}

std::string Verdict::lost_cores() const {
  return concat("rank ", lost_cores_.rank, on_hosts({lost_cores_.rank}), " has no core for its work in ",
                of_step(lost_cores_.ms),
                ", because other programs or other threads of this run occupy it: end those programs, start "
                "fewer ranks or --threads, or give each rank its own cores (mpirun --map-by slot:PE=THREADS "
                "--bind-to core)");
}

std::string Verdict::imbalance() const {
  if (slow_.ranks.empty()) {
    return fmt::format("ranks compute for {:.1f} to {:.1f} ms and wait {} for the slowest", slow_.least_ms,
                       slow_.most_ms, of_step(losses_.imbalance));
  }
  const bool one = slow_.ranks.size() == 1;
  const std::string who = rank_list(slow_.ranks) + on_hosts(slow_.ranks);
  const std::string where = slow_.every_task
                                ? "in every task"
                                : fmt::format("mostly in {} ({:.1f} ms)", slow_.task, slow_.task_excess_ms);
  const auto steps = sampled_.steps.size();
  const std::string when = 4 * static_cast<std::size_t>(slow_.steps) >= 3 * steps
                               ? ""
                               : concat(", but only in ", slow_.steps, " of ", steps, " steps");
  // Ranks that share the matrices compute different ones.
  const std::string advice =
      !slow_.every_task && slow_.task.starts_with("muon ")
          ? "the shared matrices take the ranks different times; try --share-matrices off"
          : concat("look for other work on ", one ? "its" : "their",
                   " cores, a lower clock, or fewer --threads than elsewhere");
  return concat(who, one ? " computes " : " compute ", fmt::format("{:.0f} % slower ", 100.0 * slow_.excess),
                where, when,
                fmt::format("; at the others' pace a step would take about {:.1f} instead of {:.1f} ms: ",
                            losses_.step - slow_.most_ms + slow_.others_ms, losses_.step),
                advice);
}

std::string Verdict::wander() const {
  const std::vector<int> times = times_slowest(timeline_, sampled_);
  std::vector<std::pair<int, int>> order;  // times, rank
  for (std::size_t r = 0; r < times.size(); ++r) {
    if (times[r] > 0) order.emplace_back(-times[r], sampled_.ranks[r]);
  }
  std::ranges::sort(order);
  std::vector<std::string> words;
  for (std::size_t i = 0; i < std::min<std::size_t>(order.size(), 3); ++i)
    words.push_back(concat("rank ", order[i].second, " in ", -order[i].first));
  return concat(
      "ranks wait ", of_step(wander_ms()), " for a slowest rank that changes from step to step (it was ",
      enumerate(words), " of ", sampled_.steps.size(),
      " steps): other work on these machines, or ranks that share cores; give each its own (mpirun --bind-to "
      "core) and leave one free");
}

std::string Verdict::host_work() const {
  const bool between = share_between_steps(sampled_) > 0.5;
  return concat("in ", of_step(losses_.host), " no task runs, mostly ", between ? "between" : "within",
                " steps: the host does other work; ",
                between ? "larger --log-every, --check-every and --checkpoint-every reduce it"
                        : "other processes use its cores");
}

std::string Verdict::order() const {
  const std::vector<double> between = between_steps_ms(sampled_);
  const auto most = std::ranges::max_element(between);
  const double others = (std::accumulate(between.begin(), between.end(), 0.0) - *most) /
                        std::max(1.0, static_cast<double>(between.size()) - 1.0);
  if (*most - others >= 0.5 * losses_.order) {
    const int rank = sampled_.ranks[static_cast<std::size_t>(most - between.begin())];
    return concat("ranks wait ", of_step(losses_.order), " for rank ", rank, on_hosts({rank}),
                  fmt::format(", whose host does other work between steps ({:.1f} ms): ", *most),
                  rank == 0 ? "it writes the run's output; a larger --log-every writes less, and --run-dir "
                              "may be on a slow file system"
                            : "look for other work on its cores");
  }
  return concat(
      "ranks wait ", of_step(losses_.order),
      " because they begin a step at different times, or are slow in different tasks of it: other work on "
      "these machines, or ranks that share cores; give each its own (mpirun --map-by slot:PE=THREADS "
      "--bind-to core)");
}

std::string Verdict::transfer() const {
  return concat("ranks wait ", of_step(losses_.transfer), " for ", waited_for(timeline_, sampled_),
                network_advice(timeline_, sampled_, losses_, what_if_));
}

std::string Verdict::small_batch() const {
  const double all = per_step_ms(), fixed = fixed_ms();
  const double faster = what_if_.twice_batch > 0.0 ? 2.0 * what_if_.now / what_if_.twice_batch : 1.0;
  return concat(of_step(all), " of a step do not grow with the batch, ",
                all - fixed < 0.1 * all
                    ? std::string("because they are")
                    : fmt::format("because {:.1f} are waiting and {:.1f}", all - fixed, fixed),
                " work on weights (update, copies for kernels); twice the batch per rank",
                twice_the_images(timeline_), fmt::format(" would give {:.1f} times the images/s", faster));
}

std::string Verdict::slow_input() const {
  return concat(
      "input takes ", of_step(ms_of(Section::input)),
      "; more --threads per rank share it, a simpler --augment reduces it, and a node short of memory "
      "may be reading its images from swap");
}

std::string Verdict::all_well() const {
  if (sampled_.ranks.size() == 1) {
    return fmt::format("one rank, which computes {}: nothing is exchanged", of_step(losses_.useful));
  }
  return fmt::format("nothing to gain from faster communication: ranks compute {}", of_step(losses_.useful));
}

std::string Verdict::main_sentence() const {
  struct Candidate {
    double ms;
    std::string (Verdict::*sentence)() const;
  };
  std::vector<Candidate> candidates = {{imbalance_ms(), &Verdict::imbalance},
                                       {wander_ms(), &Verdict::wander},
                                       {losses_.host, &Verdict::host_work},
                                       {losses_.order, &Verdict::order},
                                       {losses_.transfer, &Verdict::transfer}};
  if (lost_cores_.ms >= kCoresLost * losses_.step)
    candidates.push_back({lost_cores_.ms, &Verdict::lost_cores});
  // A change saves at most about half of these, except for waiting inside a node in a short step.
  const bool nothing_else = losses_.step < kShortStepMs && nodes_of(timeline_, sampled_) == 1;
  // With local steps there are as many updates as batches.
  if (has_input_ && !is_local(timeline_) && per_step_ms() >= kMuch * losses_.step)
    candidates.push_back({(nothing_else ? 1.0 : 0.5) * per_step_ms(), &Verdict::small_batch});
  if (ms_of(Section::input) >= kMuch * losses_.step)
    candidates.push_back({0.5 * ms_of(Section::input), &Verdict::slow_input});
  const auto worst = std::ranges::max_element(candidates, {}, &Candidate::ms);
  const std::string sentence = matters(worst->ms) ? (this->*worst->sentence)() : all_well();
  return fmt::format("{:.2f}: {}", e_.parallel, sentence);
}

std::string Verdict::scaling() const {
  const double times = 1.0 / *e_.computation_scaling;
  const std::string than =
      concat(" the computing time that it takes on ", counted(e_.baseline_ranks, "rank"));
  if (e_.baseline_ranks >= e_.ranks) {
    return fmt::format("an image takes {:.2f} times{}; a baseline with fewer ranks would show how it scales",
                       times, than);
  }
  if (times <= 1.05) return fmt::format("an image takes {:.2f} times{}", times, than);
  return fmt::format(
      "an image takes {:.2f} times{}: more ranks share caches, memory or the clock, or each image of a "
      "smaller batch carries more of the work that does not shrink with the batch",
      times, than);
}

std::vector<std::string> Verdict::number_lines() const {
  std::vector<std::string> lines;
  const auto line = [&](std::string_view name, double number, const std::string& text) {
    lines.push_back(fmt::format("{:<25}{:.2f}  {}", name, number, text));
  };
  const auto told = [&](double ms, const std::string& text, const char* otherwise) {
    return matters(ms) ? text : std::string(otherwise);
  };
  line("parallel efficiency", e_.parallel,
       fmt::format("load balance {:.2f} x serialization {:.2f} x transfer {:.2f}: ranks compute {}",
                   e_.load_balance, e_.serialization, e_.transfer, of_step(losses_.useful)));
  if (e_.ranks == 1) {  // the other factors are 1 or equal
    if (e_.computation_scaling) line("computation scaling", *e_.computation_scaling, scaling());
    return lines;
  }
  line("load balance", e_.load_balance,
       wanders() && matters(losses_.imbalance)
           ? "see load balance per step"
           : told(losses_.imbalance, imbalance(), "ranks compute for about the same time"));
  line("load balance per step", e_.load_balance_per_step,
       told(wander_ms(), wander(), "no other imbalance shows in single steps"));
  line("communication efficiency", e_.communication, "serialization x transfer");
  line("serialization", e_.serialization,
       matters(losses_.host) && losses_.host >= std::max(losses_.wander, losses_.order) ? host_work()
       : matters(losses_.order) && losses_.order >= losses_.wander                      ? order()
       : matters(losses_.wander) ? "see load balance per step"
                                 : "ranks are ready for each other");
  line("transfer", e_.transfer, told(losses_.transfer, transfer(), "all-reduces are hidden or short"));
  if (e_.computation_scaling) line("computation scaling", *e_.computation_scaling, scaling());
  return lines;
}

/// Notes on the data that the numbers cover.
std::vector<std::string> notes(const Efficiencies& e, const Timeline& timeline, std::uint64_t resumed) {
  std::vector<std::string> lines;
  if (timeline.steps.back().step < resumed)
    lines.push_back(concat("no step was sampled since the run resumed at step ", resumed,
                           ": the numbers are of earlier steps"));
  if (is_local(timeline))
    lines.emplace_back("a step here is all local steps between two averagings plus the averaging");
  if (!e.missing_ranks.empty())
    lines.push_back(concat(rank_list(e.missing_ranks), " recorded no samples: the numbers cover the other ",
                           counted(e.ranks, "rank")));
  if (e.left_out_steps > 0)
    lines.push_back(concat(e.left_out_steps, " of ", e.steps + e.left_out_steps,
                           " sampled steps lack a rank and are left out"));
  if (e.steps < kFewSteps)
    lines.push_back(
        concat("only ", counted(e.steps, "sampled step"), ": a longer run gives a more reliable verdict"));
  const auto& uncertain = timeline.clock_uncertainty_ns;
  const auto worst = std::ranges::max_element(uncertain);
  if (worst != uncertain.end() && 1e-6 * static_cast<double>(*worst) > 0.02 * e.step_ms) {
    lines.push_back(
        fmt::format("the clocks of the hosts are known only to within {:.2f} ms: the split between transfer "
                    "and serialization is as uncertain",
                    1e-6 * static_cast<double>(*worst)));
  }
  return lines;
}

}  // namespace

std::vector<std::string> verdict(const Efficiencies& efficiencies, const Timeline& timeline,
                                 std::uint64_t resumed) {
  if (efficiencies.steps == 0) {
    return {concat("no verdict: ", efficiencies.left_out_steps > 0 ? kNoWholeSample : kNoSample)};
  }
  const Verdict verdict(efficiencies, timeline);
  std::vector<std::string> lines = {verdict.main_sentence()};
  for (const std::string& line : verdict.number_lines()) lines.push_back(line);
  for (const std::string& line : notes(efficiencies, timeline, resumed)) lines.push_back(line);
  return lines;
}

}  // namespace cifar_mpi::report
