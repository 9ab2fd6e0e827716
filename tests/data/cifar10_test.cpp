#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <string>

#include "cifar_mpi/base/text.hpp"
#include "data/cifar.hpp"
#include "support/errors.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::data {
namespace {

Samples numbered(std::size_t count) {
  Samples samples;
  for (std::size_t i = 0; i < count; ++i) {
    samples.labels.push_back(static_cast<std::uint8_t>(i * 7 % 10));
    for (std::size_t v = 0; v < 3072; ++v)
      samples.images.push_back(static_cast<std::uint8_t>(i * 31 + v * v % 251));
  }
  return samples;
}

Samples part_of(const Samples& all, std::size_t first, std::size_t count) {
  return {{all.images.begin() + static_cast<std::ptrdiff_t>(first * 3072),
           all.images.begin() + static_cast<std::ptrdiff_t>((first + count) * 3072)},
          {all.labels.begin() + static_cast<std::ptrdiff_t>(first),
           all.labels.begin() + static_cast<std::ptrdiff_t>(first + count)}};
}

void expect_equal(const Samples& a, const Samples& b) {
  EXPECT_EQ(a.labels, b.labels);
  EXPECT_TRUE(a.images == b.images);
}

void append_big_endian(std::string& text, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(value >> shift);
}

std::string png_chunk(const std::string& type, const std::string& content) {
  const std::string body = type + content;
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char c : body) {
    crc ^= static_cast<std::uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320u : 0u);
  }
  std::string chunk;
  append_big_endian(chunk, static_cast<std::uint32_t>(content.size()));
  chunk += body;
  append_big_endian(chunk, ~crc);
  return chunk;
}

/// A PNG without compression, so that the test needs no library. `colour` 2 is RGB, 6 is RGBA, 0 is grey.
std::string make_png(std::uint32_t width, const std::vector<std::uint8_t>& pixels, char colour = 2) {
  const std::size_t row_bytes = width * (colour == 2 ? 3u : colour == 6 ? 4u : 1u);
  std::string header, zlib = "\x78\x01";
  append_big_endian(header, width);
  append_big_endian(header, static_cast<std::uint32_t>(pixels.size() / row_bytes));
  header += std::string({8, colour, 0, 0, 0});
  std::uint32_t low = 1, high = 0;
  for (std::size_t at = 0; at < pixels.size();
       at += row_bytes) {  // one stored block per row, which begins with filter 0
    const auto size = static_cast<std::uint32_t>(row_bytes + 1);
    zlib += at + row_bytes == pixels.size() ? '\1' : '\0';
    for (const std::uint32_t field : {size, ~size}) {
      zlib += static_cast<char>(field);
      zlib += static_cast<char>(field >> 8);
    }
    std::string row(1, '\0');
    row.append(reinterpret_cast<const char*>(pixels.data()) + at, row_bytes);
    for (const char c : row) {
      low = (low + static_cast<std::uint8_t>(c)) % 65521;
      high = (high + low) % 65521;
    }
    zlib += row;
  }
  append_big_endian(zlib, high << 16 | low);
  return "\x89PNG\r\n\x1a\n" + png_chunk("IHDR", header) + png_chunk("IDAT", zlib) + png_chunk("IEND", "");
}

/// Two images per strip.
void write_package(const TempDir& dir, const Samples& all) {
  for (std::size_t i = 0; i < 6; ++i) {
    const std::string name = i < 5 ? concat("data_batch_", i + 1) : "test_batch";
    write_file(dir / (name + ".png"), make_png(1024, part_of(all, 2 * i, 2).images));
  }
  std::string train = "[";
  for (std::size_t i = 0; i < 10; ++i) train += concat(i > 0 ? "," : "", int{all.labels[i]});
  write_file(dir / "train_lables.json", train + "]");
  write_file(dir / "test_lables.json",
             concat(" [ ", int{all.labels[10]}, " ,\n", int{all.labels[11]}, "]\n"));
}

bool have_png() {
  try {
    std::vector<std::uint8_t> images;
    read_png_strip("none", 0, images);
  } catch (const Error& error) {
    return std::string(error.what()).find("without libpng") == std::string::npos;
  }
  return true;
}

TEST(BinaryBatch, HasTheOfficialLayout) {
  const TempDir dir;
  const Samples samples = numbered(3);
  write_binary_batch(dir / "batch.bin", samples, {1, 2});
  const std::string content = read_file(dir / "batch.bin");
  ASSERT_EQ(content.size(), 2u * 3073u);
  EXPECT_EQ(static_cast<std::uint8_t>(content[0]), samples.labels[1]);
  for (const std::size_t pixel : {std::size_t{0}, std::size_t{33}, std::size_t{1023}}) {
    for (std::size_t c = 0; c < 3; ++c) {
      EXPECT_EQ(static_cast<std::uint8_t>(content[1 + c * 1024 + pixel]),
                samples.images[3072 + 3 * pixel + c]);
    }
  }
}

TEST(BinaryBatch, ComesBackAsItWasWritten) {
  const TempDir dir;
  const Samples all = numbered(12);
  write_cifar10_binary(dir.path(), part_of(all, 0, 10), part_of(all, 10, 2));
  Samples read;
  for (int i = 1; i <= 5; ++i) read_binary_batch(train_batch_path(dir.path(), i, ".bin"), 2, read);
  read_binary_batch(dir / "test_batch.bin", 2, read);
  expect_equal(read, all);
}

TEST(BinaryBatch, ReadsTheWholeSet) {
  const TempDir dir;
  const Samples batch = numbered(kCifarBatch);
  write_binary_batch(dir / "test_batch.bin", batch, {0, kCifarBatch});
  for (int i = 1; i <= 5; ++i)
    std::filesystem::create_hard_link(dir / "test_batch.bin", train_batch_path(dir.path(), i, ".bin"));
  Samples train, test;
  read_cifar10_binary(dir.path(), train, test);
  expect_equal(test, batch);
  ASSERT_EQ(train.labels.size(), 50000u);
  expect_equal(part_of(train, 40000, 10000), batch);
}

TEST(BinaryBatch, NamesTheFileThatIsMissingOrWrong) {
  const TempDir dir;
  Samples train, test;
  const auto read = [&] { read_cifar10_binary(dir.path(), train, test); };
  expect_error(ErrorKind::data, {dir / "data_batch_1.bin", "No such file"}, read);
  write_file(dir / "data_batch_1.bin", std::string(30'729'999, '\0'));
  expect_error(ErrorKind::data, {dir / "data_batch_1.bin", "30729999", "30730000"}, read);
  write_file(dir / "bad.bin", std::string(3073, '\0') + std::string(3073, '\12'));
  expect_error(ErrorKind::data, {dir / "bad.bin", "label 10", "record 1"},
               [&] { read_binary_batch(dir / "bad.bin", 2, train); });
  expect_error(ErrorKind::io, {dir / "none/data_batch_1.bin"},
               [&] { write_cifar10_binary(dir / "none", numbered(5), numbered(1)); });
  expect_error(ErrorKind::data, {"32x32x3"}, [&] {
    write_cifar10_binary(dir.path(), {{1}, {1}}, numbered(1));
  });
}

TEST(LabelList, IsReadStrictly) {
  const TempDir dir;
  write_file(dir / "good.json", "[6,9, 0]\n");
  EXPECT_EQ(read_label_list(dir / "good.json"), (std::vector<std::uint8_t>{6, 9, 0}));
  for (const char* bad : {"", "{}", "[]", "[1,2", "[1,,2]", "[1,10]", "[1] 2", "[-1]", "[1.5]"}) {
    write_file(dir / "bad.json", bad);
    expect_error(ErrorKind::data, {dir / "bad.json"}, [&] { read_label_list(dir / "bad.json"); });
  }
  std::string many = "[0";
  for (int i = 1; i < 50'001; ++i) many += ",0";
  write_file(dir / "many.json", many + "]");
  expect_error(ErrorKind::data, {dir / "many.json", "more labels than CIFAR-10"},
               [&] { read_label_list(dir / "many.json"); });
  expect_error(ErrorKind::data, {dir / "none.json"}, [&] { read_label_list(dir / "none.json"); });
}

TEST(PngStrips, ComeBackAsImages) {
  if (!have_png()) GTEST_SKIP() << "built without libpng";
  const TempDir dir;
  const Samples all = numbered(12);
  write_package(dir, all);
  Samples train, test;
  read_cifar10_png(dir.path(), train, test);
  expect_equal(train, part_of(all, 0, 10));
  expect_equal(test, part_of(all, 10, 2));
}

TEST(PngStrips, NameTheFileThatIsMissingOrWrong) {
  if (!have_png()) GTEST_SKIP() << "built without libpng";
  const TempDir dir;
  const Samples all = numbered(12);
  Samples train, test;
  const std::string strip = dir / "data_batch_3.png";
  const auto read = [&] { read_cifar10_png(dir.path(), train, test); };
  const auto expect_bad = [&](const std::string& content, const std::string& part) {
    write_package(dir, all);
    write_file(strip, content);
    expect_error(ErrorKind::data, {strip, part}, read);
  };
  const std::string good = make_png(1024, part_of(all, 4, 2).images);
  expect_bad(make_png(1023, std::vector<std::uint8_t>(2 * 1023 * 3)), "1023");
  expect_bad(make_png(1024, std::vector<std::uint8_t>(2 * 1024 * 4), 6), "format");
  expect_bad(make_png(1024, std::vector<std::uint8_t>(2 * 1024), 0), "format");
  expect_bad("not a PNG", "PNG");
  expect_bad(good.substr(0, good.size() / 2), "found");
  std::string flipped = good;
  flipped[1000] ^= 1;
  expect_bad(flipped, "found");

  write_package(dir, all);
  write_file(strip, make_png(1024, part_of(all, 4, 1).images));
  expect_error(ErrorKind::data, {dir / "train_lables.json", "10 labels", "9 images"}, read);
  write_package(dir, all);
  write_file(dir / "data_batch_5.png", make_png(1024, part_of(all, 4, 3).images));
  expect_error(ErrorKind::data, {dir / "data_batch_5.png", "3 rows"}, read);
  std::filesystem::remove(strip);
  expect_error(ErrorKind::data, {strip}, read);
}

}  // namespace
}  // namespace cifar_mpi::data
