#include "cifar_mpi/report/progress_view.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::report {
namespace {

std::string duration(double seconds) {
  const auto s = static_cast<long long>(std::llround(seconds));
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

/// "4:12 left", at the speed of the last interval.
std::string left(const StepReport& r) {
  const double steps = static_cast<double>(r.total_steps - std::min(r.step, r.total_steps));
  return concat(duration(steps * r.seconds_per_step), " left");
}

constexpr int kSparklineColumns = 16;

/// A part of the line, and how many columns it takes.
struct Part {
  std::string text;
  int columns = 0;
};

Part ascii(std::string text) {
  const int columns = static_cast<int>(text.size());
  return {std::move(text), columns};
}

/// "  slowest rank 3 (+18 %)": how much longer it computes than the median rank.
std::string slowest(const StepReport& r) {
  if (r.slowest_rank < 0 || r.compute_ms_median <= 0.0) return {};
  return concat("  slowest rank ", r.slowest_rank,
                fmt::format(" (+{:.0f} %)", 100.0 * (r.compute_ms_max / r.compute_ms_median - 1.0)));
}

/// The parts after the bar, in order.
enum Place { kStep, kEpoch, kLoss, kCurve, kTest, kSpeed, kSlowest, kLeft, kPlaces };
constexpr std::array<Place, kPlaces> kByWeight = {kStep,  kLeft,  kLoss, kSpeed,
                                                  kCurve, kEpoch, kTest, kSlowest};

std::array<Part, kPlaces> parts_of(const StepReport& r, const Sparkline& loss, bool utf8) {
  std::array<Part, kPlaces> parts;
  parts[kStep] = ascii(concat(" step ", r.step, "/", r.total_steps));
  parts[kEpoch] = ascii(fmt::format("  epoch {:.2f}", r.epoch));
  parts[kLoss] = ascii(fmt::format("  loss {:.2f}", r.cross_entropy + r.decay_term));
  const auto characters = static_cast<int>(loss.text(kSparklineColumns, false).size());
  if (characters > 1) parts[kCurve] = {' ' + loss.text(kSparklineColumns, utf8), characters + 1};
  if (r.test_accuracy >= 0.0) parts[kTest] = ascii(fmt::format("  test {:.1f} %", 100.0 * r.test_accuracy));
  parts[kSpeed] = ascii(fmt::format("  {:.0f} images/s", r.images_per_second));
  parts[kSlowest] = ascii(slowest(r));
  parts[kLeft] = ascii(concat("  ", left(r)));
  return parts;
}

}  // namespace

std::string log_line(const StepReport& r, const std::string& time) {
  return concat(time, ": step ", r.step,
                fmt::format(", loss = {:.2f} ({:.1f} examples/sec; {:.3f} sec/batch; ",
                            r.cross_entropy + r.decay_term, r.images_per_second, r.seconds_per_step),
                left(r), fmt::format("; epoch {:.2f})", r.epoch));
}

void Sparkline::add(double value) {
  if (!std::isfinite(value)) return;
  if (means_.size() == kMost && means_.back().count == values_per_mean_) {
    for (std::size_t i = 0; i < kMost / 2; ++i) {
      means_[i] = {means_[2 * i].sum + means_[2 * i + 1].sum, means_[2 * i].count + means_[2 * i + 1].count};
    }
    means_.resize(kMost / 2);
    values_per_mean_ *= 2;
  }
  if (means_.empty() || means_.back().count == values_per_mean_) means_.emplace_back();
  means_.back().sum += value;
  ++means_.back().count;
}

std::string Sparkline::text(int characters, bool utf8) const {
  const std::size_t width = std::min(means_.size(), static_cast<std::size_t>(std::max(characters, 0)));
  std::vector<double> heights;
  for (std::size_t i = 0; i < width; ++i) {
    Mean stretch;
    for (std::size_t j = i * means_.size() / width; j < (i + 1) * means_.size() / width; ++j)
      stretch = {stretch.sum + means_[j].sum, stretch.count + means_[j].count};
    heights.push_back(stretch.sum / static_cast<double>(stretch.count));
  }
  if (heights.empty()) return {};
  static constexpr std::array<std::string_view, 8> kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr std::array<std::string_view, 6> kAscii = {"_", ".", "-", "=", "+", "*"};
  const auto [least, most] = std::ranges::minmax_element(heights);
  const double levels = utf8 ? kBlocks.size() : kAscii.size(), range = *most - *least;
  std::string text;
  for (const double height : heights) {
    const double share = range > 0.0 ? (height - *least) / range : 0.0;
    const auto level = static_cast<std::size_t>(std::min(levels * share, levels - 1.0));
    text += utf8 ? kBlocks[level] : kAscii[level];
  }
  return text;
}

std::string progress_line(const StepReport& r, const Sparkline& loss, int columns, bool utf8) {
  const double done =
      static_cast<double>(r.step) / static_cast<double>(std::max<std::uint64_t>(r.total_steps, 1));
  const std::string head = fmt::format("{:3.0f}% ", 100.0 * done);
  std::array<Part, kPlaces> parts = parts_of(r, loss, utf8);
  int room = std::max(columns - 1, 1) - static_cast<int>(head.size());
  bool fits = true;
  for (const Place place :
       kByWeight) {  // stops at the first part that does not fit, so that no part flickers
    fits = fits && parts[place].columns <= room;
    if (!fits) parts[place] = {};
    room -= parts[place].columns;
  }
  std::string line = head;
  if (room >= 10) {
    const int bar = room - 2, filled = std::clamp(static_cast<int>(std::lround(done * bar)), 0, bar);
    line += concat("[", std::string(static_cast<std::size_t>(filled), '#'),
                   std::string(static_cast<std::size_t>(bar - filled), '.'), "]");
  }
  for (const Part& part : parts) line += part.text;
  if (room < 0) line.resize(static_cast<std::size_t>(std::max(columns - 1, 1)));  // not even the head fits
  return line;
}

void ProgressView::report(const StepReport& report) {
  loss_.add(report.cross_entropy + report.decay_term);
  const int columns = columns_();
  if (columns == 0) {
    log_.info(log_line(report, wall_time()));
    return;
  }
  write_flushed(stdout, concat("\r\033[K", progress_line(report, loss_, columns, utf8_)));
  drawn_ = true;
}

void ProgressView::event(const std::string& text) {
  clear();
  log_.info(text);
}

void ProgressView::warning(const std::string& text) {
  clear();
  log_.warn(text);
}

void ProgressView::clear() {
  if (!drawn_) return;
  write_flushed(stdout, "\r\033[K");
  drawn_ = false;
}

}  // namespace cifar_mpi::report
