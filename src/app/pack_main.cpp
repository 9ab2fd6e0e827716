#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>

#include "app/help.hpp"
#include "app/pack_options.hpp"
#include "app/pack_progress.hpp"
#include "app/program.hpp"
#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/base/terminal.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/data/dataset.hpp"
#include "cifar_mpi/data/image_folder.hpp"
#include "hdf5/hdf5.hpp"

/// cifar_mpi_pack: writes a dataset file from the official binary files, PNG strips, folders of images, or
/// synthetic images.
namespace cifar_mpi {
namespace {

using app::PackOptions;

/// The system would grant more memory than the machine has, and then kill a process. `count` images and the
/// file are held in memory.
void require_memory(const std::string& what, Extent image, double count, const std::string& advice) {
  const double needed = 2.0 * count * static_cast<double>(image.count());
  const double there =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (needed <= there) return;
  throw Error(ErrorKind::device, what,
              fmt::format(" needs {:.0f} GiB of memory, but this machine has {:.0f}; ", needed / (1 << 30),
                          there / (1 << 30)),
              advice);
}

struct Loaded {
  data::DatasetInfo info;
  data::Samples train;
  data::Samples test;
};

std::uint64_t test_limit(const PackOptions& options) { return std::max<std::uint64_t>(1, options.limit / 5); }

std::string limited_to(std::uint64_t train, std::uint64_t test) {
  return concat("; only the first ", train, " training and ", test, " test images");
}

void keep_first(data::Samples& samples, std::uint64_t count, std::size_t image_bytes) {
  count = std::min<std::uint64_t>(count, samples.labels.size());
  samples.labels.resize(count);
  samples.images.resize(count * image_bytes);
  if (!samples.files.empty()) samples.files.resize(count);
}

void limit(Loaded& set, const PackOptions& options) {
  if (options.limit == 0 || options.limit >= set.train.labels.size()) return;
  const auto image_bytes = static_cast<std::size_t>(set.info.image.count());
  keep_first(set.train, options.limit, image_bytes);
  keep_first(set.test, test_limit(options), image_bytes);
  set.info.source += limited_to(set.train.labels.size(), set.test.labels.size());
}

Loaded load_synthetic(const PackOptions& options) {
  Loaded set;
  set.info.image = app::parse_extent(options.image);
  constexpr double kWithTest = 1.2;
  require_memory(concat("--synthetic ", options.synthetic), set.info.image,
                 kWithTest * static_cast<double>(options.synthetic), "make fewer");
  set.info.source = concat("synthetic: smooth random patterns with noise, seed ", options.seed,
                           "; not photographs, for tests only");
  for (int i = 0; i < options.classes; ++i) set.info.label_names.push_back(concat("pattern", i));
  data::make_synthetic(set.info.image, options.classes, options.synthetic, options.seed, set.train, set.test);
  return set;
}

Loaded load_cifar(const PackOptions& options) {
  Loaded set;
  set.info.image = {32, 32, 3};
  const bool hundred = options.png_dir.empty() && data::holds_cifar100(options.binary_dir);
  if (options.coarse && !hundred) {
    throw Error(ErrorKind::usage, "--coarse takes CIFAR-100's superclasses, but '", options.binary_dir,
                "' holds CIFAR-10; leave it out");
  }
  if (hundred) {
    set.info.source = concat("CIFAR-100 (Krizhevsky 2009), ", options.coarse ? "its 20 superclasses, " : "",
                             "from the official binary files");
    set.info.label_names =
        data::read_cifar100_binary(options.binary_dir, options.coarse, set.train, set.test);
    return set;
  }
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

/// Lists skipped files, up to a limit.
class LeftOut {
 public:
  void unreadable(const std::string& sentence) {
    constexpr std::uint64_t kTold = 10;
    if (++unreadable_ <= kTold) Log().warn(concat(sentence, "; left out"));
    if (unreadable_ == kTold + 1) Log().warn("more files cannot be read; the rest are only counted");
  }
  void others(const data::ImageFolder& folder) {
    if (folder.other_files == 0) return;
    Log().info(concat("note: left out ", folder.other_files, " files of '", folder.root,
                      "' that are no .png, .jpg or .jpeg in a class, such as '", folder.other_file, "'"));
  }
  void sum_up() const {
    if (unreadable_ > 0) Log().info(concat("note: left out ", unreadable_, " files that cannot be read"));
  }
  std::uint64_t count() const { return unreadable_; }

 private:
  std::uint64_t unreadable_ = 0;
};

Loaded load_folder(const PackOptions& options) {
  LeftOut left_out;
  data::ImageFolder train = data::list_image_folder(options.image_dir);
  left_out.others(train);
  data::ImageFolder test;
  if (options.test_dir.empty()) {
    test = data::split_off(train, options.test_share, options.stratify);
  } else {
    test = data::list_image_folder(options.test_dir);
    left_out.others(test);
    data::require_same_classes(train, test);
  }
  Loaded set;
  set.info.image = {options.size, options.size, 3};
  set.info.label_names = train.classes;
  set.info.source =
      concat("folders of images, the centre square of each averaged; test split ",
             options.test_dir.empty() ? concat("by a hash of the paths, share ", options.test_share,
                                               options.stratify ? " of each class" : "")
                                      : "from a folder of its own");
  if (options.limit > 0 && options.limit < train.images.size()) {
    train.images.resize(options.limit);
    test.images.resize(std::min<std::size_t>(test.images.size(), test_limit(options)));
    set.info.source += limited_to(train.images.size(), test.images.size());
  }
  const std::uint64_t total = train.images.size() + test.images.size();
  require_memory(concat("--from-folder with ", total, " images"), set.info.image, static_cast<double>(total),
                 "give a smaller --size, or a --limit");

  const int columns = terminal_columns();
  app::PackProgress progress(total, columns, columns > 0 ? 0.1 : 10.0);
  std::uint64_t before = 0;
  data::ReadEvents events;
  events.progress = [&](std::uint64_t done) { progress.show(before + done); };
  if (options.skip_unreadable) {
    events.unreadable = [&](const std::string& sentence) {
      progress.clear();
      left_out.unreadable(sentence);
    };
  }
  set.train = data::read_images(train, options.size, events);
  data::require_read_classes(train, set.train.labels);
  before = train.images.size();
  set.test = data::read_images(test, options.size, events);
  if (set.test.labels.empty())
    throw Error(ErrorKind::data, "none of the test images of '", test.root,
                "' can be read; repair the files");
  progress.clear();
  left_out.sum_up();
  if (left_out.count() > 0) set.info.source += concat("; ", left_out.count(), " files could not be read");
  return set;
}

Loaded load(const PackOptions& options) {
  if (options.synthetic > 0) return load_synthetic(options);
  if (!options.image_dir.empty()) return load_folder(options);
  return load_cifar(options);
}

/// Of such a class no accuracy is measured.
void warn_of_untested(const Loaded& set) {
  constexpr std::size_t kShown = 5;
  std::string names;
  std::size_t count = 0;
  for (std::size_t label = 0; label < set.info.label_names.size(); ++label) {
    const std::vector<std::uint8_t>& labels = set.test.labels;
    if (std::ranges::find(labels, static_cast<std::uint8_t>(label)) != labels.end()) continue;
    if (count++ < kShown) names += concat(count > 1 ? ", " : "", set.info.label_names[label]);
  }
  if (count == 0) return;
  if (count > kShown) names += concat(" and ", count - kShown, " more");
  Log().warn(concat(count, count == 1 ? " class has" : " classes have", " no test image: ", names));
}

void pack(const PackOptions& options) {
  const double start = steady_seconds();
  hdf5::require_like_or_nothing(options.out, data::kDatasetFormat, "a dataset", "--out");
  app::prepare_output(options.out, options.force);
  Loaded set = load(options);
  if (!options.to_binary.empty()) {
    app::make_folder(options.to_binary);
    data::write_cifar10_binary(options.to_binary, set.train, set.test);
  }
  limit(set, options);
  data::write_dataset(options.out, set.info, set.train, set.test);
  const std::string line =
      concat(options.out, ": ", set.train.labels.size(), " training and ", set.test.labels.size(),
             " test images of ", to_string(set.info.image), " in ", set.info.classes(),
             " classes, written in ", fmt::format("{:.1f} s", steady_seconds() - start));
  std::puts(line.c_str());
  warn_of_untested(set);
  const data::AugmentSpec crop;
  if (set.info.image.height < crop.crop_height || set.info.image.width < crop.crop_width)
    Log().warn(concat("smaller than the ", crop.crop_height, "x", crop.crop_width,
                      " that cifar_mpi_train crops; train with a smaller --input-size, or --augment crop"));
}

}  // namespace
}  // namespace cifar_mpi

int main(int argc, char** argv) {
  using namespace cifar_mpi;
  constexpr const char* kProgram = "cifar_mpi_pack";
  CLI::App cli("Write a dataset file for cifar_mpi_train.", kProgram);
  PackOptions options;
  app::add_options(cli, options);
  app::add_help(cli,
                "Examples:\n  cifar_mpi_pack --from cifar-10-batches-bin --out data/cifar10.h5\n"
                "  cifar_mpi_pack --from-folder photos --size 32 --out data/photos.h5\n");
  if (const auto code = app::parse(cli, argc, argv)) return *code;
  return app::finish(kProgram, app::run_alone(kProgram, [&] {
                       pack(options);
                       return 0;
                     }));
}
