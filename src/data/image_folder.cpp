#include "cifar_mpi/data/image_folder.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/hash.hpp"
#include "cifar_mpi/base/text.hpp"
#include "data/picture.hpp"

namespace cifar_mpi::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostClasses = 255;  // label 255 is padding

[[noreturn]] void fail(const std::string& text) { throw Error(ErrorKind::data, text); }

/// The entries of `folder` that are not hidden.
std::vector<fs::directory_entry> entries_of(const std::string& folder) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename().native().front() != '.') entries.push_back(*at);
  }
  if (error) fail(concat("cannot list the folder '", folder, "': ", error.message()));
  return entries;
}

/// Whether it is a folder; throws for a link to one.
bool is_folder(const fs::directory_entry& entry) {
  std::error_code ignored;
  const bool link = entry.is_symlink(ignored), folder = entry.is_directory(ignored);
  if (link && folder) {
    fail(concat(
        "'", entry.path().string(),
        "' is a symbolic link to a folder, which is not followed; copy the folder, or its files with cp "
        "-rl"));
  }
  return folder;
}

bool has_image_name(const fs::path& path) {
  std::string ending = path.extension().string();
  for (char& c : ending) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return ending == ".png" || ending == ".jpg" || ending == ".jpeg";
}

/// `path`, which is below `root`, relative to it.
std::string below(const std::string& root, const std::string& path) {
  const std::string rest = path.substr(std::min(path.size(), root.size()));
  return rest.substr(rest.starts_with('/') ? 1 : 0);
}

/// Follows no link below `root`: a folder may have been replaced by one since it was listed.
Picture read_below(const Directory& root, const std::string& path) {
  Directory opened;
  const Directory* folder = &root;
  std::size_t at = 0;
  for (std::size_t end = 0; (end = path.find('/', at)) != std::string::npos; at = end + 1) {
    try {
      Directory next(*folder / path.substr(at, end - at));
      opened = std::move(next);
    } catch (const Error& error) {
      fail(error.what());
    }
    folder = &opened;
  }
  return read_picture(*folder / path.substr(at));
}

void note_other(ImageFolder& folder, const fs::path& path) {
  const std::string name = below(folder.root, path.string());
  if (folder.other_files++ == 0 || name < folder.other_file) folder.other_file = name;
}

/// Lists the images of a class, its subfolders included. Without links there are no cycles.
void list_class(ImageFolder& folder, std::size_t label) {
  const std::size_t before = folder.images.size();
  std::vector<std::string> waiting{concat(folder.root, "/", folder.classes[label])};
  while (!waiting.empty()) {
    const std::string here = std::move(waiting.back());
    waiting.pop_back();
    for (const fs::directory_entry& entry : entries_of(here)) {
      if (is_folder(entry)) {
        waiting.push_back(entry.path().string());
      } else if (has_image_name(entry.path())) {
        const std::string path = below(folder.root, entry.path().string());
        if (path.size() > kLongestPath)
          fail(concat("the path of '", entry.path().string(), "' has more than ", kLongestPath,
                      " bytes below '", folder.root, "'; rename its folders"));
        folder.images.push_back(
            {path, hash_bytes(std::as_bytes(std::span(path))), static_cast<std::uint8_t>(label)});
      } else {
        note_other(folder, entry.path());
      }
    }
  }
  if (folder.images.size() > before) return;
  fail(concat("the folder '", folder.root, "/", folder.classes[label],
              "' has no image (.png, .jpg or .jpeg); each folder is a class: add images or remove it"));
}

void check_classes(const ImageFolder& folder) {
  const std::vector<std::string>& classes = folder.classes;
  if (classes.size() < 2 || classes.size() > kMostClasses) {
    fail(concat("'", folder.root, "' has ", counted(classes.size(), "folder"),
                ", expected one per class, of 2 to ", kMostClasses, " classes, with its images in it"));
  }
  const auto is_split = [](const std::string& name) {
    constexpr std::string_view kSplits[] = {"train", "training", "test",      "testing",
                                            "val",   "valid",    "validation"};
    return std::ranges::find(kSplits, name) != std::end(kSplits);
  };
  if (std::ranges::all_of(classes, is_split)) {
    fail(concat("the folders of '", folder.root, "' are '", classes[0], "' and '", classes[1],
                "', which are not classes; name the one to train with as --from-folder and the other as "
                "--test-folder"));
  }
  for (const std::string& name : classes) {
    if (std::ranges::any_of(name, [](unsigned char c) { return c < 0x20 || c == 0x7F; }))
      fail(
          concat("the name of the folder '", folder.root, "/", name, "' has a control character; rename it"));
  }
}

}  // namespace

ImageFolder list_image_folder(const std::string& root) {
  ImageFolder folder;
  folder.root = root;
  while (folder.root.size() > 1 && folder.root.ends_with('/')) folder.root.pop_back();
  for (const fs::directory_entry& entry : entries_of(folder.root)) {
    if (is_folder(entry)) {
      folder.classes.push_back(entry.path().filename().string());
    } else {
      note_other(folder, entry.path());
    }
  }
  std::ranges::sort(folder.classes);
  check_classes(folder);
  for (std::size_t label = 0; label < folder.classes.size(); ++label) list_class(folder, label);
  // By path alone the classes would follow one another, and ranks that read a part of the file each would not
  // see all of them.
  std::ranges::sort(folder.images, [](const ListedImage& a, const ListedImage& b) {
    return a.order != b.order ? a.order < b.order : a.path < b.path;
  });
  return folder;
}

ImageFolder split_off(ImageFolder& folder, double share, bool stratify) {
  ImageFolder taken;
  taken.root = folder.root;
  taken.classes = folder.classes;
  const auto drawn = [&](const ListedImage& image) {
    return static_cast<double>(image.order >> 11) * 0x1p-53 < share;
  };
  struct Count {
    std::size_t all = 0, test = 0, seen = 0;
  };
  std::vector<Count> counts(folder.classes.size());  // by class
  for (const ListedImage& image : folder.images) {
    ++counts[image.label].all;
    counts[image.label].test += drawn(image) ? 1 : 0;
  }
  for (Count& count : counts) {
    if (stratify) count.test = static_cast<std::size_t>(std::lround(share * static_cast<double>(count.all)));
    count.test = count.all < 2 ? 0 : std::clamp(count.test, std::size_t{1}, count.all - 1);
  }
  std::vector<ListedImage> kept;
  for (ListedImage& image : folder.images) {  // by `order`, so that the drawn ones come first
    Count& count = counts[image.label];
    (count.seen++ < count.test ? taken.images : kept).push_back(std::move(image));
  }
  folder.images = std::move(kept);
  if (taken.images.empty())
    fail(concat("each class of '", folder.root, "' has only one image; add images, or give a --test-folder"));
  return taken;
}

void require_same_classes(const ImageFolder& train, const ImageFolder& test) {
  const auto [a, b] = std::ranges::mismatch(train.classes, test.classes);
  if (a == train.classes.end() && b == test.classes.end()) return;
  // In sorted lists the smaller of the first two that differ is missing in the other.
  const bool in_train = b == test.classes.end() || (a != train.classes.end() && *a < *b);
  const ImageFolder& has = in_train ? train : test;
  const ImageFolder& lacks = in_train ? test : train;
  fail(concat("'", has.root, "' has a class '", in_train ? *a : *b, "', but '", lacks.root,
              "' has no folder of that name; both need the same classes"));
}

Samples read_images(const ImageFolder& folder, int size, const ReadEvents& events) {
  const std::size_t image_bytes =
      std::size_t{3} * static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
  Samples samples;
  samples.images.resize(folder.images.size() * image_bytes);
  samples.labels.reserve(folder.images.size());
  std::uint64_t done = 0;
  const Directory root(folder.root);
  for (const ListedImage& image : folder.images) {
    try {
      const Picture picture = read_below(root, image.path);
      const std::span<std::uint8_t> all(samples.images);
      average_centre_square(picture, size, all.subspan(samples.labels.size() * image_bytes, image_bytes));
      samples.labels.push_back(image.label);
      samples.files.push_back(image.path);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::data) throw;  // not an error of the file
      if (!events.unreadable) {
        fail(concat(error.what(), "; repair or remove it, or leave such files out with --skip-unreadable"));
      }
      events.unreadable(error.what());
    }
    if (events.progress) events.progress(++done);
  }
  samples.images.resize(samples.labels.size() * image_bytes);
  return samples;
}

ImageSize read_image(const std::string& path, int size, std::span<std::uint8_t> out) {
  std::error_code none;
  const fs::path file = fs::canonical(path, none);
  const Picture picture = read_picture(none ? path : file.string());
  average_centre_square(picture, size, out);
  return {picture.width, picture.height};
}

void require_read_classes(const ImageFolder& folder, const std::vector<std::uint8_t>& read) {
  for (const ListedImage& image : folder.images) {
    if (std::ranges::find(read, image.label) != read.end()) continue;
    fail(concat("no image of the class '", folder.classes[image.label], "' of '", folder.root,
                "' can be read; repair the files or remove the folder"));
  }
}

}  // namespace cifar_mpi::data
