#include "page/chart.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "cifar_mpi/base/text.hpp"
#include "page/text.hpp"
#include "report/json.hpp"

namespace cifar_mpi::page {
namespace {

// Pictures are stretched to the page's width; lines keep theirs (vector-effect in the style sheet).
constexpr double kWidth = 2000.0, kHeight = 1000.0;
constexpr std::array<const char*, kAxes> kAxisNames{"step", "epoch", "time"};

struct Scales {
  std::array<Scale, kAxes> x;
  Scale y;
};

/// Whether a value can be drawn: not NaN, and not so large that differences overflow.
bool has_place(double value) { return std::abs(value) <= 1e100; }

/// The ranges of all values that can be drawn.
Scales scales_of(const Chart& chart) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  AxisValues x_low, x_high;
  x_low.fill(kNone);
  x_high.fill(-kNone);
  double low = chart.from_zero ? 0.0 : kNone, high = -kNone;
  const auto widen = [&](const AxisValues& x) {
    for (std::size_t a = 0; a < kAxes; ++a) {
      if (!has_place(x[a])) continue;
      x_low[a] = std::min(x_low[a], x[a]);
      x_high[a] = std::max(x_high[a], x[a]);
    }
  };
  for (const Series& series : chart.series) {
    for (const Point& point : series.points) {
      widen(point.x);
      if (!has_place(point.low) || !has_place(point.high)) continue;
      low = std::min(low, point.low);
      high = std::max(high, point.high);
    }
  }
  for (const Mark& mark : chart.marks) widen(mark.x);
  Scales scales;
  for (std::size_t a = 0; a < kAxes; ++a) {
    const double unit = static_cast<Axis>(a) != Axis::time ? 1.0
                        : x_high[a] > 7200.0               ? 3600.0
                        : x_high[a] > 180.0                ? 60.0
                                                           : 1.0;
    Scale& scale = scales.x[a] = scale_for(std::min(0.0, x_low[a]) / unit, x_high[a] / unit, 5, false);
    scale.low *= unit;
    scale.high *= unit;
    for (double& tick : scale.ticks) tick *= unit;
  }
  const double room = 0.02 * (high - low);  // keeps lines off the upper edge, and shares at most 100 %
  scales.y = scale_for(
      low, chart.unit == Unit::share && high <= 1.0 ? std::min(1.0, high + room) : high + room, 4, true);
  return scales;
}

std::string tick_text(double value, Axis axis, const Scale& scale) {
  if (axis == Axis::time) {
    if (scale.high > 7200.0) return fmt::format("{:.3g} h", value / 3600.0);
    if (scale.high > 180.0) return fmt::format("{:.3g} min", value / 60.0);
    return fmt::format("{:.3g} s", value);
  }
  if (axis == Axis::epoch) return fmt::format("{:.4g}", value);
  if (value >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
  return value >= 1e4 ? fmt::format("{:.4g}k", value / 1e3) : fmt::format("{:.4g}", value);
}

std::string position_text(double value, Axis axis) {
  switch (axis) {
    case Axis::step:
      return "step " + whole(value);
    case Axis::epoch:
      return fmt::format("epoch {:.2f}", value);
    case Axis::time:
      return duration(value);
  }
  return {};
}

/// Converts values to whole-number positions in the picture.
class Canvas {
 public:
  Canvas(const Scale& x, const Scale& y) : x_(x), y_(y) {}
  long x(double value) const { return std::lround(kWidth * x_.place(value)); }
  long y(double value) const { return std::lround(kHeight * (1.0 - y_.place(value))); }

 private:
  const Scale& x_;
  const Scale& y_;
};

bool drawn(const Point& point, std::size_t axis) {
  return has_place(point.x[axis]) && has_place(point.value);
}

std::string line_path(const Series& series, const Canvas& canvas, std::size_t axis) {
  std::string path;
  long last_x = 0, last_y = 0;
  bool pen_down = false;
  for (const Point& point : series.points) {
    if (!drawn(point, axis)) {
      pen_down = false;
      continue;
    }
    const long x = canvas.x(point.x[axis]), y = canvas.y(point.value);
    path += pen_down ? fmt::format("l{} {}", x - last_x, y - last_y) : fmt::format("M{} {}", x, y);
    last_x = x;
    last_y = y;
    pen_down = true;
  }
  return path;
}

/// A line of length 0 with round ends is a dot that stays round when stretched.
std::string dots_path(const Series& series, const Canvas& canvas, std::size_t axis) {
  std::string path;
  for (const Point& point : series.points) {
    if (drawn(point, axis)) path += fmt::format("M{} {}h0", canvas.x(point.x[axis]), canvas.y(point.value));
  }
  return path;
}

std::string band_path(const Series& series, const Canvas& canvas, std::size_t axis) {
  std::string path;
  const auto& points = series.points;
  for (std::size_t first = 0, end = 0; first < points.size(); first = end + 1) {
    for (end = first; end < points.size() && drawn(points[end], axis) && has_place(points[end].low);) ++end;
    if (end == first) continue;
    for (std::size_t i = first; i < end; ++i)
      path += fmt::format("{}{} {}", i == first ? "M" : "L", canvas.x(points[i].x[axis]),
                          canvas.y(points[i].high));
    for (std::size_t i = end; i-- > first;)
      path += fmt::format("L{} {}", canvas.x(points[i].x[axis]), canvas.y(points[i].low));
    path += "Z";
  }
  return path;
}

std::string grid(const Scales& scales, std::size_t axis) {
  const Canvas canvas(scales.x[axis], scales.y);
  std::string path;
  for (const double tick : scales.x[axis].ticks) path += fmt::format("M{} 0V{}", canvas.x(tick), kHeight);
  for (const double tick : scales.y.ticks) path += fmt::format("M0 {}H{}", canvas.y(tick), kWidth);
  return concat("<path class=\"grid\" d=\"", path, "\"/>");
}

/// The text alternative of a picture.
std::string description(const Chart& chart, std::size_t axis) {
  const auto kind = static_cast<Axis>(axis);
  std::string text =
      concat(chart.title, " over ", kAxisNames[axis], ", ", counted(chart.series.size(), "line"), ".");
  for (const Series& series : chart.series) {
    const Point *first = nullptr, *last = nullptr, *least = nullptr, *most = nullptr;
    for (const Point& point : series.points) {
      if (!drawn(point, axis)) continue;
      if (first == nullptr) first = least = most = &point;
      last = &point;
      if (point.low < least->low) least = &point;
      if (point.high > most->high) most = &point;
    }
    if (first == nullptr) continue;
    text += concat(' ', series.name, ": from ", show(first->value, chart.unit), " at ",
                   position_text(first->x[axis], kind), " to ", show(last->value, chart.unit), " at ",
                   position_text(last->x[axis], kind), ", least ", show(least->low, chart.unit), ", most ",
                   show(most->high, chart.unit), '.');
  }
  for (const Mark& mark : chart.marks) {
    if (has_place(mark.x[axis]))
      text += concat(' ', mark.text, " at ", position_text(mark.x[axis], kind), '.');
  }
  return text;
}

std::string style_of(const Mark& mark) { return mark.style < 0 ? std::string() : concat(" s", mark.style); }

std::string picture(const Chart& chart, const Scales& scales, std::size_t axis) {
  const Canvas canvas(scales.x[axis], scales.y);
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"", kWidth, kHeight);
  svg += concat(html(description(chart, axis)), "\">", grid(scales, axis));
  for (const Series& series : chart.series) {
    if (!series.band.empty())
      svg += concat("<path class=\"band s", series.style, "\" d=\"", band_path(series, canvas, axis), "\"/>");
  }
  for (const Mark& mark : chart.marks) {
    if (has_place(mark.x[axis]))
      svg += fmt::format("<path class=\"mark{}\" d=\"M{} 0V{}\"/>", style_of(mark), canvas.x(mark.x[axis]),
                         kHeight);
  }
  for (const Series& series : chart.series) {
    svg += concat("<path class=\"line s", series.style, "\" d=\"", line_path(series, canvas, axis), "\"/>");
    if (series.dots)
      svg += concat("<path class=\"dots s", series.style, "\" d=\"", dots_path(series, canvas, axis), "\"/>");
  }
  svg += "</svg>";
  const auto place = [&](double x) { return place_class(scales.x[axis].place(x)); };
  for (const double tick : scales.x[axis].ticks)
    svg += concat("<span class=\"tx ", place(tick), "\">",
                  tick_text(tick, static_cast<Axis>(axis), scales.x[axis]), "</span>");
  for (const Mark& mark : chart.marks) {
    if (has_place(mark.x[axis]))
      svg += concat("<span class=\"flag", style_of(mark), ' ', place(mark.x[axis]), "\" title=\"",
                    html(mark.text), "\">", html(mark.letter), "</span>");
  }
  return concat("<div class=\"over over-", kAxisNames[axis], "\">", svg, "</div>");
}

std::string legend(const Chart& chart) {
  std::string list = "<ul class=\"legend\">";
  for (const Series& series : chart.series) {
    std::string last;
    for (const Point& point : series.points) {
      if (std::isfinite(point.value)) last = show(point.value, chart.unit);
    }
    if (std::isfinite(series.told)) last = show(series.told, chart.unit);
    list += concat(
        "<li><svg class=\"key\" viewBox=\"0 0 40 10\" aria-hidden=\"true\"><path class=\"line s",
        series.style, "\" d=\"M1 5H39\"/>",
        series.dots ? concat("<path class=\"dots s", series.style, "\" d=\"M20 5h0\"/>") : std::string(),
        "</svg>", html(series.name));
    if (!last.empty()) list += concat(" <b>", last, "</b>");
    if (!series.band.empty()) list += concat(" <small>(shade: ", html(series.band), ")</small>");
    list += "</li>";
  }
  return list + "</ul>";
}

/// A table of some points of each line.
std::string table(const Chart& chart) {
  constexpr std::size_t kRows = 24;
  std::string rows;
  for (const Series& series : chart.series) {
    const std::size_t n = series.points.size(), shown = std::min(n, kRows);
    for (std::size_t i = 0; i < shown; ++i) {
      const Point& point = series.points[shown == 1 ? n - 1 : i * (n - 1) / (shown - 1)];
      rows += concat("<tr><th scope=\"row\">", html(series.name), "</th><td>", whole(point.x[0]), "</td><td>",
                     has_place(point.x[1]) ? fmt::format("{:.2f}", point.x[1]) : "?", "</td><td>",
                     duration(point.x[2]), "</td><td>", show(point.value, chart.unit), "</td>");
      rows += series.band.empty() ? std::string("<td></td><td></td>")
                                  : concat("<td>", show(point.low, chart.unit), "</td><td>",
                                           show(point.high, chart.unit), "</td>");
      rows += "</tr>";
    }
  }
  std::string head;
  for (const char* const name : {"line", "step", "epoch", "training time", "value", "least", "most"})
    head += column(name);
  const std::string title = "Table: " + html(chart.title);
  return concat("<details><summary>", title, "</summary>", table_html(title, head, rows), "</details>");
}

}  // namespace

Scale scale_for(double low, double high, int wanted, bool whole_ends) {
  // Fractions of smaller numbers lose digits (below 1e-307 all of them), so these count as 0.
  constexpr double kLeast = 1e-100;
  if (std::abs(low) < kLeast) low = 0.0;
  if (std::abs(high) < kLeast) high = 0.0;
  if (!(low <= high) || !std::isfinite(high - low)) low = 0.0, high = 1.0;
  if (high - low <= 1e-12 * std::max(std::abs(low), std::abs(high))) {
    const double room = low == 0.0 ? 1.0 : 0.1 * std::abs(low);
    low = low == 0.0 ? 0.0 : low - room;
    high += room;
  }
  const double raw = (high - low) / wanted, power = std::pow(10.0, std::floor(std::log10(raw)));
  const double distance = power * (raw / power <= 1.0   ? 1.0
                                   : raw / power <= 2.0 ? 2.0
                                   : raw / power <= 5.0 ? 5.0
                                                        : 10.0);
  constexpr double kSlack = 1e-9;  // of a distance
  const double first = whole_ends ? std::floor(low / distance + kSlack) : std::ceil(low / distance - kSlack);
  const double last = whole_ends ? std::ceil(high / distance - kSlack) : std::floor(high / distance + kSlack);
  Scale scale{whole_ends ? first * distance : low, whole_ends ? last * distance : high, {}};
  const int lines = static_cast<int>(std::clamp(last - first + 1.0, 0.0, 4.0 * wanted));
  for (int i = 0; i < lines; ++i) scale.ticks.push_back((first + i) * distance + 0.0);
  return scale;
}

std::string show(double value, Unit unit) {
  switch (unit) {
    case Unit::share:
      return percent(value);
    case Unit::milliseconds:
      return figure(value) + " ms";
    case Unit::rate:
      return whole(value) + " /s";
    case Unit::plain:
      break;
  }
  return figure(value);
}

std::string figure_html(const Chart& chart) {
  const Scales scales = scales_of(chart);
  std::string pictures;
  for (std::size_t a = 0; a < kAxes; ++a) pictures += picture(chart, scales, a);
  for (const double tick : scales.y.ticks) {
    const std::string text = chart.unit == Unit::share ? fmt::format("{:.3g} %", 100.0 * tick)
                             : tick >= 1e4             ? fmt::format("{:.4g}k", tick / 1e3)
                                                       : fmt::format("{:.4g}", tick);
    pictures += concat("<span class=\"ty ", place_class(scales.y.place(tick)), "\">", text, "</span>");
  }
  const std::string note =
      chart.note.empty() ? std::string() : concat("<p class=\"note\">", html(chart.note), "</p>");
  return concat("<figure id=\"", chart.id, "\"><figcaption><h3>", html(chart.title), "</h3>", note,
                "</figcaption>", legend(chart), "<div class=\"plot\" data-chart=\"", chart.id,
                "\" tabindex=\"0\" role=\"group\" aria-label=\"", html(chart.title),
                ": the left and right arrow keys show the values\">", pictures,
                "<div class=\"cross\" hidden></div><div class=\"tip\" role=\"status\" hidden></div></div>",
                table(chart), "</figure>\n");
}

std::string figure_json(const Chart& chart) {
  const Scales scales = scales_of(chart);
  const auto list = [](const auto& points, const auto& value) {
    std::string text;
    for (const Point& point : points)
      text += (text.empty() ? "" : ",") +
              (std::isfinite(value(point)) ? fmt::format("{:.6g}", value(point)) : "null");
    return concat('[', text, ']');
  };
  const auto range = [](const Scale& scale) { return fmt::format("[{:.9g},{:.9g}]", scale.low, scale.high); };
  std::string series_list;
  for (const Series& series : chart.series) {
    std::string text = concat("{\"name\":", report::json_text(series.name), ",\"style\":", series.style);
    for (std::size_t a = 0; a < kAxes; ++a)
      text +=
          concat(",\"", kAxisNames[a], "\":", list(series.points, [a](const Point& p) { return p.x[a]; }));
    text += concat(",\"value\":", list(series.points, [](const Point& p) { return p.value; }));
    if (!series.band.empty()) {
      text += concat(",\"low\":", list(series.points, [](const Point& p) { return p.low; }),
                     ",\"high\":", list(series.points, [](const Point& p) { return p.high; }));
    }
    series_list += (series_list.empty() ? "" : ",") + text + "}";
  }
  constexpr std::array<const char*, 4> kUnits{"", "%", "ms", "/s"};
  return concat("{\"id\":", report::json_text(chart.id),
                ",\"unit\":", report::json_text(kUnits[static_cast<std::size_t>(chart.unit)]),
                ",\"range\":{\"step\":", range(scales.x[0]), ",\"epoch\":", range(scales.x[1]),
                ",\"time\":", range(scales.x[2]), ",\"value\":", range(scales.y), "},\"series\":[",
                series_list, "]}");
}

}  // namespace cifar_mpi::page
