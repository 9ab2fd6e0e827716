#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "app/program.hpp"
#include "app/values.hpp"
#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/data/dataset.hpp"

/// cifar_mpi_pack: writes a dataset file from the official binary files, from PNG strips, or from nothing.
namespace cifar_mpi {
namespace {

constexpr std::uint64_t kMaxSamples = 1'000'000'000;

struct PackOptions {
  std::string binary_dir;
  std::string png_dir;
  std::uint64_t synthetic = 0;
  std::string out;
  std::uint64_t limit = 0;  ///< 0: all
  std::string image = "32x32x3";
  int classes = 10;
  std::uint64_t seed = 1;
  std::string to_binary;
};

void add_options(CLI::App& app, PackOptions& options) {
  auto* sources = app.add_option_group("source", "Where the images come from");
  sources->add_option("--from", options.binary_dir, "Folder with data_batch_1..5.bin and test_batch.bin")
      ->type_name("DIR")
      ->check(app::not_empty());
  auto* png =
      sources->add_option("--from-png", options.png_dir,
                          "Folder with data_batch_1..5.png, test_batch.png, {train,test}_lables.json");
  png->type_name("DIR")->check(app::not_empty());
  auto* synthetic = sources->add_option("--synthetic", options.synthetic, "Make N learnable training images");
  synthetic->type_name("N")->check(app::number(std::uint64_t{1}, kMaxSamples));
  sources->require_option(1);
  app.add_option("--out", options.out, "The HDF5 file to write; its folder is made")
      ->type_name("FILE")
      ->check(app::not_empty())
      ->required();
  app.add_option("--limit", options.limit, "Keep the first N training and max(1, N/5) test images")
      ->type_name("N")
      ->check(app::number(std::uint64_t{1}, kMaxSamples));
  app.add_option("--image", options.image, "Size of synthetic images")
      ->capture_default_str()
      ->type_name("HxWxC")
      ->needs(synthetic);
  app.add_option("--classes", options.classes, "Number of synthetic classes")
      ->capture_default_str()
      ->type_name("N")
      ->check(app::number(2, 255))
      ->needs(synthetic);
  app.add_option("--seed", options.seed, "Seed of the synthetic images")
      ->capture_default_str()
      ->type_name("S")
      ->check(app::number<std::uint64_t>())
      ->needs(synthetic);
  app.add_option("--to-binary", options.to_binary, "Also write the six official binary files, unlimited")
      ->type_name("DIR")
      ->check(app::not_empty())
      ->needs(png);
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
  if (found != sizes.size() || at != end || std::min(image.height, image.width) < 8 ||
      std::max(image.height, image.width) > 1024 || image.channels < 1 || image.channels > 4) {
    throw Error(ErrorKind::usage,
                concat("--image must be HEIGHTxWIDTHxCHANNELS with sides from 8 to 1024 and 1 to 4 channels, "
                       "such as 32x32x3, not '",
                       text, "'"));
  }
  return image;
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) {
    throw Error(ErrorKind::io, concat("cannot make the folder '", folder.string(), "': ", error.message()));
  }
}

/// More than the machine has would not be refused by the system, but end in its choice of a process to kill.
void require_memory(Extent image, std::uint64_t count) {
  constexpr double kCopies = 2.4;  // the images, a fifth as many to test with, and the file in memory
  const double needed = kCopies * static_cast<double>(count) * static_cast<double>(image.count());
  const double there =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (needed <= there) return;
  throw Error(ErrorKind::device, concat("--synthetic ", count, " needs ",
                                        fmt::format("{:.0f} GiB of memory, but this machine has {:.0f}",
                                                    needed / (1 << 30), there / (1 << 30)),
                                        "; make fewer"));
}

struct Loaded {
  data::DatasetInfo info;
  data::Samples train;
  data::Samples test;
};

Loaded load(const PackOptions& options) {
  Loaded set;
  if (options.synthetic > 0) {
    set.info.image = parse_extent(options.image);
    require_memory(set.info.image, options.synthetic);
    set.info.source = concat("synthetic: smooth random patterns with noise, seed ", options.seed,
                             "; not photographs, for tests only");
    for (int i = 0; i < options.classes; ++i) set.info.label_names.push_back(concat("pattern", i));
    data::make_synthetic(set.info.image, options.classes, options.synthetic, options.seed, set.train,
                         set.test);
    return set;
  }
  set.info.image = {32, 32, 3};
  set.info.label_names = data::cifar10_label_names();
  if (!options.png_dir.empty()) {
    set.info.source = "CIFAR-10 (Krizhevsky 2009), from PNG strips";
    data::read_cifar10_png(options.png_dir, set.train, set.test);
  } else {
    set.info.source = "CIFAR-10 (Krizhevsky 2009), from the official binary files";
    data::read_cifar10_binary(options.binary_dir, set.train, set.test);
  }
  return set;
}

void keep_first(data::Samples& samples, std::uint64_t count, std::size_t image_bytes) {
  count = std::min<std::uint64_t>(count, samples.labels.size());
  samples.labels.resize(count);
  samples.images.resize(count * image_bytes);
}

void pack(const PackOptions& options) {
  const double start = steady_seconds();
  make_folder(std::filesystem::path(options.out).parent_path());
  require_writable(options.out);
  Loaded set = load(options);
  if (!options.to_binary.empty()) {
    make_folder(options.to_binary);
    data::write_cifar10_binary(options.to_binary, set.train, set.test);
  }
  if (options.limit > 0 && options.limit < set.train.labels.size()) {
    const auto image_bytes = static_cast<std::size_t>(set.info.image.count());
    keep_first(set.train, options.limit, image_bytes);
    keep_first(set.test, std::max<std::uint64_t>(1, options.limit / 5), image_bytes);
    set.info.source += concat("; only the first ", set.train.labels.size(), " training and ",
                              set.test.labels.size(), " test images");
  }
  data::write_dataset(options.out, set.info, set.train, set.test);
  const std::string line =
      concat(options.out, ": ", set.train.labels.size(), " training and ", set.test.labels.size(),
             " test images of ", to_string(set.info.image), " in ", set.info.classes(),
             " classes, written in ", fmt::format("{:.1f} s", steady_seconds() - start));
  std::puts(line.c_str());
  const data::AugmentSpec crop;
  if (set.info.image.height < crop.crop_height || set.info.image.width < crop.crop_width)
    Log().warn(
        concat("smaller than the ", crop.crop_height, "x", crop.crop_width, " that cifar_mpi_train crops"));
}

}  // namespace
}  // namespace cifar_mpi

int main(int argc, char** argv) {
  using namespace cifar_mpi;
  constexpr const char* kProgram = "cifar_mpi_pack";
  CLI::App cli("Writes a dataset file for cifar_mpi_train.", kProgram);
  PackOptions options;
  add_options(cli, options);
  app::add_version(cli);
  if (const auto code = app::parse(cli, argc, argv)) return *code;
  return app::finish(kProgram, app::run_alone(kProgram, [&] {
                       pack(options);
                       return 0;
                     }));
}
