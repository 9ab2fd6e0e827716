#include "cifar_mpi/selfcheck/self_check.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>

#include "cifar_mpi/base/text.hpp"
#include "selfcheck/device_checks.hpp"

namespace cifar_mpi::selfcheck {
namespace {

using comm::DeviceCheck;
using engine::Precision;
using Row = CheckRow;

/// "4 runners".
std::string name_of(DeviceCheck check) {
  return concat(static_cast<std::uint64_t>(check), ' ', to_string(check));
}

bool lacks_graphs(const Row& row) {
  return row.outcome == Outcome::no_graph || row.outcome == Outcome::refused;
}

constexpr const char* kNetworkAdvice =
    "; this is the network between the ranks, not the GPU: a firewall, or the wrong interface "
    "(NCCL_SOCKET_IFNAME)";

/// The checks of one rank. A wrong result does not stop the next check; an error of the device does.
///
/// Nothing of a device that failed is freed: freeing may wait forever.
class Checks {
 public:
  Checks(const config::TrainConfig& config, const data::DatasetInfo& info, const comm::World& world,
         const comm::PlatformFactory& make_platform, const SelfCheck& check)
      : config_(config), info_(info), world_(world), make_platform_(make_platform), check_(check) {}
  ~Checks() {
    static auto* const abandoned = new std::vector<std::unique_ptr<CheckStep>>;
    if (broken_ && device_) abandoned->push_back(std::move(device_));
  }
  Checks(const Checks&) = delete;
  Checks& operator=(const Checks&) = delete;

  std::vector<Row> run() {
    const int servers = has_servers() ? config_.servers : 0;
    world_.together([&] { sizes_ = config::resolve_sizes(config_, world_.size() + servers, info_); });
    const int part = sizes_.batch / sizes_.parts;
    images_ = distinct_images(part);
    attempt(DeviceCheck::device, [&] { return open(); });
    attempt_comparisons();
    attempt(DeviceCheck::runners, [&] { return compare_runners(*device_, images_); });
    attempt(DeviceCheck::images, [&] { return compare_images(*device_, images_); });
    attempt(DeviceCheck::divergence, [&] { return see_divergence(*device_, images_); });
    attempt(DeviceCheck::speed, [&] { return measure_speed(); });
    attempt_exchange();
    return rows_;
  }

 private:
  bool has_servers() const { return config_.update == comm::UpdateKind::server; }

  /// The watchdog's text if the check hangs; 0: it waits for the other ranks.
  void show(std::uint64_t check) {
    if (check_.heart != nullptr) check_.heart->step.store(check, std::memory_order_relaxed);
  }

  /// An exception of a check stops this rank's checks. Options that do not fit each other end the start.
  template <class Check>
  void attempt(DeviceCheck number, const Check& check) {
    if (broken_) return leave_out(number, "the device has failed");
    show(static_cast<std::uint64_t>(number));
    Row row;
    try {
      row = check();
    } catch (const std::exception& error) {
      broken_ = true;
      const auto* const agreed = dynamic_cast<const comm::AgreedError*>(&error);
      const auto* const ours = dynamic_cast<const Error*>(&error);
      const bool network = ours != nullptr && ours->kind() == ErrorKind::comm;
      row = {{},
             network ? Outcome::cut_off : Outcome::stopped,
             concat(error.what(), network ? kNetworkAdvice : "")};
      const bool usage = ours != nullptr && ours->kind() == ErrorKind::usage;
      if (usage && agreed != nullptr) throw;
      if (usage) wrong_options_ = *ours;
    }
    if (lacks_graphs(row)) {
      graphs_ = false;
      if (config_.runner == engine::RunnerKind::graph)
        row.outcome = row.outcome == Outcome::refused ? Outcome::stopped : Outcome::bad;
    }
    show(0);
    row.name = name_of(number);
    rows_.push_back(std::move(row));
  }
  void leave_out(DeviceCheck number, const char* why) {
    rows_.push_back({name_of(number), Outcome::left_out, why});
  }

  Row open() {
    device_ = std::make_unique<CheckStep>(config_, info_, world_, make_platform_);
    try {
      precision_ = device_->device.backend->resolve(config_.precision);
    } catch (const Error&) {  // the run then takes another kernel, or reports the error itself
      precision_ = device_->device.backend->resolve(Precision::automatic);
    }
    device_->plan_alone(precision_, sizes_.batch, sizes_.parts);
    return {{}, Outcome::good, device_->device.backend->description()};
  }

  /// Failing to measure the limits, perhaps for lack of memory, is no fault of the device.
  Row measure_speed() {
    if (!check_.measure_limits) return {{}, Outcome::left_out, "the limits of this device are not measured"};
    if (config_.share_gpus) return {{}, Outcome::left_out, "ranks that share a GPU slow each other down"};
    engine::RooflineLimits limits;
    try {
      limits = check_.measure_limits(precision_);
    } catch (const Error& error) {
      return {{}, Outcome::left_out, error.what()};
    }
    return check_speed(*device_, limits, images_);
  }

  /// In fp32 with only the few images if the run has another precision, since these are not its kernels.
  void attempt_comparisons() {
    const bool rounds = precision_ != Precision::fp32;
    if (!check_.judge) {
      return leave_out(DeviceCheck::fp32_gradients, "there is no CPU backend here to compare with");
    }
    attempt(DeviceCheck::fp32_gradients, [&] {
      judge_ = std::make_unique<CheckStep>(config_, info_, world_, check_.judge);
      judge_->plan.config.conv = engine::ConvMethod::direct;  // the limits are derived for its sums
      judge_->plan_alone(Precision::fp32, images_, 1);
      if (rounds) device_->plan_alone(Precision::fp32, images_, 1);
      return compare_fp32(*device_, *judge_, images_);
    });
    if (!rounds) return;
    attempt(DeviceCheck::run_gradients, [&] {
      device_->plan_alone(precision_, sizes_.batch, sizes_.parts);
      return compare_rounded(*device_, *judge_, images_);
    });
  }

  bool on_all_ranks(bool mine) const { return !world_.any(!mine); }

  /// With the other ranks, if all of them got this far. Throws errors of a run's options.
  void attempt_exchange() {
    world_.agree(wrong_options_);
    const bool all = on_all_ranks(!broken_), sums_graphs = on_all_ranks(graphs_);
    if (has_servers() || !all) {
      const char* const why = all ? "servers add, and they are hosts" : "a rank's device has failed";
      leave_out(DeviceCheck::all_reduce, why);
      return leave_out(DeviceCheck::training, why);
    }
    if (world_.size() == 1) {
      leave_out(DeviceCheck::all_reduce, "there is one rank");
    } else {
      attempt(DeviceCheck::all_reduce, [&] {
        device_->plan_run(precision_, sizes_);
        return compare_sums(*device_, sums_graphs);
      });
    }
    const bool graphs = on_all_ranks(graphs_), refused = sums_graphs && !graphs;
    if (refused && rows_.back().outcome == Outcome::cut_off) broken_ = false;  // by a rank without a graph
    if (!on_all_ranks(!broken_)) return leave_out(DeviceCheck::training, "a rank's device has failed");
    attempt(DeviceCheck::training, [&] {
      if (world_.size() == 1 || refused) device_->plan_run(precision_, sizes_);
      return compare_training(*device_, images_, graphs);
    });
  }

  const config::TrainConfig& config_;
  const data::DatasetInfo& info_;
  const comm::World& world_;
  const comm::PlatformFactory& make_platform_;
  const SelfCheck& check_;
  config::Sizes sizes_;
  int images_ = 0;
  Precision precision_ = Precision::fp32;
  std::unique_ptr<CheckStep> device_, judge_;
  std::vector<Row> rows_;
  bool broken_ = false;
  bool graphs_ = true;  ///< as far as this rank knows
  std::optional<Error> wrong_options_;
};

/// A rank's rows as lines, and back.
std::string text_of(const std::vector<Row>& rows) {
  std::string text;
  for (const Row& row : rows) {
    text += concat(static_cast<int>(row.outcome), '\t', row.name, '\t', printable(row.found), '\n');
  }
  return text;
}
std::vector<Row> rows_of(const std::string& text) {
  std::istringstream lines(text);
  std::vector<Row> rows;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t name = line.find('\t') + 1, found = line.find('\t', name) + 1;
    rows.push_back(
        {line.substr(name, found - name - 1), static_cast<Outcome>(std::stoi(line)), line.substr(found)});
  }
  return rows;
}

/// Whether the check failed.
bool fails(const Row& row) { return row.outcome != Outcome::good && row.outcome != Outcome::left_out; }

/// The line of one check: from the first rank that fails it, else from the first that ran it.
std::string table_line(const std::string& name, const std::vector<std::vector<Row>>& ranks) {
  const Row* shown = nullptr;
  std::size_t at = 0, failed = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto row = std::ranges::find(ranks[rank], name, &Row::name);
    if (row == ranks[rank].end()) continue;
    if (shown == nullptr || (fails(*row) && failed == 0)) shown = &*row, at = rank;
    if (fails(*row)) ++failed;
  }
  const char* const words[] = {"ok",       "FAILED",  "left out", "no graph",
                               "no graph", "STOPPED", "STOPPED",  "slow"};
  const char* const word = words[static_cast<int>(shown->outcome)];
  std::string line = fmt::format("  {:<34} {:<9} {}", shown->name, word, shown->found);
  if (failed > 0 && ranks.size() > 1)
    line += concat(" (rank ", at, "; ", failed, " of ", ranks.size(), " ranks)");
  return line;
}

bool no_graph_in(const std::string& check, const std::vector<std::vector<Row>>& ranks) {
  return std::ranges::any_of(ranks, [&](const std::vector<Row>& rows) {
    return std::ranges::any_of(rows, [&](const Row& row) { return row.name == check && lacks_graphs(row); });
  });
}

/// For users: the lines of the table, and each rank's first fault, stop and reason against graphs.
RunFingerprint summary_of(const std::vector<std::vector<Row>>& ranks, const std::vector<std::string>& names) {
  RunFingerprint told;
  std::set<std::string> checks;
  for (const std::vector<Row>& rows : ranks) {
    for (const Row& row : rows) checks.insert(row.name);
  }
  for (const std::string& check : checks) told.emplace_back("table", table_line(check, ranks));
  for (const auto& [kind, outcome] :
       {std::pair{"fault", Outcome::bad}, std::pair{"stop", Outcome::stopped},
        std::pair{"network", Outcome::cut_off}, std::pair{"no graph", Outcome::no_graph},
        std::pair{"refused", Outcome::refused}, std::pair{"slow", Outcome::slow}}) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const auto at = std::ranges::find_if(
          ranks[rank], [wanted = outcome](const Row& row) { return row.outcome == wanted; });
      if (at == ranks[rank].end()) continue;
      if (outcome == Outcome::cut_off && no_graph_in(at->name, ranks)) continue;  // that rank ended them
      told.emplace_back(
          kind, concat("rank ", rank, " on ", names[rank], ": ", at->name.substr(2), ": ", at->found));
    }
  }
  return told;
}

/// "node3, NVIDIA H200 0000:1b:00.0", or "node3: " and the whole description of the device.
std::string device_name(const comm::World& world, const SelfCheck& check,
                        const engine::BackendOptions& options, bool whole) {
  const std::string identity = check.identity ? check.identity(options) : std::string("the device");
  if (whole) return concat(world.host(), ": ", identity);
  return concat(world.host(), ", ", identity.substr(0, identity.find(';')));
}

}  // namespace

std::string devices_of(const engine::BackendOptions& options, const comm::World& world,
                       const SelfCheck& check) {
  std::string own, text;
  world.together([&] { own = device_name(world, check, options, true); });
  const std::vector<std::string> all = world.gather(own);
  for (const std::string& device : std::set<std::string>(all.begin(), all.end()))
    text += concat(text.empty() ? "" : "\n", device);
  return text;
}

SelfCheckReport check_device(const config::TrainConfig& config, const data::DatasetInfo& info,
                             const comm::World& world, const comm::PlatformFactory& make_platform,
                             const SelfCheck& check) {
  const engine::BackendOptions options{1, false, world.node_rank(), world.node_size(), config.share_gpus};
  std::string name;
  world.together([&] { name = device_name(world, check, options, false); });
  const std::vector<std::string> names = world.gather(name);
  std::vector<std::vector<Row>> ranks;
  for (const std::string& text :
       world.gather(text_of(Checks(config, info, world, make_platform, check).run())))
    ranks.push_back(rows_of(text));
  SelfCheckReport report;
  const std::map<std::string, std::vector<std::string>*> places{
      {"table", &report.table},   {"fault", &report.faults},      {"stop", &report.stops},
      {"network", &report.stops}, {"no graph", &report.no_graph}, {"refused", &report.refused},
      {"slow", &report.slow}};
  const RunFingerprint told = summary_of(ranks, names);
  if (find_item(told, "network") != nullptr && find_item(told, "stop") == nullptr)
    report.stopped_by = ErrorKind::comm;
  for (const auto& [kind, line] : told) places.at(kind)->push_back(line);
  report.good = report.faults.empty() && report.stops.empty();
  return report;
}

}  // namespace cifar_mpi::selfcheck
