#include "cifar_mpi/report/metrics.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <utility>

#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "report/json.hpp"
#include "report/metrics_reader.hpp"

namespace cifar_mpi::report {
namespace {

/// Null if no step of the interval was timed.
std::string compute_ms(const StepReport& r) {
  if (r.compute_ms_max <= 0.0) return "null";
  return concat("{\"min\":", json_number(r.compute_ms_min), ",\"median\":", json_number(r.compute_ms_median),
                ",\"max\":", json_number(r.compute_ms_max), "}");
}

std::string list(const std::vector<std::uint64_t>& values) {
  return fmt::format("[{}]", fmt::join(values, ","));
}

/// Removes the zeros at the end.
std::vector<std::uint64_t> trimmed(std::vector<std::uint64_t> counts) {
  while (!counts.empty() && counts.back() == 0) counts.pop_back();
  return counts;
}

std::uint64_t sum_of(const std::vector<std::uint64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

std::string pushes(const StepReport& r) {
  if (!r.pushes) return {};
  const comm::PushCounts& p = *r.pushes;
  std::string text =
      concat(",\"pushes\":{\"applied\":", list(p.applied), ",\"dropped\":", list(p.dropped),
             ",\"worker_bytes\":", list(p.worker_bytes), ",\"server_bytes\":", list(p.server_bytes));
  if (!p.staleness.empty()) {
    text += concat(",\"staleness\":{\"p50\":", staleness_quantile(p, 0.5),
                   ",\"p95\":", staleness_quantile(p, 0.95), ",\"max\":", p.most_stale,
                   ",\"histogram\":", list(trimmed(p.staleness)), '}');
  }
  return text + '}';
}

constexpr std::string_view kHeader = "{\"format\":\"cifar_mpi metrics\",\"version\":";
constexpr int kMetricsVersion = 1;
constexpr const char* kEvaluation = "\"test_accuracy\":";
constexpr const char* kEnd = "{\"event\":\"end\",";

/// The step of a line. Every line but the first begins with {"step":N or {"event":"WORD","step":N, as
/// MetricsFile writes it; for other lines, the largest number.
std::uint64_t step_of(const std::string& line) {
  constexpr std::string_view kEvent = "{\"event\":\"", kStep = "\"step\":";
  std::size_t at = line.starts_with(kEvent) ? line.find(',') : 0;  // of the preceding character
  if (at == std::string::npos || !line.starts_with('{') || line.compare(++at, kStep.size(), kStep) != 0)
    return UINT64_MAX;
  return std::strtoull(line.c_str() + at + kStep.size(), nullptr, 10);
}

/// Throws if the file has a version that this program does not write.
void require_version(const std::string& line, const std::string& path) {
  const int version = std::atoi(line.c_str() + kHeader.size());
  if (version == kMetricsVersion) return;
  throw Error(ErrorKind::io, "cannot append to ", path, ": it has version ", version,
              ", this program writes ", kMetricsVersion, "; move it away");
}

/// Keeps the first line and the complete lines up to `step`; removes overlong ones. Returns the largest step
/// in the file.
std::uint64_t cut_back(const DirectoryEntry& entry, std::uint64_t step, bool evaluates_again) {
  const Descriptor file = open_file(entry, O_RDONLY);
  if (!file) return 0;
  const std::string& path = entry.path();
  std::string kept;
  bool changed = false, first = true;
  std::uint64_t reached = 0;
  for_each_line(file, path, [&](const std::string& line, LineEnd end) {
    const bool whole = end == LineEnd::whole && line.ends_with('}');
    const bool header = whole && std::exchange(first, false) && line.starts_with(kHeader);
    if (header) require_version(line, path);
    const std::uint64_t at = step_of(line);
    if (whole && at != UINT64_MAX) reached = std::max(reached, at);
    const bool repeated = evaluates_again && at == step &&
                          (line.find(kEvaluation) != std::string::npos || line.starts_with(kEnd));
    const bool keep = header || (whole && at <= step && !repeated);
    if (keep) kept.append(line).append(1, '\n');
    changed = changed || !keep;
    return true;
  });
  if (changed) write_atomically(entry, kept);
  return reached;
}

/// The workers whose share of applied pushes is less than a quarter of the mean, if there were enough pushes.
std::vector<int> late_workers(const comm::PushCounts& pushes) {
  constexpr std::uint64_t kFew = 20, kTimesFewer = 4;  // fewer pushes are not judged
  const std::uint64_t applied = sum_of(pushes.applied);
  std::vector<int> late;
  for (std::size_t w = 0; w < pushes.applied.size(); ++w) {
    const bool known = pushes.applied[w] + pushes.dropped[w] >= kFew;
    if (known && kTimesFewer * pushes.applied.size() * pushes.applied[w] < applied)
      late.push_back(static_cast<int>(w));
  }
  return late;
}

}  // namespace

MetricsFile::MetricsFile(const DirectoryEntry& file, std::uint64_t step, const Log& log, bool evaluates_again)
    : reached_(cut_back(file, step, evaluates_again)),
      file_(file.path(), "lines will be missing from it", log) {
  file_.open(open_file(file, O_WRONLY | O_APPEND | O_CREAT), file.path());
  if (file_.empty()) line(concat(kHeader, kMetricsVersion, R"(,"kind":"header"})"));
}

void MetricsFile::line(std::string json) { file_.write(json += '\n'); }

void MetricsFile::write(const StepReport& r) {
  line(concat(
      "{\"step\":", r.step, ",\"epoch\":", json_number(r.epoch),
      ",\"cross_entropy\":", json_number(r.cross_entropy), ",\"decay_term\":", json_number(r.decay_term),
      ",\"train_accuracy\":", json_number(r.train_accuracy), ",\"lr\":", json_number(r.learning_rate),
      ",\"images_per_second\":", json_number(r.images_per_second), ",\"seconds\":", json_number(r.seconds),
      ",\"compute_ms\":", compute_ms(r), pushes(r), R"(,"kind":"step"})"));
}

std::uint64_t staleness_quantile(const comm::PushCounts& pushes, double share) {
  const double wanted = share * static_cast<double>(sum_of(pushes.staleness));
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < pushes.staleness.size(); ++i) {
    below += pushes.staleness[i];
    if (below > 0 && static_cast<double>(below) >= wanted) return i;
  }
  return 0;
}

std::string pushes_text(const comm::PushCounts& pushes) {
  const std::uint64_t applied = sum_of(pushes.applied), dropped = sum_of(pushes.dropped);
  const auto most_mib = [](const std::vector<std::uint64_t>& bytes) {
    return static_cast<double>(std::ranges::max(bytes)) / (1 << 20);
  };
  std::string text = fmt::format("{} applied ({} by worker)", applied, fmt::join(pushes.applied, ", "));
  if (dropped > 0) {
    text += fmt::format(", {} late ones dropped, {:.1f} % ({} by worker)", dropped,
                        100.0 * static_cast<double>(dropped) / static_cast<double>(applied + dropped),
                        fmt::join(pushes.dropped, ", "));
    if (const std::vector<int> late = late_workers(pushes); !late.empty()) {
      text += fmt::format(
          "; nearly always late: worker {}, whose samples get little training with --shuffle shard",
          fmt::join(late, ", "));
    }
  }
  if (!pushes.staleness.empty()) {
    text += fmt::format("; staleness: 50 % at most {}, 95 % at most {}, maximum {}",
                        staleness_quantile(pushes, 0.5), staleness_quantile(pushes, 0.95), pushes.most_stale);
  }
  return text +
         fmt::format(
             "; {:.1f} MiB of pushes and answers for the busiest worker, {:.1f} for the busiest server",
             most_mib(pushes.worker_bytes), most_mib(pushes.server_bytes));
}

void MetricsFile::write(const EvaluationReport& r) {
  line(concat("{\"step\":", r.step, ",\"epoch\":", json_number(r.epoch), ",\"weights\":\"ema\",", kEvaluation,
              json_number(r.test_accuracy), ",\"test_cross_entropy\":", json_number(r.cross_entropy),
              ",\"views\":", r.views, R"(,"kind":"evaluation"})"));
}

void MetricsFile::write(const RunEvent& e) {
  std::string text = concat("{\"event\":", json_text(to_string(e.kind)), ",\"step\":", e.step,
                            ",\"time\":", json_text(e.time));
  if (e.ranks > 0) {
    text += concat(",\"ranks\":", e.ranks, ",\"hosts\":", json_text(e.hosts),
                   ",\"global_batch\":", e.global_batch, ",\"total_steps\":", e.total_steps);
  }
  if (e.reached > e.step) text += concat(",\"reached\":", e.reached);
  if (!e.text.empty()) text += concat(",\"text\":", json_text(e.text));
  line(text + R"(,"kind":"event"})");
}

}  // namespace cifar_mpi::report
