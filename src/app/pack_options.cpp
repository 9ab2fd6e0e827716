#include "app/pack_options.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>

#include "app/values.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::app {
namespace {

constexpr std::uint64_t kMaxSamples = 1'000'000'000;
constexpr int kLeastSide = 8, kMostSide = 1024;

void add_cifar_options(CLI::App& app, CLI::Option_group& sources, PackOptions& options) {
  auto* binary = sources.add_option("--from", options.binary_dir,
                                    "Folder with the binary files of CIFAR-10 (data_batch_1..5.bin, "
                                    "test_batch.bin) or CIFAR-100 (train.bin, test.bin, *_label_names.txt)");
  binary->type_name("DIR");
  app.add_flag("--coarse", options.coarse, "Use CIFAR-100's 20 superclasses, not its 100 classes")
      ->needs(binary);
  auto* png = sources.add_option("--from-png", options.png_dir,
                                 "Folder with data_batch_1..5.png, test_batch.png, {train,test}_lables.json");
  png->type_name("DIR");
  app.add_option("--to-binary", options.to_binary, "Also write the six official binary files, unlimited")
      ->type_name("DIR")
      ->needs(png);
}

void add_folder_options(CLI::App& app, CLI::Option_group& sources, PackOptions& options) {
  auto* folder = sources.add_option("--from-folder", options.image_dir,
                                    "Folder with one folder of PNG and JPEG files per class");
  folder->type_name("DIR");
  auto* size = app.add_option("--size", options.size,
                              "Size of images of --from-folder: the centre square, averaged to NxN RGB");
  size->type_name("N")->check(number(kLeastSide, kMostSide))->needs(folder);
  folder->needs(size);
  auto* share = app.add_option("--test-share", options.test_share,
                               "Share of --from-folder for the test split, by path hash");
  share->capture_default_str()->type_name("FLOAT")->check(number(0.001, 0.9))->needs(folder);
  auto* stratify = app.add_flag("--stratify", options.stratify,
                                "Take --test-share of each class; added images may move others");
  stratify->needs(folder);
  app.add_option("--test-folder", options.test_dir, "Separate folder of test images with the same classes")
      ->type_name("DIR")
      ->needs(folder)
      ->excludes(share)
      ->excludes(stratify);
  app.add_flag("--skip-unreadable", options.skip_unreadable,
               "Skip unreadable images of --from-folder with a warning")
      ->needs(folder);
}

void add_synthetic_options(CLI::App& app, CLI::Option_group& sources, PackOptions& options) {
  auto* synthetic = sources.add_option("--synthetic", options.synthetic, "Make N learnable training images");
  synthetic->type_name("N")->check(number(std::uint64_t{1}, kMaxSamples));
  app.add_option("--image", options.image, "Size of synthetic images")
      ->capture_default_str()
      ->type_name("HxWxC")
      ->needs(synthetic);
  app.add_option("--classes", options.classes, "Number of synthetic classes")
      ->capture_default_str()
      ->type_name("N")
      ->check(number(2, 255))
      ->needs(synthetic);
  app.add_option("--seed", options.seed, "Seed of the synthetic images")
      ->capture_default_str()
      ->type_name("S")
      ->check(number<std::uint64_t>())
      ->needs(synthetic);
}

}  // namespace

void add_options(CLI::App& app, PackOptions& options) {
  auto* sources = app.add_option_group("source", "Where the images come from");
  add_cifar_options(app, *sources, options);
  add_folder_options(app, *sources, options);
  add_synthetic_options(app, *sources, options);
  sources->require_option(1);
  app.add_option("--out", options.out, "The HDF5 file to write; its folder is made")
      ->type_name("FILE")
      ->required();
  app.add_flag("--force", options.force, "Overwrite the dataset of --out");
  app.add_option("--limit", options.limit, "Keep the first N training and max(1, N/5) test images")
      ->type_name("N")
      ->check(number(std::uint64_t{1}, kMaxSamples));
}

Extent parse_extent(const std::string& text) {
  std::array<int, 3> sizes{};
  const char* at = text.data();
  const char* const end = at + text.size();
  std::size_t found = 0;
  for (int& size : sizes) {
    const auto [rest, error] = std::from_chars(at, end, size);
    if (error != std::errc{}) break;
    ++found;
    at = rest;
    if (found < sizes.size() && at != end && *at == 'x') ++at;
  }
  const Extent image{sizes[0], sizes[1], sizes[2]};
  if (found != sizes.size() || at != end || std::min(image.height, image.width) < kLeastSide ||
      std::max(image.height, image.width) > kMostSide || image.channels < 1 || image.channels > 4) {
    throw Error(ErrorKind::usage, "--image must be HEIGHTxWIDTHxCHANNELS with sides from ", kLeastSide,
                " to ", kMostSide, " and 1 to 4 channels, such as 32x32x3, not '", text, "'");
  }
  return image;
}

}  // namespace cifar_mpi::app
