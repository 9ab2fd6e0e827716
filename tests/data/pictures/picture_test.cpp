#include "data/picture.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <tuple>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/data/png.hpp"
#include "support/errors.hpp"
#include "support/pictures.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::data {
namespace {

using namespace test;

std::span<const std::uint8_t> bytes_of(const std::string& file) {
  return {reinterpret_cast<const std::uint8_t*>(file.data()), file.size()};
}

Values values_of(const Picture& picture) {
  return {picture.rgb.get(), picture.rgb.get() + 3 * picture.width * picture.height};
}

Values random_values(int count, unsigned seed = 1) {
  std::mt19937 random(seed);
  Values values;
  for (int i = 0; i < count; ++i) values.push_back(static_cast<std::uint8_t>(random() >> 8));
  return values;
}

/// `grey` as RGB.
Values tripled(const Values& grey) {
  Values rgb;
  for (const std::uint8_t v : grey) rgb.insert(rgb.end(), {v, v, v});
  return rgb;
}

int largest_difference(const Values& a, const Values& b) {
  if (a.size() != b.size()) return 256;
  int largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

/// Why `file` is refused, or nothing.
template <class Decode>
std::string why_refused(Decode decode, const std::string& file) {
  try {
    static_cast<void>(decode(bytes_of(file)));
  } catch (const Misread& misread) {
    return misread.why;
  }
  return {};
}

TEST(Png, OfOursComesBackAsItWas) {
  const Values rgb = random_values(13 * 7 * 3), grey = random_values(13 * 7);
  const Picture coloured = decode_png(bytes_of(encode_png(13, 7, 3, rgb)));
  EXPECT_EQ(coloured.width, 13);
  EXPECT_EQ(coloured.height, 7);
  EXPECT_EQ(values_of(coloured), rgb);
  EXPECT_EQ(values_of(decode_png(bytes_of(encode_png(13, 7, 1, grey)))), tripled(grey));
}

TEST(Png, ComesBackAsItWasWritten) {
  const Values rgb = random_values(13 * 7 * 3);
  for (const bool interlaced : {false, true}) {
    const Picture picture = decode_png(bytes_of(png_file(13, 7, rgb, {.interlaced = interlaced})));
    EXPECT_EQ(picture.width, 13);
    EXPECT_EQ(picture.height, 7);
    EXPECT_EQ(values_of(picture), rgb);
  }
}

TEST(Png, BecomesRgbOfEightBits) {
  const Values grey = random_values(5 * 4);
  EXPECT_EQ(values_of(decode_png(bytes_of(png_file(5, 4, grey, {.channels = 1})))), tripled(grey));
  Values coloured;
  for (const std::uint8_t i : grey) {
    coloured.insert(coloured.end(),
                    {i, static_cast<std::uint8_t>(255 - i), static_cast<std::uint8_t>(7 * i)});
  }
  EXPECT_EQ(values_of(decode_png(bytes_of(png_file(5, 4, grey, {.palette = true})))), coloured);

  const Values wide = random_values(5 * 4 * 3 * 2);
  Values scaled;
  for (std::size_t i = 0; i < wide.size(); i += 2)
    scaled.push_back(static_cast<std::uint8_t>(std::lround((wide[i] * 256 + wide[i + 1]) / 257.0)));
  EXPECT_EQ(values_of(decode_png(bytes_of(png_file(5, 4, wide, {.depth = 16})))), scaled);
}

TEST(Png, LiesOnWhiteWhereItIsTransparent) {
  const Values clear = filled(3, 2, {10, 20, 30, 0}), opaque = filled(3, 2, {10, 20, 30, 255});
  EXPECT_EQ(values_of(decode_png(bytes_of(png_file(3, 2, clear, {.channels = 4})))),
            filled(3, 2, {255, 255, 255}));
  EXPECT_EQ(values_of(decode_png(bytes_of(png_file(3, 2, opaque, {.channels = 4})))),
            filled(3, 2, {10, 20, 30}));
  const Values grey = filled(3, 2, {40, 0});
  EXPECT_EQ(values_of(decode_png(bytes_of(png_file(3, 2, grey, {.channels = 2})))),
            filled(3, 2, {255, 255, 255}));
}

TEST(Jpeg, ComesBackWithinItsRounding) {
  // At quality 100 every step is 1: an orthonormal transform of errors of half a step, and the colours' rounding.
  const Values colour = filled(19, 11, {200, 30, 60});
  EXPECT_LE(largest_difference(values_of(decode_jpeg(bytes_of(jpeg_file(19, 11, colour)))), colour), 2);
  const Values grey = random_values(19 * 11);
  const Picture picture = decode_jpeg(bytes_of(jpeg_file(19, 11, grey, {.channels = 1})));
  EXPECT_EQ(picture.width, 19);
  EXPECT_EQ(picture.height, 11);
  EXPECT_LE(largest_difference(values_of(picture), tripled(grey)), 4);
}

TEST(Jpeg, IsTheSameProgressively) {
  const Values rgb = random_values(40 * 30 * 3);
  const Values once = values_of(decode_jpeg(bytes_of(jpeg_file(40, 30, rgb, {.quality = 60}))));
  EXPECT_EQ(values_of(decode_jpeg(bytes_of(jpeg_file(40, 30, rgb, {.quality = 60, .progressive = true})))),
            once);
}

TEST(Jpeg, TurnsCmykIntoRgb) {
  const int cyan = 200, magenta = 100, yellow = 20, black = 60;
  const auto left = [&](int ink) {
    return static_cast<std::uint8_t>((255 - ink) * (255 - black) / 255.0 + 0.5);
  };
  const Values expected = filled(16, 9, {left(cyan), left(magenta), left(yellow)});
  for (const bool adobe : {true, false}) {
    Values inks{cyan, magenta, yellow, black};
    for (std::uint8_t& ink : inks) ink = static_cast<std::uint8_t>(adobe ? 255 - ink : ink);
    const std::string file = jpeg_file(16, 9, filled(16, 9, inks), {.channels = 4, .adobe_marker = adobe});
    EXPECT_LE(largest_difference(values_of(decode_jpeg(bytes_of(file))), expected), 2) << adobe;
  }
}

TEST(Picture, IsRefusedWhenAnyOfItsEndIsMissing) {
  const Values rgb = random_values(24 * 24 * 3);
  for (const std::string& file : {png_file(24, 24, rgb), png_file(24, 24, rgb, {.interlaced = true})}) {
    for (std::size_t size = 8; size + 12 < file.size();
         size += 13)  // without the empty last chunk all is there
      ASSERT_NE(why_refused(decode_png, file.substr(0, size)), "") << size << " of " << file.size();
  }
  for (const bool progressive : {false, true}) {
    const std::string file = jpeg_file(24, 24, rgb, {.progressive = progressive});
    for (std::size_t size = 3; size + 2 < file.size(); size += 13)
      ASSERT_NE(why_refused(decode_jpeg, file.substr(0, size)), "") << size << " of " << file.size();
  }
}

TEST(Picture, IsRefusedWhenItIsLargerThanItsFile) {
  const std::string png = png_file(8, 8, filled(8, 8, {1, 2, 3})),
                    jpeg = jpeg_file(8, 8, filled(8, 8, {1, 2, 3}));
  const auto expect_part = [](const std::string& why, const std::string& part) {
    EXPECT_NE(why.find(part), std::string::npos) << why << "\nlacks " << part;
  };
  expect_part(why_refused(decode_png, with_png_header(png, 999'999, 999'999, 8, 2)),
              "expected at most 67108864");
  expect_part(why_refused(decode_png, with_png_header(png, 8000, 8000, 8, 2)), "more than its");
  expect_part(why_refused(decode_png, with_png_header(png, 8000, 8000, 1, 0)), "more than its");
  expect_part(why_refused(decode_jpeg, with_jpeg_size(jpeg, 65'500, 65'500)), "expected at most 67108864");
  expect_part(why_refused(decode_jpeg, with_jpeg_size(jpeg, 8000, 8000)), "more than its");
  EXPECT_NE(why_refused(decode_jpeg, with_jpeg_size(jpeg, 0, 8)), "");
  EXPECT_NE(why_refused(decode_png, with_png_header(png, 0, 8, 8, 2)), "");
}

TEST(Picture, MayBeAsSmallAsDeflateAndHuffmanMakeIt) {
  const std::string png = png_file(3000, 3000, filled(3000, 3000, {0, 0, 0}));
  EXPECT_EQ(decode_png(bytes_of(png)).height, 3000);
  const std::string jpeg =
      jpeg_file(3000, 3000, filled(3000, 3000, {128}), {.channels = 1, .progressive = true});
  EXPECT_EQ(decode_jpeg(bytes_of(jpeg)).height, 3000);
}

TEST(Jpeg, IsRefusedForWhatNobodyWrites) {
  std::string arithmetic = jpeg_file(8, 8, filled(8, 8, {1, 2, 3}));
  arithmetic[arithmetic.find("\xff\xc0") + 1] = '\xc9';
  EXPECT_NE(why_refused(decode_jpeg, arithmetic).find("arithmetic coding"), std::string::npos);

  std::string scans = jpeg_file(16, 16, random_values(16 * 16 * 3), {.scan_per_channel = true});
  EXPECT_EQ(why_refused(decode_jpeg, scans), "");
  const std::string last = scans.substr(scans.rfind("\xff\xda"), scans.size() - 2 - scans.rfind("\xff\xda"));
  for (int i = 0; i < 100; ++i) scans.insert(scans.size() - 2, last);
  EXPECT_EQ(why_refused(decode_jpeg, scans), "it has more than 100 scans");
}

TEST(Jpeg, IsReadWithBytesThatMeanNothing) {
  const Values rgb = random_values(16 * 16 * 3);
  std::string file = jpeg_file(16, 16, rgb);
  const Values good = values_of(decode_jpeg(bytes_of(file)));
  file.insert(2, "??");
  EXPECT_EQ(values_of(decode_jpeg(bytes_of(file + "after the end"))), good);
}

TEST(ReadPicture, GoesByContentNotByName) {
  const TempDir dir;
  write_file(dir / "a.jpg", png_file(2, 2, filled(2, 2, {1, 2, 3})));
  EXPECT_EQ(values_of(read_picture(dir / "a.jpg")), filled(2, 2, {1, 2, 3}));
  write_file(dir / "b.png", jpeg_file(4, 2, filled(4, 2, {50, 50, 50})));
  EXPECT_EQ(read_picture(dir / "b.png").width, 4);
}

TEST(ReadPicture, NamesTheFileThatIsNone) {
  const TempDir dir;
  const auto expect_bad = [&](const std::string& name, const std::string& part) {
    expect_error(ErrorKind::data, {dir / name, part}, [&] { static_cast<void>(read_picture(dir / name)); });
  };
  write_file(dir / "empty.png", "");
  write_file(dir / "text.png", "not a picture");
  write_file(dir / "good.png", png_file(2, 2, filled(2, 2, {1, 2, 3})));
  std::filesystem::create_symlink("good.png", dir / "link.png");
  std::filesystem::create_directory(dir / "folder.png");
  ASSERT_EQ(mkfifo((dir / "pipe.png").c_str(), 0600), 0);
  write_file(dir / "large.png", "");
  std::filesystem::resize_file(dir / "large.png", kMostFileBytes + 1);
  expect_bad("empty.png", "it is empty");
  expect_bad("text.png", "neither PNG nor JPEG");
  expect_bad("link.png", "symbolic link");
  expect_bad("folder.png", "not a regular file");
  expect_bad("pipe.png", "not a regular file");
  expect_bad("large.png", "268435457 bytes");
  expect_bad("none.png", "No such file");
}

Picture random_picture(int width, int height) {
  Picture picture = make_picture(static_cast<std::uint64_t>(width), static_cast<std::uint64_t>(height));
  const Values values = random_values(3 * width * height, static_cast<unsigned>(width * 1000 + height));
  std::copy(values.begin(), values.end(), picture.rgb.get());
  return picture;
}

/// Every source pixel of the square becomes size x size small ones, and side x side of these are averaged: exact.
Values average_by_small_pixels(const Picture& picture, int size) {
  const int side = std::min(picture.width, picture.height);
  const int left = (picture.width - side) / 2, top = (picture.height - side) / 2;
  Values out;
  for (int i = 0; i < size; ++i) {
    for (int j = 0; j < size; ++j) {
      for (int c = 0; c < 3; ++c) {
        std::int64_t sum = 0;
        for (int y = i * side; y < (i + 1) * side; ++y) {
          for (int x = j * side; x < (j + 1) * side; ++x)
            sum += picture.rgb[static_cast<std::size_t>(
                3 * ((top + y / size) * picture.width + left + x / size) + c)];
        }
        const std::int64_t area = std::int64_t{side} * side;
        out.push_back(static_cast<std::uint8_t>((2 * sum + area) / (2 * area)));
      }
    }
  }
  return out;
}

TEST(AverageCentreSquare, IsTheExactMeanOfEachArea) {
  for (const auto& [width, height, size] : std::vector<std::tuple<int, int, int>>{{12, 12, 4},
                                                                                  {13, 13, 4},
                                                                                  {20, 31, 9},
                                                                                  {47, 30, 8},
                                                                                  {8, 8, 8},
                                                                                  {5, 9, 8},
                                                                                  {1, 1, 8},
                                                                                  {3, 2, 7},
                                                                                  {40, 41, 39}}) {
    const Picture picture = random_picture(width, height);
    Values out(static_cast<std::size_t>(3 * size * size));
    average_centre_square(picture, size, out);
    EXPECT_EQ(out, average_by_small_pixels(picture, size)) << width << "x" << height << " to " << size;
  }
}

TEST(AverageCentreSquare, RoundsHalvesUp) {
  Picture picture = make_picture(2, 2);
  const Values values{0, 0, 0, 0, 0, 1, 0, 1, 1, 1, 1, 1};  // 1, 2 and 3 of 4
  std::copy(values.begin(), values.end(), picture.rgb.get());
  Values out(3);
  average_centre_square(picture, 1, out);
  EXPECT_EQ(out, (Values{0, 1, 1}));
}

TEST(AverageCentreSquare, HoldsTheLargestSums) {
  constexpr int kSide = 8192;  // all that is read
  const Picture picture = make_picture(kSide, kSide);
  std::fill_n(picture.rgb.get(), 3u * kSide * kSide, std::uint8_t{255});
  Values out(3 * 7 * 7);
  average_centre_square(picture, 7, out);
  EXPECT_EQ(out, Values(out.size(), 255));
}

}  // namespace
}  // namespace cifar_mpi::data
