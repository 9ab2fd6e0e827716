#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cifar_mpi/data/dataset.hpp"

/// A folder per class, with PNG and JPEG files of any size.
namespace cifar_mpi::data {

struct ListedImage {
  std::string path;     ///< from the root, CLASS/…/FILE
  std::uint64_t order;  ///< a hash of `path`
  std::uint8_t label;   ///< of CLASS
};

/// The list of the images of a folder, before any image is opened.
struct ImageFolder {
  std::string root;
  std::vector<std::string> classes;  ///< in the order of their bytes
  std::vector<ListedImage>
      images;  ///< by `order`: shuffled, independent of the order in which the system lists
  std::uint64_t other_files = 0;  ///< files left out: not .png, .jpg or .jpeg in upper or lower case
  std::string other_file;         ///< one of them, from the root
};

/// Lists the classes of `root`, 2 to 255, and their images, those in subfolders too. Hidden entries (.name)
/// are left out; files next to the folders of the classes count as others. Symbolic links to files are
/// listed, for `read_images` to refuse. Throws Error{data} for links to folders, folders that cannot be
/// listed, classes without an image, names of classes with control characters, and paths longer than kLongestPath.
ImageFolder list_image_folder(const std::string& root);

/// Moves about `share` of the images out of `folder`: those whose `order` is below that share of its range, but of each class at
/// least one, and not all. The split of any other image depends on its path alone, so added images do not move it. A class with
/// one image has none to test with. With `stratify` instead the share of each class, rounded, moves: those whose
/// `order` is lowest, so that added images may move others. Throws Error{data} when no image moves.
ImageFolder split_off(ImageFolder& folder, double share, bool stratify = false);

/// Throws Error{data} naming the first class that only one of the two has.
void require_same_classes(const ImageFolder& train, const ImageFolder& test);

/// Progress and error callbacks.
struct ReadEvents {
  std::function<void(std::uint64_t done)> progress;  ///< after every image
  std::function<void(const std::string& sentence)>
      unreadable;  ///< leaves the image out; empty: it is an error
};

/// Reads all images of `folder` in its order, each the centre square averaged to `size` x `size` RGB
/// (data/picture.hpp says how exactly). Throws Error{data} naming the file that cannot be read.
Samples read_images(const ImageFolder& folder, int size, const ReadEvents& events);

/// Width and height.
struct ImageSize {
  int width = 0;
  int height = 0;
};

/// Reads one PNG or JPEG file as `read_images` does, into `out` [size, size, 3], and returns the size that it had. A
/// link is followed. Throws Error{data} naming the file; Error{device} in a build without the library that decodes it.
ImageSize read_image(const std::string& path, int size, std::span<std::uint8_t> out);

/// Throws Error{data} naming a class of `folder` that `read`, the labels of its readable images, lacks. A
/// training split needs every class; a test split needs only some image.
void require_read_classes(const ImageFolder& folder, const std::vector<std::uint8_t>& read);

}  // namespace cifar_mpi::data
