#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "report/metrics_reader.hpp"

namespace cifar_mpi::report {
namespace {

constexpr std::size_t kLongestLine = 1 << 16;  // far more than MetricsFile writes
constexpr off_t kMostBytes = off_t{1} << 30;

}  // namespace

void for_each_line(const Descriptor& file, const std::string& path,
                   const std::function<bool(const std::string& line, LineEnd end)>& take) {
  struct stat found {};
  if (::fstat(file.get(), &found) == 0 && found.st_size > kMostBytes)
    throw Error(ErrorKind::io, "cannot read ", path, ": it is larger than 1 GiB; move it away");
  std::string line;
  std::vector<char> chunk(kLongestLine);
  bool overlong = false;
  for (;;) {
    const ssize_t n = ::read(file.get(), chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(ErrorKind::io, "cannot read ", path, ": ", last_error());
    if (n == 0) break;
    std::string_view part(chunk.data(), static_cast<std::size_t>(n));
    while (!part.empty()) {
      const std::size_t end = part.find('\n');
      overlong = overlong || line.size() + std::min(end, part.size()) > kLongestLine;
      if (overlong) {
        line.clear();
      } else {
        line += part.substr(0, end);
      }
      if (end == std::string_view::npos) break;
      if (!take(line, overlong ? LineEnd::overlong : LineEnd::whole)) return;
      overlong = false;
      line.clear();
      part.remove_prefix(end + 1);
    }
  }
  if (overlong || !line.empty()) take(line, LineEnd::torn);
}

}  // namespace cifar_mpi::report
