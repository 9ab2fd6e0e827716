#include <algorithm>
#include <cmath>
#include <functional>

#include "cifar_mpi/base/text.hpp"
#include "page/chart.hpp"
#include "page/sections.hpp"

namespace cifar_mpi::page {
namespace {

/// A quantity of each report.
struct Quantity {
  const char* name;
  std::function<double(const Run&, const report::StepReport&)> value;
};

const Quantity kTotalLoss{"total loss",
                          [](const Run&, const auto& r) { return r.cross_entropy + r.decay_term; }};
const Quantity kCrossEntropy{"cross-entropy", [](const Run&, const auto& r) { return r.cross_entropy; }};
const Quantity kDecayTerm{"decay term", [](const Run&, const auto& r) { return r.decay_term; }};
const Quantity kTrainAccuracy{"training batches", [](const Run&, const auto& r) { return r.train_accuracy; }};
const Quantity kRate{"learning rate", [](const Run&, const auto& r) { return r.learning_rate; }};
const Quantity kSpeed{"images per second", [](const Run&, const auto& r) { return r.images_per_second; }};
const Quantity kStepTime{"whole step", [](const Run& run, const auto& r) {
                           return run.global_batch == 0
                                      ? std::nan("")
                                      : 1e3 * static_cast<double>(run.global_batch) / r.images_per_second;
                         }};

/// The points of one line; more runs do not make the page larger.
std::size_t resolution(std::size_t runs) {
  return std::max<std::size_t>(60, std::min<std::size_t>(320, 1280 / runs));
}

Series line_of(const Run& run, const Quantity& quantity, std::size_t most) {
  std::vector<double> values;
  for (const report::StepReport& r : run.metrics.steps) {
    const double value = quantity.value(run, r);
    values.push_back(std::isfinite(value) ? value : std::nan(""));
  }
  Series series;
  series.name = quantity.name;
  for (const Thinned& t : thin(values, most))
    series.points.push_back(
        {place_of(run, static_cast<double>(run.metrics.steps[t.index].step)), t.low, t.mean, t.high});
  if (values.size() > most)
    series.band = concat("range of ", (values.size() + most - 1) / most, " log lines");
  return series;
}

Series speed_of(const Run& run, std::size_t most) {
  Series series = line_of(run, kSpeed, most);
  series.told = recent_speed(run);
  return series;
}

/// The median rank with a band from the fastest to the slowest.
Series ranks_of(const Run& run, std::size_t most) {
  std::vector<double> low, middle, high;
  for (const report::StepReport& r : run.metrics.steps) {
    low.push_back(r.compute_ms_min);
    middle.push_back(r.compute_ms_median);
    high.push_back(r.compute_ms_max);
  }
  const std::vector<Thinned> lows = thin(low, most), middles = thin(middle, most), highs = thin(high, most);
  Series series;
  series.name = "computing, median rank";
  series.band = "fastest to slowest rank";
  for (std::size_t i = 0; i < middles.size(); ++i)
    series.points.push_back({place_of(run, static_cast<double>(run.metrics.steps[middles[i].index].step)),
                             lows[i].low, middles[i].mean, highs[i].high});
  return series;
}

Series test_accuracy_of(const Run& run, std::size_t most) {
  std::vector<double> values;
  for (const report::EvaluationReport& e : run.metrics.evaluations) values.push_back(e.test_accuracy);
  Series series;
  series.name = "test images, averaged weights";
  series.dots = values.size() <= most / 4;
  for (const Thinned& t : thin(values, most))
    series.points.push_back(
        {place_of(run, static_cast<double>(run.metrics.evaluations[t.index].step)), t.low, t.mean, t.high});
  return series;
}

bool has_values(const Series& series) {
  return std::ranges::any_of(series.points, [](const Point& p) { return std::isfinite(p.value); });
}

Chart chart_of(const char* id, const char* title, Unit unit, bool from_zero, const char* note = "") {
  Chart chart;
  chart.id = id;
  chart.title = title;
  chart.note = note;
  chart.unit = unit;
  chart.from_zero = from_zero;
  return chart;
}

/// Collects figures; omits those without a value.
class Curves {
 public:
  explicit Curves(const std::vector<Run>& runs) : runs_(runs), most_(resolution(runs.size())) {}

  using Line = std::function<Series(const Run&, std::size_t)>;

  /// One figure with all lines of the one run, or one for each line with all runs.
  void add(const Chart& chart, const std::vector<Line>& lines) {
    if (runs_.size() == 1) return put(chart, lines);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      Chart part = chart;
      part.id += concat("-", i);
      for (std::size_t r = 0; r < runs_.size(); ++r) {
        Series series = lines[i](runs_[r], most_);
        if (lines.size() > 1) part.title = concat(chart.title, ": ", series.name);
        take(part, std::move(series), runs_[r].name, r);
        add_marks(part, runs_[r], r);
      }
      finish(std::move(part));
    }
  }
  std::vector<Chart> charts;

 private:
  void put(Chart chart, const std::vector<Line>& lines) {
    for (std::size_t i = 0; i < lines.size(); ++i) {
      Series series = lines[i](runs_.front(), most_);
      const std::string name = series.name;
      take(chart, std::move(series), name, i);
    }
    chart.marks = marks_of(runs_.front());
    finish(std::move(chart));
  }
  /// Adds the marks of one of several runs, in the colour of its line.
  static void add_marks(Chart& chart, const Run& run, std::size_t style) {
    for (Mark& mark : marks_of(run)) {
      mark.style = static_cast<int>(style % kStyles);
      mark.text = concat(run.name, ": ", mark.text);
      chart.marks.push_back(std::move(mark));
    }
  }
  static void take(Chart& chart, Series series, const std::string& name, std::size_t style) {
    if (!has_values(series)) return;
    series.name = name;
    series.style = static_cast<int>(style % kStyles);
    chart.series.push_back(std::move(series));
  }
  void finish(Chart chart) {
    if (!chart.series.empty()) charts.push_back(std::move(chart));
  }

  const std::vector<Run>& runs_;
  std::size_t most_;
};

Curves::Line line(const Quantity& quantity) {
  return [&quantity](const Run& run, std::size_t most) { return line_of(run, quantity, most); };
}

}  // namespace

AxisValues place_of(const Run& run, double step) {
  return {step, run.steps_per_epoch > 0.0 ? step / run.steps_per_epoch : std::nan(""), seconds_at(run, step)};
}

std::vector<Chart> curves(const std::vector<Run>& runs) {
  Curves curves(runs);
  curves.add(chart_of("loss", "Loss", Unit::plain, false,
                      "The loss of one step's batch at each log line. The total is the sum of cross-entropy "
                      "and decay term."),
             {line(kTotalLoss), line(kCrossEntropy), line(kDecayTerm)});
  curves.add(chart_of("accuracy", "Accuracy", Unit::share, true), {test_accuracy_of, line(kTrainAccuracy)});
  curves.add(chart_of("rate", "Learning rate", Unit::plain, true), {line(kRate)});
  curves.add(
      chart_of("speed", "Speed", Unit::rate, true,
               "Images per second over all ranks; the number is the median of the last ten log lines."),
      {speed_of});
  curves.add(
      chart_of("ranks", "Time of a step", Unit::milliseconds, true,
               "The band shows computing, without waiting for other ranks, from the fastest to the slowest "
               "rank. The rest of a step is exposed communication and the host's work between steps."),
      {line(kStepTime), ranks_of});
  return std::move(curves.charts);
}

}  // namespace cifar_mpi::page
