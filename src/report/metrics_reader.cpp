#include "report/metrics_reader.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cmath>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "report/json.hpp"

namespace cifar_mpi::report {
namespace {

constexpr std::size_t kMostReports = 2'000'000;
constexpr std::size_t kMostProblems = 10;      // reported one by one
constexpr std::uint64_t kMostBadLines = 1000;  // then the file is not one of ours

class MetricsReader {
 public:
  explicit MetricsReader(const DirectoryEntry& file) : entry_(file), path_(file.path()) {}

  Metrics read() {
    const Descriptor file = open_file(entry_, O_RDONLY);
    if (!file) throw Error(ErrorKind::io, "there is no ", path_);
    for_each_line(file, path_, [&](const std::string& line, LineEnd end) { return take(line, end); });
    if (bad_lines_ > kMostProblems) {
      metrics_.problems.push_back(
          concat(path_, ": ", bad_lines_ - kMostProblems, " more lines are left out as well"));
    }
    return std::move(metrics_);
  }

 private:
  bool take(const std::string& line, LineEnd end) {
    ++number_;
    std::string wrong;
    if (end == LineEnd::whole) {
      if (wrong = object_.parse(line); wrong.empty()) wrong = take_object();
    } else {
      wrong = end == LineEnd::torn ? "the file ends in the middle of it" : "it has more than 64 KiB";
    }
    if (!wrong.empty() && ++bad_lines_ <= kMostProblems)
      metrics_.problems.push_back(concat(path_, ", line ", number_, ", is left out: ", wrong));
    if (bad_lines_ >= kMostBadLines) {
      metrics_.problems.push_back(concat(path_, ": lines after line ", number_, " are not read"));
      return false;
    }
    if (metrics_.steps.size() + metrics_.evaluations.size() + metrics_.events.size() < kMostReports)
      return true;
    metrics_.problems.push_back(concat(path_, ": lines after line ", number_,
                                       " are left out; at most two million reports are shown"));
    return false;
  }

  /// The problem of the object; empty if there is none.
  std::string take_object() {
    if (number_ == 1 && object_.find("format") != nullptr) return take_header();
    const double step = object_.number("step");
    if (!(step >= 0.0 && step < 0x1p53 && step == std::floor(step))) return "it has no step";
    const auto at = static_cast<std::uint64_t>(step);
    if (object_.find("event") != nullptr) return take_event(at);
    if (object_.find("test_accuracy") != nullptr) {
      if (!metrics_.evaluations.empty() && at <= metrics_.evaluations.back().step) return went_back(at);
      const auto views = static_cast<int>(count("views", 1 << 30));
      metrics_.evaluations.push_back({at, figure("epoch"), figure("test_accuracy"),
                                      figure("test_cross_entropy"), views});  // 0: unknown, in older files
      return {};
    }
    if (object_.find("cross_entropy") == nullptr) return "it is neither a report, an evaluation nor an event";
    if (!metrics_.steps.empty() && at <= metrics_.steps.back().step) return went_back(at);
    take_report(at);
    return {};
  }

  std::string take_header() {
    const double version = object_.number("version");
    if (object_.text("format") != "cifar_mpi metrics" || !(version >= 1.0))
      return "it is not the first line of a metrics.jsonl";
    if (version == 1.0) return {};
    throw Error(ErrorKind::data, path_, " has version ", version, "; this program reads 1");
  }

  void take_report(std::uint64_t step) {
    StepReport r;
    r.step = step;
    r.epoch = figure("epoch");
    r.cross_entropy = figure("cross_entropy");
    r.decay_term = figure("decay_term");
    r.train_accuracy = figure("train_accuracy");
    r.learning_rate = figure("lr");
    r.images_per_second = figure("images_per_second");
    r.seconds = figure("seconds");
    r.compute_ms_min = figure("compute_ms.min");
    r.compute_ms_median = figure("compute_ms.median");
    r.compute_ms_max = figure("compute_ms.max");
    r.pushes = pushes();
    if (!metrics_.steps.empty()) metrics_.steps.back().pushes.reset();  // they include all earlier ones
    metrics_.steps.push_back(std::move(r));
  }

  /// Empty unless they are valid counts of workers and servers.
  std::optional<comm::PushCounts> pushes() const {
    comm::PushCounts found;
    found.applied = counts("pushes.applied");
    found.dropped = counts("pushes.dropped");
    found.worker_bytes = counts("pushes.worker_bytes");
    found.server_bytes = counts("pushes.server_bytes");
    found.staleness = counts("pushes.staleness.histogram");
    found.most_stale = count("pushes.staleness.max", 1ULL << 53);
    const std::size_t workers = found.applied.size();
    if (workers == 0 || found.dropped.size() != workers || found.worker_bytes.size() != workers) return {};
    if (found.server_bytes.empty() || found.staleness.size() > comm::PushCounts::kStalenesses) return {};
    return found;
  }

  std::string take_event(std::uint64_t step) {
    const auto kind = find_name<RunEventKind>(object_.text("event"));
    if (!kind) return "it has an event that this program does not know";
    if (!metrics_.events.empty() && step < metrics_.events.back().step) return went_back(step);
    RunEvent e;
    e.kind = *kind;
    e.step = step;
    e.time = object_.text("time");
    e.text = object_.text("text");
    e.ranks = static_cast<int>(count("ranks", 1 << 30));
    e.hosts = object_.text("hosts");
    e.global_batch = count("global_batch", 1ULL << 53);
    e.total_steps = count("total_steps", 1ULL << 53);
    e.reached = count("reached", 1ULL << 53);
    metrics_.events.push_back(std::move(e));
    return {};
  }

  std::string went_back(std::uint64_t step) const { return concat("step ", step, " follows a later one"); }

  /// No value of a run is larger, and sums of larger ones might not be finite.
  double figure(std::string_view name) const {
    const double value = object_.number(name);
    return std::abs(value) < 1e100 ? value : std::nan("");
  }
  std::uint64_t count(std::string_view name, std::uint64_t most) const {
    const double value = object_.number(name);
    return value >= 0.0 && value <= static_cast<double>(most) ? static_cast<std::uint64_t>(value) : 0;
  }
  /// Empty if an entry is not a count.
  std::vector<std::uint64_t> counts(std::string_view name) const {
    std::vector<std::uint64_t> found;
    for (const double value : object_.numbers(name)) {
      if (!(value >= 0.0 && value < 0x1p53)) return {};
      found.push_back(static_cast<std::uint64_t>(value));
    }
    return found;
  }

  const DirectoryEntry& entry_;
  const std::string& path_;
  Metrics metrics_;
  JsonObject object_;
  std::uint64_t number_ = 0;  ///< of the line, from 1 on
  std::uint64_t bad_lines_ = 0;
};

}  // namespace

Metrics read_metrics(const DirectoryEntry& file) { return MetricsReader(file).read(); }

}  // namespace cifar_mpi::report
