#include "page/text.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::page {
namespace {

std::string escaped(std::string_view text) {
  constexpr std::string_view kSpecial = "&<>\"'";
  constexpr std::array<const char*, kSpecial.size()> kEscaped = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
  std::string safe;
  for (const char c : printable(text)) {
    const std::size_t special = kSpecial.find(c);
    if (special == kSpecial.npos)
      safe += c;
    else
      safe += kEscaped[special];
  }
  return safe;
}

}  // namespace

std::string html(std::string_view text, bool lines) {
  if (!lines) return escaped(text);
  std::string safe;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    safe += escaped(text.substr(at, end - at));
    if (end < text.size()) safe += '\n';
    at = end + 1;
  }
  return safe;
}

std::string column(std::string_view name, const char* attributes) {
  return concat("<th scope=\"col\"", attributes, '>', name, "</th>");
}

std::string table_html(const std::string& label, const std::string& head, const std::string& rows,
                       const char* attributes) {
  return concat("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"", label, "\"><table",
                attributes, "><thead><tr>", head, "</tr></thead><tbody>", rows, "</tbody></table></div>");
}

std::string whole(double value) { return std::isfinite(value) ? fmt::format("{:.0f}", value) : "?"; }

std::string figure(double value) {
  if (!std::isfinite(value)) return "?";
  const double size = std::abs(value);
  if (size >= 1e7 || (size > 0.0 && size < 1e-4)) return fmt::format("{:.3g}", value);
  if (size >= 1000.0) return whole(value);
  return size >= 100.0 ? fmt::format("{:.1f}", value)
         : size >= 1.0 ? fmt::format("{:.2f}", value)
                       : fmt::format("{:.3g}", value);
}

std::string percent(double share) {
  return std::isfinite(share) ? fmt::format("{:.2f} %", 100.0 * share) : "?";
}

std::string place_class(double share) {
  const long hundredths = std::lround(10'000.0 * (share >= 0.0 ? std::min(share, 1.0) : 0.0));
  return hundredths % 100 == 0 ? fmt::format("p{}", hundredths / 100)
                               : fmt::format("p{} q{}", hundredths / 100, hundredths % 100);
}

std::string duration(double seconds) {
  constexpr double kMost = 1e15;  // longer times may not fit a whole number
  if (!(std::abs(seconds) < kMost)) return "?";
  const auto s = static_cast<long long>(std::llround(seconds));
  if (s < 10) return fmt::format("{:.1f} s", seconds);
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {} s", s / 60, s % 60);
  return fmt::format("{} h {} min", s / 3600, s / 60 % 60);
}

std::string shortened(const std::string& text, std::size_t most) {
  if (text.size() <= most) return text;
  std::size_t at = 0;
  while (at < most) at += std::max<std::size_t>(1, utf8_length(std::string_view(text).substr(at)));
  return text.substr(0, at) + "…";
}

}  // namespace cifar_mpi::page
