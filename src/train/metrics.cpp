#include "cifar_mpi/train/metrics.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::train {
namespace {

/// JSON has no NaN and no infinity.
std::string number(double value) { return std::isfinite(value) ? format("%.9g", value) : "null"; }

/// Every line begins with {"step":N, as MetricsFile writes it; npos-like maximum when it does not.
std::uint64_t step_of(const std::string& line) {
  constexpr std::string_view kHead = "{\"step\":";
  if (!line.starts_with(kHead)) return UINT64_MAX;
  return std::strtoull(line.c_str() + kHead.size(), nullptr, 10);
}

/// Keeps the complete lines up to `step`.
void cut_back(const std::string& path, std::uint64_t step) {
  std::ifstream old(path);
  if (!old) return;
  const std::string temporary = path + ".tmp";
  std::ofstream kept(temporary, std::ios::trunc);
  for (std::string line; std::getline(old, line);) {
    if (step_of(line) <= step && line.ends_with('}')) kept << line << '\n';
  }
  kept.close();
  std::error_code error;
  if (kept) std::filesystem::rename(temporary, path, error);
  if (!kept || error) throw Error(ErrorKind::io, concat("cannot rewrite ", path, ": is the disk full?"));
}

std::string duration(double seconds) {
  const auto s = static_cast<long long>(std::llround(seconds));
  return s >= 3600 ? format("%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60)
                   : format("%lld:%02lld", s / 60, s % 60);
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, std::uint64_t step) : path_(path) {
  cut_back(path, step);
  file_ = Handle<std::FILE*, close>(std::fopen(path.c_str(), "a"));
  if (!file_) throw Error(ErrorKind::io, concat("cannot write ", path, ": ", std::strerror(errno)));
}

void MetricsFile::line(const std::string& json) {
  if (!file_) return;
  std::fprintf(file_.get(), "%s\n", json.c_str());
  std::fflush(file_.get());
}

void MetricsFile::write(const StepReport& r) {
  line(concat("{\"step\":", r.step, ",\"epoch\":", number(r.epoch),
              ",\"cross_entropy\":", number(r.cross_entropy), ",\"decay_term\":", number(r.decay_term),
              ",\"train_accuracy\":", number(r.train_accuracy), ",\"lr\":", number(r.learning_rate),
              ",\"images_per_second\":", number(r.images_per_second), ",\"seconds\":", number(r.seconds),
              ",\"compute_ms\":{\"min\":", number(r.compute_ms_min),
              ",\"median\":", number(r.compute_ms_median), ",\"max\":", number(r.compute_ms_max), "}}"));
}

void MetricsFile::write(std::uint64_t step, double epoch, const Accuracy& accuracy) {
  line(concat("{\"step\":", step, ",\"epoch\":", number(epoch),
              ",\"weights\":\"ema\",\"test_accuracy\":", number(accuracy.precision_at_1()),
              ",\"test_cross_entropy\":", number(accuracy.cross_entropy), "}"));
}

std::string log_line(const StepReport& r, const std::string& time) {
  return concat(time, ": step ", r.step,
                format(", loss = %.2f (%.1f examples/sec; %.3f sec/batch)", r.cross_entropy + r.decay_term,
                       r.images_per_second, r.seconds_per_step));
}

std::string progress_bar(const StepReport& r, int columns) {
  const double done =
      static_cast<double>(r.step) / static_cast<double>(std::max<std::uint64_t>(r.total_steps, 1));
  const double left =
      static_cast<double>(r.total_steps - std::min(r.step, r.total_steps)) * r.seconds_per_step;
  const std::string head = format("%3.0f%% ", 100.0 * done);
  const std::string tail = concat(" step ", r.step, "/", r.total_steps,
                                  format("  epoch %.2f  loss %.2f  %.0f images/s  ", r.epoch,
                                         r.cross_entropy + r.decay_term, r.images_per_second),
                                  duration(left), " left");
  const int room = columns - 1 - static_cast<int>(head.size() + tail.size()) - 2;
  std::string bar;
  if (room >= 8) {
    const int filled = static_cast<int>(std::lround(done * room));
    bar = concat("[", std::string(static_cast<std::size_t>(filled), '#'),
                 std::string(static_cast<std::size_t>(room - filled), '.'), "]");
  }
  return (head + bar + tail).substr(0, static_cast<std::size_t>(std::max(columns - 1, 1)));
}

void ProgressView::report(const StepReport& report) {
  if (columns_ == 0) {
    log_.info(log_line(report, wall_time()));
    return;
  }
  std::printf("\r\033[K%s", progress_bar(report, columns_).c_str());
  std::fflush(stdout);
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
  std::printf("\r\033[K");
  std::fflush(stdout);
  drawn_ = false;
}

}  // namespace cifar_mpi::train
