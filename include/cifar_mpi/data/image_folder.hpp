#pragma once

#include <cstdint>
#include <functional>
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

/// What a folder holds, before any image is opened.
struct ImageFolder {
  std::string root;
  std::vector<std::string> classes;  ///< in the order of their bytes
  std::vector<ListedImage> images;   ///< by `order`: mixed, and the same whatever order the system lists in
  std::uint64_t other_files = 0;     ///< left out: no name.png, .jpg or .jpeg, in capitals or not
  std::string other_file;            ///< one of them, from the root
};

/// Lists the classes of `root`, 2 to 255, and their images, those in subfolders too. What is hidden (.name) is
/// left out, and files beside the folders of the classes count as others. Symbolic links to files are listed,
/// for `read_images` to refuse. Throws Error{data} for links to folders, folders that cannot be listed, classes
/// without an image, and names with control characters.
ImageFolder list_image_folder(const std::string& root);

/// Takes about `share` of the images out of `folder`: those whose `order` is below that share of all numbers.
/// An image's side depends on its path alone, so that more images move none. Throws Error{data} when either
/// side has no image, and when a class has none left to train with.
ImageFolder split_off(ImageFolder& folder, double share);

/// Throws Error{data} naming the first class that only one of both has.
void require_same_classes(const ImageFolder& train, const ImageFolder& test);

/// Who is told while images are read.
struct ReadEvents {
  std::function<void(std::uint64_t done)> progress;  ///< after every image
  std::function<void(const std::string& sentence)>
      unreadable;  ///< leaves the image out; empty: it is an error
};

/// Reads all images of `folder` in its order, each the centre square averaged to `size` x `size` RGB
/// (data/picture.hpp says how exactly). Throws Error{data} naming the file that cannot be read.
Samples read_images(const ImageFolder& folder, int size, const ReadEvents& events);

/// Throws Error{data} for a class of which `read`, labels of images of `folder`, holds none. A training split needs
/// every class, a test split only some image.
void require_read_classes(const ImageFolder& folder, const std::vector<std::uint8_t>& read);

}  // namespace cifar_mpi::data
