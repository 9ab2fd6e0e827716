#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "cifar_mpi/base/build_info.hpp"
#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/error.hpp"
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
  const CLI::Range samples(std::uint64_t{1}, kMaxSamples);
  auto* sources = app.add_option_group("source", "Where the images come from");
  sources->add_option("--from", options.binary_dir, "Folder with data_batch_1..5.bin and test_batch.bin")
      ->type_name("DIR");
  auto* png =
      sources->add_option("--from-png", options.png_dir,
                          "Folder with data_batch_1..5.png, test_batch.png, {train,test}_lables.json");
  png->type_name("DIR");
  auto* synthetic = sources->add_option("--synthetic", options.synthetic, "Make N learnable training images");
  synthetic->type_name("N")->check(samples);
  sources->require_option(1);
  app.add_option("--out", options.out, "The HDF5 file to write; its folder is made")
      ->type_name("FILE")
      ->required();
  app.add_option("--limit", options.limit, "Keep the first N training and max(1, N/5) test images")
      ->type_name("N")
      ->check(samples);
  app.add_option("--image", options.image, "Size of synthetic images")
      ->capture_default_str()
      ->type_name("HxWxC")
      ->needs(synthetic);
  app.add_option("--classes", options.classes, "Number of synthetic classes")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 255))
      ->needs(synthetic);
  app.add_option("--seed", options.seed, "Seed of the synthetic images")
      ->capture_default_str()
      ->type_name("S")
      ->needs(synthetic);
  app.add_option("--to-binary", options.to_binary, "Also write the six official binary files, unlimited")
      ->type_name("DIR")
      ->needs(png);
}

Extent parse_extent(const std::string& text) {
  Extent image;
  int end = 0;
  const int found =
      std::sscanf(text.c_str(), "%5dx%5dx%1d%n", &image.height, &image.width, &image.channels, &end);
  const bool whole = found == 3 && static_cast<std::size_t>(end) == text.size();
  if (!whole || image.height < 8 || image.width < 8 || image.height > 1024 || image.width > 1024 ||
      image.channels < 1 || image.channels > 4) {
    throw Error(ErrorKind::usage,
                concat("--image '", text,
                       "': expected HEIGHTxWIDTHxCHANNELS with sides from 8 to 1024 and 1 to 4 "
                       "channels, such as 32x32x3"));
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

struct Loaded {
  data::DatasetInfo info;
  data::Samples train;
  data::Samples test;
};

Loaded load(const PackOptions& options) {
  Loaded set;
  if (options.synthetic > 0) {
    set.info.image = parse_extent(options.image);
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
  make_folder(std::filesystem::path(options.out).parent_path());
  data::write_dataset(options.out, set.info, set.train, set.test);
  const std::string line =
      concat(options.out, ": ", set.train.labels.size(), " training and ", set.test.labels.size(),
             " test images of ", to_string(set.info.image), " in ", set.info.classes(),
             " classes, written in ", format("%.1f s", steady_seconds() - start));
  std::puts(line.c_str());
}

int complain(const std::string& text, ErrorKind kind) {
  std::fprintf(stderr, "cifar_mpi_pack: %s\n", text.c_str());
  return exit_code(kind);
}

int run(int argc, char** argv) {
  CLI::App app("Writes a dataset file for cifar_mpi_train.", "cifar_mpi_pack");
  app.set_version_flag("--version", concat("cifar_mpi_pack ", version(), " (", git_revision(), ", ",
                                           build_type(), ", ", compiler(), ")"));
  PackOptions options;
  add_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return complain(concat(error.what(), "; see cifar_mpi_pack --help"), ErrorKind::usage);
  }
  pack(options);
  return 0;
}

}  // namespace
}  // namespace cifar_mpi

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit becomes a write error with a sentence
  try {
    return cifar_mpi::run(argc, argv);
  } catch (const cifar_mpi::Error& error) {
    return cifar_mpi::complain(error.what(), error.kind());
  } catch (const std::bad_alloc&) {
    return cifar_mpi::complain("not enough memory for the images; use a smaller set",
                               cifar_mpi::ErrorKind::device);
  } catch (const std::exception& error) {
    return cifar_mpi::complain(error.what(), cifar_mpi::ErrorKind::internal);
  }
}
