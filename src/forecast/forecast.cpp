#include "cifar_mpi/forecast/forecast.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/comm/collective.hpp"
#include "comm/collectives.hpp"
#include "forecast/all_reduce.hpp"
#include "forecast/export.hpp"
#include "forecast/step_replay.hpp"

namespace cifar_mpi::forecast {
namespace {

/// Doubling the ranks pays if it makes a step this much faster.
constexpr double kPays = 1.2;
/// A loss below this share of a step is not a limit.
constexpr double kMatters = 0.03;

/// A limit of a step, and the seconds it costs.
struct Limit {
  std::string_view name;
  double seconds = 0.0;
};

struct Row {
  int ranks = 1;
  double step_s = 0.0;
  double efficiency = 0.0;  ///< time of one rank for the whole batch, over ranks times step
  Limit limit;
};

/// Of the largest recorded node.
int ranks_per_node(const report::Timeline& timeline) {
  std::map<std::string, int> counts;
  int most = 1;
  for (const std::string& host : timeline.hosts) most = std::max(most, ++counts[host]);
  return most;
}

class Forecaster {
 public:
  Forecaster(const report::Timeline& timeline, const Links& links);

  std::string head() const;
  std::string line(int ranks) const;
  std::string fixed_batch() const;
  ExportedStep exported(int ranks) const;

 private:
  double floats_of(std::size_t bucket) const {
    const auto task = static_cast<std::size_t>(recording_.collectives[bucket].task);
    return static_cast<double>(timeline_.tasks[task].bytes) / sizeof(float);
  }
  int recorded_ranks() const { return static_cast<int>(timeline_.hosts.size()); }
  Cluster cluster_of(int ranks) const { return {links_, ranks, std::min(per_node_, ranks)}; }
  Amount amount(int ranks, double batch) const;
  std::vector<Pattern> patterns(const Cluster& cluster, bool best) const;
  Pattern best(const Cluster& cluster, std::size_t bucket) const;
  Pattern chosen(const Cluster& cluster, std::size_t bucket) const;
  double step(const Cluster& cluster, double batch, const std::vector<Pattern>& patterns) const;
  double step_without_network(const Cluster& cluster, double batch) const;
  Row row(int ranks, double batch, const std::vector<Pattern>& patterns) const;
  std::string name(const Cluster& cluster, const std::vector<Pattern>& patterns) const;

  const report::Timeline& timeline_;
  const Links links_;
  const Recording recording_;
  const int per_node_;
  const double float_bytes_;
};

Forecaster::Forecaster(const report::Timeline& timeline, const Links& links)
    : timeline_(timeline),
      links_(links),
      recording_(record_of(timeline)),
      per_node_(ranks_per_node(timeline)),
      float_bytes_(timeline.wire == to_string(comm::Wire::fp32) ? 4.0 : 2.0) {}

/// A rank sends and receives this share of the gradients twice in a step (ring).
double share_sent(int ranks) { return (ranks - 1.0) / ranks; }

Amount Forecaster::amount(int ranks, double batch) const {
  return {batch, share_sent(ranks) / share_sent(std::max(2, recorded_ranks()))};
}

/// Many ranks need few steps: the variation over ranks is as large as over many steps.
int steps_of(const Cluster& cluster) { return cluster.ranks <= 1024 ? 10 : 2; }

double Forecaster::step(const Cluster& cluster, double batch, const std::vector<Pattern>& patterns) const {
  return step_seconds(recording_, cluster.ranks, amount(cluster.ranks, batch), steps_of(cluster),
                      [&](std::size_t bucket, std::vector<double>& when) {
                        all_reduce(patterns[bucket], floats_of(bucket), float_bytes_, cluster, when);
                      });
}

double Forecaster::step_without_network(const Cluster& cluster, double batch) const {
  return step_seconds(
      recording_, cluster.ranks, {batch, 0.0}, steps_of(cluster),
      [](std::size_t, std::vector<double>& when) { std::ranges::fill(when, std::ranges::max(when)); });
}

Pattern Forecaster::best(const Cluster& cluster, std::size_t bucket) const {
  std::optional<std::pair<double, Pattern>> found;
  for (const auto& [_, pattern] : names_of(Pattern{})) {
    const double seconds = all_reduce_seconds(pattern, floats_of(bucket), float_bytes_, cluster);
    if (!found || seconds < found->first) found = {seconds, pattern};
  }
  return found->second;
}

/// The pattern that the program would use on these ranks; the fastest one for collectives of MPI and NCCL.
Pattern Forecaster::chosen(const Cluster& cluster, std::size_t bucket) const {
  std::string_view collective = timeline_.collective;
  if (collective == "window" || collective.find(", then ") != std::string_view::npos) {  // auto, as recorded
    comm::Nodes nodes;
    for (int r = 0; r < cluster.ranks; ++r) nodes.of_rank.push_back(r / cluster.per_node);
    const comm::AutoChoice choice = comm::choose_collective(nodes);
    collective = floats_of(bucket) * sizeof(float) <= static_cast<double>(choice.short_bytes)
                     ? choice.for_short
                     : choice.for_the_rest;
  }
  collective = collective.substr(0, collective.find(' '));
  if (collective == "window") return Pattern::two_level;
  const std::optional<Pattern> pattern = find_name<Pattern>(collective);
  return pattern ? *pattern : best(cluster, bucket);
}

std::vector<Pattern> Forecaster::patterns(const Cluster& cluster, bool best_of_all) const {
  std::vector<Pattern> patterns;
  for (std::size_t b = 0; b < recording_.collectives.size(); ++b)
    patterns.push_back(best_of_all ? best(cluster, b) : chosen(cluster, b));
  return patterns;
}

Row Forecaster::row(int ranks, double batch, const std::vector<Pattern>& patterns) const {
  Cluster cluster = cluster_of(ranks);
  Row row{.ranks = ranks, .step_s = step(cluster, batch, patterns), .limit = {}};
  // Few ranks draw few steps, which may be faster than the recorded ones on average.
  const DrawnWork work = drawn_work(recording_, ranks, steps_of(cluster));
  const double work_s = work.fixed_s + batch * work.batch_s;
  const double one_rank_s = work.fixed_s + ranks * batch * work.batch_s;
  row.efficiency = batch == 1.0 ? work_s / row.step_s : one_rank_s / (ranks * row.step_s);
  std::vector<Limit> limits = {{"the slowest rank", step_without_network(cluster, batch) - work_s}};
  cluster.links = links_.without_bytes();
  limits.push_back({"bandwidth of the links", row.step_s - step(cluster, batch, patterns)});
  cluster.links = links_.without_latency();
  limits.push_back({"latency of messages", row.step_s - step(cluster, batch, patterns)});
  limits.push_back({"processor time of messages", amount(ranks, batch).messages * recording_.messages_s});
  if (batch != 1.0) limits.push_back({"work that does not shrink with the batch", work.fixed_s});
  row.limit = *std::ranges::max_element(limits, {}, &Limit::seconds);
  if (row.limit.seconds < kMatters * row.step_s) row.limit = {"computation", work_s};
  return row;
}

/// "ring", or of several buckets "ring, doubling".
std::string Forecaster::name(const Cluster& cluster, const std::vector<Pattern>& patterns) const {
  std::string names;
  for (const Pattern pattern : patterns) {
    const bool window = pattern == Pattern::two_level && cluster.nodes() == 1;
    names += concat(names.empty() ? "" : ", ", window ? "window" : to_string(pattern));
  }
  return names;
}

std::string Forecaster::head() const {
  return fmt::format("{:>8} {:>8} {:>10} {:>19} {:>11}  {:<36} {}", "ranks", "nodes", "step, ms",
                     "scaling efficiency", "images/s", "main limit", "fastest all-reduce for each bucket");
}

std::string Forecaster::line(int ranks) const {
  const Cluster cluster = cluster_of(ranks);
  const std::vector<Pattern> own = patterns(cluster, false), best = patterns(cluster, true);
  const Row found = row(ranks, 1.0, own);
  std::string remark = name(cluster, best);
  if (best != own) {
    const double step_s = step(cluster, 1.0, best);
    remark += fmt::format(" ({:.2f} ms instead of {})", 1e3 * step_s, name(cluster, own));
  }
  return fmt::format("{:>8} {:>8} {:>10.2f} {:>19.2f} {:>11.0f}  {:<36} {}", ranks, cluster.nodes(),
                     1e3 * found.step_s, found.efficiency,
                     static_cast<double>(timeline_.images_per_rank) * ranks / found.step_s,
                     fmt::format("{}, {:.2f} ms", found.limit.name, 1e3 * found.limit.seconds), remark);
}

std::string Forecaster::fixed_batch() const {
  const double images = static_cast<double>(timeline_.images_per_rank) * recorded_ranks();
  const auto at = [&](int ranks) {
    return row(ranks, static_cast<double>(recorded_ranks()) / ranks, patterns(cluster_of(ranks), false));
  };
  Row last = at(recorded_ranks());
  for (int ranks = 2 * recorded_ranks(); ranks <= images && ranks <= kMostRanks; ranks *= 2) {
    const Row next = at(ranks);
    const double faster = last.step_s / next.step_s;
    if (faster < kPays) {
      return fmt::format(
          "with a fixed global batch of {:.0f} images, more ranks stop paying at {} ranks (step {:.2f} ms, "
          "scaling efficiency {:.2f}), because {} ranks would be only {:.2f} times as fast: the main limit "
          "there is {}, {:.2f} of {:.2f} ms; to use more ranks, use a larger batch, as in the table, or "
          "several independent runs",
          images, last.ranks, 1e3 * last.step_s, last.efficiency, ranks, faster, next.limit.name,
          1e3 * next.limit.seconds, 1e3 * next.step_s);
    }
    last = next;
  }
  return fmt::format(
      "with a fixed global batch of {:.0f} images, up to {} ranks pay (step {:.2f} ms, scaling efficiency "
      "{:.2f}); doubling them again would leave less than one image per rank; to use more ranks, use a "
      "larger batch, as in the table, or several independent runs",
      images, last.ranks, 1e3 * last.step_s, last.efficiency);
}

ExportedStep Forecaster::exported(int ranks) const {
  ExportedStep step{.recording = recording_,
                    .cluster = cluster_of(ranks),
                    .amount = amount(ranks, 1.0),
                    .names = {},
                    .floats = {},
                    .patterns = patterns(cluster_of(ranks), false),
                    .float_bytes = float_bytes_};
  for (std::size_t b = 0; b < step.patterns.size(); ++b) {
    step.names.push_back(timeline_.tasks[static_cast<std::size_t>(recording_.collectives[b].task)].name);
    step.floats.push_back(floats_of(b));
  }
  return step;
}

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorKind::usage, "--forecast cannot use this run: ", why);
}

void check(const report::Timeline& timeline) {
  if (is_served(timeline)) refuse("it used parameter servers; record a run with --update all-reduce");
  if (report::collectives_of(timeline).empty())
    refuse("it recorded no all-reduces; record a run on at least two ranks");
  if (report::sampled_steps(timeline).steps.empty())
    refuse("no step was recorded on all ranks; record a run with more steps");
}

}  // namespace

std::vector<std::string> forecast(const report::Timeline& timeline, const Request& request) {
  check(timeline);
  const Forecaster forecaster(timeline, request.links);
  std::vector<std::string> lines{
      concat("forecast from the steps recorded on ", counted(timeline.hosts.size(), "rank"), ", ",
             ranks_per_node(timeline), " per node, with the recorded batch per rank"),
      forecaster.head()};
  for (const int ranks : request.ranks) lines.push_back(forecaster.line(ranks));
  if (timeline.images_per_rank > 0) lines.push_back(forecaster.fixed_batch());
  return lines;
}

std::vector<std::string> export_step(const report::Timeline& timeline, const Request& request) {
  check(timeline);
  if (request.ranks.size() != 1)
    throw Error(ErrorKind::usage,
                "--goal and --chakra write a step of one number of ranks; give --forecast one number, not ",
                request.ranks.size());
  const int ranks = request.ranks.front();
  if (!request.chakra.empty() && ranks > kMostTraces)
    throw Error(ErrorKind::usage, "--chakra writes a file for each rank, at most ", kMostTraces, ", not ",
                ranks, "; forecast fewer ranks");
  const auto trace_path = [&](int rank) { return concat(request.chakra, ".", rank, ".et"); };
  constexpr std::string_view kExport = "an export of cifar_mpi_report in this format";
  if (!request.goal.empty()) require_like_or_nothing(request.goal, kGoalBegins, kExport, "--goal");
  for (int r = 0; r < ranks && !request.chakra.empty(); ++r)
    require_like_or_nothing(trace_path(r), kChakraBegins, kExport, "--chakra");
  const Forecaster forecaster(timeline, request.links);
  const ExportedStep step = forecaster.exported(ranks);
  std::vector<std::string> lines;
  if (!request.goal.empty()) {
    write_atomically(request.goal, goal_schedule(step));
    lines.push_back(fmt::format("{:<14}  {}", "GOAL", request.goal));
  }
  if (request.chakra.empty()) return lines;
  for (int r = 0; r < ranks; ++r) write_atomically(trace_path(r), chakra_trace(step, r));
  lines.push_back(
      fmt::format("{:<14}  {}.0.et to {}.{}.et", "Chakra", request.chakra, request.chakra, ranks - 1));
  return lines;
}

}  // namespace cifar_mpi::forecast
