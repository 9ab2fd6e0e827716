#include "app/pack_progress.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/log.hpp"

namespace cifar_mpi::app {

std::string progress_text(std::uint64_t done, std::uint64_t total, double seconds) {
  const double rate = seconds > 0.0 ? static_cast<double>(done) / seconds : 0.0;
  std::string text = fmt::format("reading: {} of {} images ({} %), {:.0f} images/s", done, total,
                                 100 * done / std::max<std::uint64_t>(total, 1), rate);
  if (rate > 0.0) {
    const auto left = static_cast<long long>(std::llround(static_cast<double>(total - done) / rate));
    text += fmt::format(", {}:{:02} left", left / 60, left % 60);
  }
  return text;
}

PackProgress::PackProgress(std::uint64_t total, int columns, double interval_s, std::FILE* out)
    : total_(total),
      columns_(columns),
      interval_s_(interval_s),
      out_(out),
      begin_s_(steady_seconds()),
      shown_s_(begin_s_) {}

void PackProgress::show(std::uint64_t done) {
  const double now = steady_seconds();
  if (now - shown_s_ < interval_s_) return;
  shown_s_ = now;
  const std::string text = progress_text(done, total_, now - begin_s_);
  if (columns_ == 0) return Log(0, out_).info(text);
  const auto room = static_cast<std::size_t>(std::max(columns_ - 1, 1));
  std::fprintf(out_, "\r\033[K%s", text.substr(0, room).c_str());
  std::fflush(out_);
  drawn_ = true;
}

void PackProgress::clear() {
  if (!drawn_) return;
  std::fprintf(out_, "\r\033[K");
  std::fflush(out_);
  drawn_ = false;
}

}  // namespace cifar_mpi::app
