#include "cifar_mpi/report/metrics.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>
#include <system_error>
#include <vector>

#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::report {
namespace {

void close_descriptor(int descriptor) { ::close(descriptor); }

/// JSON has no NaN and no infinity.
std::string number(double value) { return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null"; }

/// Null where no step of the interval counted.
std::string compute_ms(const StepReport& r) {
  if (r.compute_ms_max <= 0.0) return "null";
  return concat("{\"min\":", number(r.compute_ms_min), ",\"median\":", number(r.compute_ms_median),
                ",\"max\":", number(r.compute_ms_max), "}");
}

/// Every line begins with {"step":N, as MetricsFile writes it; the largest number when it does not.
std::uint64_t step_of(const std::string& line) {
  constexpr std::string_view kHead = "{\"step\":";
  if (!line.starts_with(kHead)) return UINT64_MAX;
  return std::strtoull(line.c_str() + kHead.size(), nullptr, 10);
}

std::string last_error() { return std::generic_category().message(errno); }

/// Opens what is a file; links are not followed and pipes not waited for. Nothing when there is none.
Handle<int, close_descriptor, -1> open_file(const std::string& path, int how) {
  Handle<int, close_descriptor, -1> file(
      ::open(path.c_str(), how | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666));
  const auto fail = [&](const std::string& why) {
    throw Error(ErrorKind::io, concat("cannot ", (how & O_CREAT) == 0 ? "read " : "write ", path, ": ", why));
  };
  if (!file && errno == ENOENT && (how & O_CREAT) == 0) return file;
  if (!file) fail(errno == ELOOP ? "it is a symbolic link, which is not followed" : last_error());
  struct stat found {};
  if (::fstat(file.get(), &found) != 0) fail(last_error());
  if (S_ISDIR(found.st_mode)) fail("Is a directory");
  if (!S_ISREG(found.st_mode)) fail("it is a pipe, device or socket");
  return file;
}

constexpr const char* kEvaluation = "\"test_accuracy\":";

constexpr std::size_t kLongestLine = 1 << 16;  // far more than MetricsFile writes
constexpr off_t kMostBytes = off_t{1} << 30;

/// Keeps the complete lines up to `step`; overlong ones go.
void cut_back(const std::string& path, std::uint64_t step, bool evaluates_again) {
  const auto file = open_file(path, O_RDONLY);
  if (!file) return;
  std::string kept, rest;
  bool changed = false;
  const auto take = [&](const std::string& line) {
    const bool repeated =
        evaluates_again && step_of(line) == step && line.find(kEvaluation) != std::string::npos;
    const bool keep = step_of(line) <= step && line.ends_with('}') && !repeated;
    if (keep) kept.append(line).append(1, '\n');
    changed = changed || !keep;
  };
  struct stat found {};
  if (::fstat(file.get(), &found) == 0 && found.st_size > kMostBytes)
    throw Error(ErrorKind::io, concat("cannot read ", path, ": it is larger than 1 GiB; move it away"));
  std::vector<char> chunk(kLongestLine);
  bool overlong = false;
  for (;;) {
    const ssize_t n = ::read(file.get(), chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(ErrorKind::io, concat("cannot read ", path, ": ", last_error()));
    if (n == 0) break;
    std::string_view part(chunk.data(), static_cast<std::size_t>(n));
    while (!part.empty()) {
      const std::size_t end = part.find('\n');
      overlong = overlong || rest.size() + std::min(end, part.size()) > kLongestLine;
      if (overlong) {
        rest.clear();
      } else {
        rest += part.substr(0, end);
      }
      if (end == std::string_view::npos) break;
      take(overlong ? std::string() : rest);
      overlong = false;
      rest.clear();
      part.remove_prefix(end + 1);
    }
  }
  changed = changed || overlong || !rest.empty();  // torn
  if (changed) write_atomically(path, std::as_bytes(std::span(kept)));
}

std::string duration(double seconds) {
  const auto s = static_cast<long long>(std::llround(seconds));
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, std::uint64_t step, const Log& log, bool evaluates_again)
    : path_(path), log_(log) {
  cut_back(path, step, evaluates_again);
  file_ = Handle<int, close, -1>(open_file(path, O_WRONLY | O_APPEND | O_CREAT).release());
}

void MetricsFile::close(int descriptor) { ::close(descriptor); }

void MetricsFile::line(std::string json) {
  if (!file_) return;
  json += '\n';
  if (torn_) json.insert(0, 1, '\n');
  const ssize_t written = ::write(file_.get(), json.data(), json.size());
  if (written == static_cast<ssize_t>(json.size())) {
    torn_ = false;
    return;
  }
  torn_ = torn_ || written > 0;
  // A disk that fills up takes a part first and says so only for the next byte.
  const std::string reason = written < 0 ? last_error() : "the disk is full";
  if (!warned_) {
    log_.warn(
        concat("cannot write ", path_, ": ", reason, "; training goes on, but lines are missing there"));
  }
  warned_ = true;
}

void MetricsFile::write(const StepReport& r) {
  line(concat("{\"step\":", r.step, ",\"epoch\":", number(r.epoch),
              ",\"cross_entropy\":", number(r.cross_entropy), ",\"decay_term\":", number(r.decay_term),
              ",\"train_accuracy\":", number(r.train_accuracy), ",\"lr\":", number(r.learning_rate),
              ",\"images_per_second\":", number(r.images_per_second), ",\"seconds\":", number(r.seconds),
              ",\"compute_ms\":", compute_ms(r), "}"));
}

void MetricsFile::write(const EvaluationReport& r) {
  line(concat("{\"step\":", r.step, ",\"epoch\":", number(r.epoch), ",\"weights\":\"ema\",", kEvaluation,
              number(r.test_accuracy), ",\"test_cross_entropy\":", number(r.cross_entropy), "}"));
}

std::string log_line(const StepReport& r, const std::string& time) {
  return concat(time, ": step ", r.step,
                fmt::format(", loss = {:.2f} ({:.1f} examples/sec; {:.3f} sec/batch)",
                            r.cross_entropy + r.decay_term, r.images_per_second, r.seconds_per_step));
}

std::string progress_bar(const StepReport& r, int columns) {
  const double done =
      static_cast<double>(r.step) / static_cast<double>(std::max<std::uint64_t>(r.total_steps, 1));
  const double left =
      static_cast<double>(r.total_steps - std::min(r.step, r.total_steps)) * r.seconds_per_step;
  const std::string head = fmt::format("{:3.0f}% ", 100.0 * done);
  const std::string tail = concat(" step ", r.step, "/", r.total_steps,
                                  fmt::format("  epoch {:.2f}  loss {:.2f}  {:.0f} images/s  ", r.epoch,
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

}  // namespace cifar_mpi::report
