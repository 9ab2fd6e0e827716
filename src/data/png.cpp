#include "cifar_mpi/data/png.hpp"

#include <png.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/input_file.hpp"
#include "cifar_mpi/base/text.hpp"
#include "data/cifar.hpp"
#include "data/picture.hpp"

namespace cifar_mpi::data {
namespace {

/// libpng's simplified reader; the destructor frees its memory.
struct PngImage {
  PngImage() { image.version = PNG_IMAGE_VERSION; }
  ~PngImage() { png_image_free(&image); }
  PngImage(const PngImage&) = delete;
  PngImage& operator=(const PngImage&) = delete;
  png_image image{};
};

[[noreturn]] void refuse_strip(const std::string& path, const std::string& found) {
  throw Error(ErrorKind::data, "cannot read '", path, "': expected an 8-bit RGB strip with one ",
              to_string(kCifarImage), " image per row, found ", found, "; fetch it again");
}

/// Whether a file of this size can hold the pixels that its header, the first chunk, states: deflate packs at
/// most 1032 bytes into one (a match of 258 bytes in two bits). Libpng checks the header itself.
bool can_hold_its_pixels(std::span<const std::uint8_t> file) {
  constexpr std::size_t kWidth = 16, kHeight = 20, kDepth = 24, kColour = 25, kEnd = 33;
  constexpr std::uint64_t kMostPacked = 1032;
  if (file.size() < kEnd) return false;
  const auto number = [&](std::size_t at) {
    return std::uint64_t{file[at]} << 24 | std::uint64_t{file[at + 1]} << 16 |
           std::uint64_t{file[at + 2]} << 8 | file[at + 3];
  };
  const std::uint64_t colour = file[kColour];
  const std::uint64_t channels = colour == 2 ? 3 : colour == 4 ? 2 : colour == 6 ? 4 : 1;
  const std::uint64_t row_bytes = 1 + number(kWidth) * channels * file[kDepth] / 8;
  return number(kHeight) <= kMostPacked * file.size() / row_bytes;
}

}  // namespace

Picture decode_png(std::span<const std::uint8_t> file) {
  PngImage png;
  const auto undecoded = [&] { return Misread{concat("libpng cannot decode it (", png.image.message, ")")}; };
  if (png_image_begin_read_from_memory(&png.image, file.data(), file.size()) == 0) throw undecoded();
  Picture picture = make_picture(png.image.width, png.image.height);
  if (!can_hold_its_pixels(file)) {
    throw Misread{concat("its header states ", png.image.width, "x", png.image.height,
                         " pixels, more than its ", file.size(), " bytes can hold")};
  }
  png.image.format = PNG_FORMAT_RGB;
  png.image.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;
  const png_color white{255, 255, 255};
  if (png_image_finish_read(&png.image, &white, picture.rgb.get(), 0, nullptr) == 0) throw undecoded();
  return picture;
}

std::string encode_png(int width, int height, int channels, std::span<const std::uint8_t> pixels) {
  PngImage png;
  png.image.width = static_cast<png_uint_32>(width);
  png.image.height = static_cast<png_uint_32>(height);
  png.image.format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  std::string file(PNG_IMAGE_PNG_SIZE_MAX(png.image), '\0');
  png_alloc_size_t bytes = file.size();
  if (png_image_write_to_memory(&png.image, file.data(), &bytes, 0, pixels.data(), 0, nullptr) == 0)
    return {};
  file.resize(bytes);
  return file;
}

std::uint64_t read_png_strip(const std::string& path, std::uint64_t first,
                             std::vector<std::uint8_t>& images) {
  const InputFile opened(path);
  if (!opened.problem().empty()) refuse_strip(path, opened.problem());
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(::fdopen(::dup(opened.descriptor()), "rb"),
                                                             std::fclose);
  if (!file) refuse_strip(path, last_error());
  PngImage png;
  if (png_image_begin_read_from_stdio(&png.image, file.get()) == 0) refuse_strip(path, png.image.message);
  const std::uint64_t pixels = kCifarImage.height * kCifarImage.width;
  if (png.image.width != pixels) refuse_strip(path, concat(png.image.width, " pixels per row"));
  if (png.image.format != PNG_FORMAT_RGB)
    refuse_strip(path, concat("pixel format ", png.image.format, " of libpng"));
  const std::uint64_t rows = png.image.height;
  const std::uint64_t image_bytes = pixels * 3;
  const std::uint64_t room = images.size() / image_bytes;
  if (first > room || rows > room - first) {
    refuse_strip(path, concat(rows, " rows, but the labels leave ", room - first));
  }
  // A row of the strip is an image in NHWC order, so the decoder writes directly to the samples.
  if (png_image_finish_read(&png.image, nullptr, images.data() + first * image_bytes, 0, nullptr) == 0) {
    refuse_strip(path, png.image.message);
  }
  return rows;
}

void read_cifar10_png(const std::string& directory, Samples& train, Samples& test) {
  const auto read = [](const std::string& labels_path, const std::vector<std::string>& strips) {
    Samples samples;
    samples.labels = read_label_list(labels_path);
    samples.images.resize(samples.labels.size() * kCifarImage.count());
    std::uint64_t images = 0;
    for (const std::string& strip : strips) images += read_png_strip(strip, images, samples.images);
    if (images != samples.labels.size()) {
      throw Error(ErrorKind::data, "'", labels_path, "' has ", samples.labels.size(),
                  " labels, but the strip", strips.size() > 1 ? "s from '" : " '", strips.front(), "' hold",
                  strips.size() > 1 ? " " : "s ", images, " images; fetch them again");
    }
    return samples;
  };
  std::vector<std::string> strips;
  for (int i = 1; i <= kCifarTrainBatches; ++i) strips.push_back(train_batch_path(directory, i, ".png"));
  train = read(directory + "/train_lables.json", strips);  // the package spells them so
  test = read(directory + "/test_lables.json", {directory + "/test_batch.png"});
}

}  // namespace cifar_mpi::data
