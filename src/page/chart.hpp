#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace cifar_mpi::page {

/// The horizontal axis of a curve; the reader chooses it.
enum class Axis { step, epoch, time };
inline constexpr std::size_t kAxes = 3;
using AxisValues = std::array<double, kAxes>;  ///< by Axis; seconds

/// A point of a curve; NaN: there is none.
struct Point {
  AxisValues x{};
  double low = 0.0;  ///< of the values that it represents
  double value = 0.0;
  double high = 0.0;
};

inline constexpr std::size_t kStyles = 8;  ///< of lines: colour and dashes

struct Series {
  std::string name;
  int style = 0;      ///< below kStyles
  bool dots = false;  ///< each point has a dot
  std::string band;   ///< the meaning of the range from low to high, for the legend; empty: not drawn
  std::vector<Point> points;
  double told = std::nan("");  ///< the value in the legend; NaN: the last value
};

/// An event on the axis.
struct Mark {
  AxisValues x{};
  std::string letter;  ///< next to the line
  std::string text;
  int style = -1;  ///< below kStyles: the colour of that line
};

enum class Unit { plain, share, milliseconds, rate };  ///< a share is shown in percent

struct Chart {
  std::string id;  ///< letters, digits and -
  std::string title;
  std::string note;  ///< a sentence under the title
  Unit unit = Unit::plain;
  bool from_zero = false;  ///< the axis of values begins at 0
  std::vector<Series> series;
  std::vector<Mark> marks;
};

/// The range of an axis and the places of its grid lines.
struct Scale {
  double low = 0.0;
  double high = 1.0;
  std::vector<double> ticks;

  /// The relative position of `value`, from 0 to 1.
  double place(double value) const { return (value - low) / (high - low); }
};

/// About `wanted` lines at 1, 2 or 5 times a power of ten. With `whole_ends`, the range ends at lines.
Scale scale_for(double low, double high, int wanted, bool whole_ends);

/// The value as the axis, the legend and the table show it.
std::string show(double value, Unit unit);

/// The figure: title, legend, a picture for each axis with its text alternative, and a table of some of its values.
std::string figure_html(const Chart& chart);

/// The data for the page's script, which shows the values under the pointer: a JSON object.
std::string figure_json(const Chart& chart);

/// A point of a curve that represents consecutive values.
struct Thinned {
  std::size_t index = 0;  ///< of the last of them
  double low = 0.0;
  double mean = 0.0;
  double high = 0.0;
};

/// At most `most` (at least 2) points for any number of values: each represents the same number of values,
/// except the last, which is the last value alone. Up to `most` values are all kept. NaN values are ignored;
/// a point of only such values is NaN.
std::vector<Thinned> thin(std::span<const double> values, std::size_t most);

}  // namespace cifar_mpi::page
