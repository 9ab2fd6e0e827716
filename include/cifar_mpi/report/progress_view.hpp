#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/report/metrics.hpp"

namespace cifar_mpi::report {

/// "2026-11-20 06:17:35.123: step 100, loss = 3.42 (5012.3 examples/sec; 0.051 sec/batch; 4:12 left; epoch 0.26)"
std::string log_line(const StepReport& report, const std::string& time);

/// A sparkline of a value over all reports: each character stands for the same number of reports; its height
/// is their mean, scaled from the minimum to the maximum.
class Sparkline {
 public:
  /// Values that are not finite are left out.
  void add(double value);
  /// At most `characters` characters of one column each, fewer while there are fewer values: eighths of a
  /// block, or in ASCII _ . - = + *.
  std::string text(int characters, bool utf8) const;

 private:
  static constexpr std::size_t kMost = 256;

  struct Mean {
    double sum = 0.0;
    std::size_t count = 0;
  };
  std::vector<Mean> means_;  ///< in order; at kMost, pairs are merged
  std::size_t values_per_mean_ = 1;
};

/// A line of fewer than `columns` columns, but at least one. Parts that do not fit are left out, in this
/// order: the slowest rank, the test accuracy, the epoch, the sparkline, the speed, the loss, the time left,
/// the step. A bar fills the remaining columns.
std::string progress_line(const StepReport& report, const Sparkline& loss, int columns, bool utf8);

/// The output of a run: the tutorial's line every few steps, or one moving line when standard output is a terminal.
class ProgressView {
 public:
  /// `columns` is called each time, because terminals change their size; 0 means plain lines.
  ProgressView(const Log& log, std::function<int()> columns, bool utf8)
      : log_(log), columns_(std::move(columns)), utf8_(utf8) {}
  ~ProgressView() { clear(); }
  ProgressView(const ProgressView&) = delete;
  ProgressView& operator=(const ProgressView&) = delete;

  void report(const StepReport& report);
  /// A line that stays, above the moving one.
  void event(const std::string& text);
  /// The same to standard error.
  void warning(const std::string& text);

 private:
  void clear();

  Log log_;
  std::function<int()> columns_;
  bool utf8_;
  Sparkline loss_;
  bool drawn_ = false;
};

}  // namespace cifar_mpi::report
