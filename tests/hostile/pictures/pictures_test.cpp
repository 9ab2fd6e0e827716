#include "support/pictures.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "cifar_mpi/base/text.hpp"
#include "data/picture.hpp"
#include "hostile/files.hpp"
#include "support/temp_dir.hpp"

/// PNG and JPEG files as an attacker may make them.
namespace cifar_mpi::test {
namespace {

constexpr int kSide = 24;

Values noise(Dice& dice, int channels, int bytes = 1) {
  Values values;
  for (int i = 0; i < kSide * kSide * channels * bytes; ++i)
    values.push_back(static_cast<std::uint8_t>(dice.roll(256)));
  return values;
}

std::vector<std::string> good_files() {
  Dice dice(1);
  std::vector<std::string> files;
  for (const bool interlaced : {false, true}) {
    for (const int channels : {1, 2, 3, 4}) {
      files.push_back(
          png_file(kSide, kSide, noise(dice, channels), {.channels = channels, .interlaced = interlaced}));
    }
    files.push_back(png_file(kSide, kSide, noise(dice, 1), {.palette = true, .interlaced = interlaced}));
    files.push_back(png_file(kSide, kSide, noise(dice, 3, 2), {.depth = 16, .interlaced = interlaced}));
  }
  for (const bool progressive : {false, true}) {
    for (const int channels : {1, 3, 4}) {
      files.push_back(jpeg_file(kSide, kSide, noise(dice, channels),
                                {.channels = channels, .quality = 70, .progressive = progressive}));
    }
  }
  files.push_back(jpeg_file(kSide, kSide, noise(dice, 3), {.quality = 70, .scan_per_channel = true}));
  return files;
}

/// One to four changes: bytes; pieces removed, repeated or taken from another file; sizes in the header.
std::string changed(const std::vector<std::string>& files, Dice& dice) {
  std::string file = dice.any_of(files);
  const bool png = file[0] != '\xff';
  for (std::uint64_t n = 1 + dice.roll(4); n > 0 && file.size() > 64; --n) {
    const std::size_t at = dice.roll(file.size()), length = 1 + dice.roll(file.size() - at);
    const std::string& other = dice.any_of(files);
    switch (dice.roll(8)) {
      case 0:
        file[at] = static_cast<char>(dice.roll(256));
        break;
      case 1:
        file[dice.roll(64)] ^= static_cast<char>(1 << dice.roll(8));
        break;
      case 2:
        file.resize(at);
        break;
      case 3:
        file.insert(at, file.substr(at, length));
        break;
      case 4:
        file.erase(at, 1 + dice.roll(16));
        break;
      case 5:
        file.replace(at, length, other.substr(std::min(at, other.size()), length));
        break;
      case 6:
        file.insert(at, std::string(dice.roll(64), static_cast<char>(dice.roll(256))));
        break;
      default:
        if (png) {
          constexpr std::array<int, 6> kDepths{1, 2, 4, 8, 16, 3};
          file =
              with_png_header(file, static_cast<std::uint32_t>(dice.roll(UINT64_MAX) >> (32 + dice.roll(32))),
                              static_cast<std::uint32_t>(dice.roll(5000)), dice.any_of(kDepths),
                              static_cast<int>(dice.roll(8)));
        } else {
          try {
            file =
                with_jpeg_size(file, static_cast<int>(dice.roll(65536)), static_cast<int>(dice.roll(5000)));
          } catch (const std::logic_error&) {  // its header is gone
          }
        }
    }
  }
  return png && dice.one_in(2) ? with_right_sums(file) : file;
}

std::string take_picture(const std::string& path) {
  const data::Picture picture = data::read_picture(path);
  std::string seen(3 * 32 * 32, '\0');
  data::average_centre_square(picture, 32, {reinterpret_cast<std::uint8_t*>(seen.data()), seen.size()});
  return seen;
}

TEST(HostilePictures, AreReadOrRefused) {
  const TempDir dir;
  const std::vector<std::string> files = good_files();
  const std::string secret = dir / "secret", path = dir / "case.png";
  write_file(secret, kSecret + "\n");
  const Trial good = try_to([&] {
    for (const std::string& file : files) {
      write_file(path, file);
      static_cast<void>(take_picture(path));
    }
    return std::string();
  });
  Figures figures("picture", good);
  const std::uint64_t first = setting("HOSTILE_SEED", 1), cases = 4 * setting("HOSTILE_CASES", 100);
  for (std::uint64_t seed = first; seed < first + cases && !HasFailure(); ++seed) {
    std::filesystem::remove_all(path);
    Dice dice(seed);
    if (!dice.one_in(10) || !put_no_file(path, dice, secret)) write_file(path, changed(files, dice));
    figures.add(seed, try_to([&] { return take_picture(path); }));
  }
}

}  // namespace
}  // namespace cifar_mpi::test
