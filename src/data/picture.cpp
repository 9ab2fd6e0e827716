#include "data/picture.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::data {
namespace {

[[noreturn]] void fail_by_system() { throw Misread{std::generic_category().message(errno)}; }

/// The whole content of a regular file that is not a link.
std::vector<std::uint8_t> read_file(const DirectoryEntry& entry) {
  struct stat found {};
  if (::fstatat(entry.folder(), entry.name(), &found, AT_SYMLINK_NOFOLLOW) != 0) fail_by_system();
  if (S_ISLNK(found.st_mode))
    throw Misread{"it is a symbolic link, which is not followed; copy what it points to"};
  if (!S_ISREG(found.st_mode)) throw Misread{"it is not a regular file"};
  const Descriptor file(
      ::openat(entry.folder(), entry.name(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file || ::fstat(file.get(), &found) != 0) fail_by_system();
  const auto size = static_cast<std::uint64_t>(found.st_size);
  if (size == 0) throw Misread{"it is empty"};
  if (size > kMostFileBytes)
    throw Misread{concat("it has ", size, " bytes, expected at most ", kMostFileBytes)};
  std::vector<std::uint8_t> content(size);
  std::size_t done = 0;
  while (done < content.size()) {
    const ssize_t got = ::read(file.get(), content.data() + done, content.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_by_system();
    if (got == 0) throw Misread{"it became shorter while it was read"};
    done += static_cast<std::size_t>(got);
  }
  return content;
}

bool begins_with(std::span<const std::uint8_t> file, std::string_view signature) {
  return file.size() >= signature.size() && std::memcmp(file.data(), signature.data(), signature.size()) == 0;
}

/// Which source pixels an output pixel covers on one axis, in units of 1/size of a source pixel, so that all
/// borders are whole: source pixel p is [p·size, (p + 1)·size), output pixel i is [i·side, (i + 1)·side).
struct Cover {
  std::uint64_t first, last;                ///< source pixels, both inside
  std::uint64_t first_weight, last_weight;  ///< those between weigh `size`
};

Cover cover(std::uint64_t i, std::uint64_t side, std::uint64_t size) {
  const std::uint64_t begin = i * side, end = begin + side;
  Cover c{begin / size, (end - 1) / size, 0, 0};
  c.first_weight = std::min(end, (c.first + 1) * size) - begin;
  c.last_weight = c.last > c.first ? end - c.last * size : 0;
  return c;
}

/// Weighted sums of one source row, [size, 3]; each at most 255·side.
void sum_row(const std::uint8_t* row, std::span<const Cover> covers, std::uint32_t* sums) {
  const auto size = static_cast<std::uint32_t>(covers.size());
  for (const Cover& c : covers) {
    for (std::size_t channel = 0; channel < 3; ++channel) {
      std::uint32_t between = 0;
      for (std::uint64_t p = c.first + 1; p < c.last; ++p) between += row[3 * p + channel];
      *sums++ = static_cast<std::uint32_t>(c.first_weight) * row[3 * c.first + channel] + size * between +
                static_cast<std::uint32_t>(c.last_weight) * row[3 * c.last + channel];
    }
  }
}

}  // namespace

Picture make_picture(std::uint64_t width, std::uint64_t height) {
  if (width == 0 || height == 0) throw Misread{"it has no pixels"};
  if (width > kMostPixels || height > kMostPixels || width * height > kMostPixels) {
    throw Misread{concat("it has ", width, "x", height, " pixels, expected at most ", kMostPixels)};
  }
  return {static_cast<int>(width), static_cast<int>(height),
          std::make_unique_for_overwrite<std::uint8_t[]>(3 * width * height)};
}

Picture read_picture(const DirectoryEntry& entry) {
  try {
    const std::vector<std::uint8_t> file = read_file(entry);
    if (begins_with(file, "\x89PNG\r\n\x1a\n")) return decode_png(file);
    if (begins_with(file, "\xff\xd8\xff")) return decode_jpeg(file);
    throw Misread{"it is neither PNG nor JPEG by its first bytes"};
  } catch (const Misread& misread) {
    throw Error(ErrorKind::data, "cannot read '", entry.path(), "': ", misread.why);
  }
}

void average_centre_square(const Picture& picture, int size, std::span<std::uint8_t> out) {
  const auto side = static_cast<std::uint64_t>(std::min(picture.width, picture.height));
  const auto width = static_cast<std::uint64_t>(picture.width), n = static_cast<std::uint64_t>(size);
  assert(out.size() == 3 * n * n);
  const std::uint64_t left = (width - side) / 2;
  const std::uint64_t top = (static_cast<std::uint64_t>(picture.height) - side) / 2;
  std::vector<Cover> covers;
  for (std::uint64_t i = 0; i < n; ++i) covers.push_back(cover(i, side, n));
  std::vector<std::uint32_t> row(3 * n);
  std::vector<std::uint64_t> sums(3 * n);
  const std::uint64_t area = side * side;  // the sum of all weights of an output pixel
  std::uint64_t summed = ~std::uint64_t{0};
  for (std::uint64_t i = 0; i < n; ++i) {
    std::ranges::fill(sums, 0);
    for (std::uint64_t y = covers[i].first; y <= covers[i].last; ++y) {
      if (y != summed) sum_row(picture.rgb.get() + 3 * ((top + y) * width + left), covers, row.data());
      summed = y;
      const std::uint64_t weight = y == covers[i].first  ? covers[i].first_weight
                                   : y == covers[i].last ? covers[i].last_weight
                                                         : n;
      for (std::size_t v = 0; v < sums.size(); ++v) sums[v] += weight * row[v];
    }
    for (std::size_t v = 0; v < sums.size(); ++v)
      out[i * sums.size() + v] = static_cast<std::uint8_t>((2 * sums[v] + area) / (2 * area));
  }
}

}  // namespace cifar_mpi::data
