#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/data/png.hpp"
#include "data/cifar.hpp"
#include "data/picture.hpp"

namespace cifar_mpi::data {

Picture decode_png(std::span<const std::uint8_t>) {
  throw Error(
      ErrorKind::device,
      "cannot read PNG images: this binary was built without libpng; install libpng-dev and build again");
}

std::string encode_png(int, int, int, std::span<const std::uint8_t>) { return {}; }

std::uint64_t read_png_strip(const std::string& path, std::uint64_t, std::vector<std::uint8_t>&) {
  throw Error(ErrorKind::data, "cannot read '", path,
              "': this binary was built without libpng; install libpng-dev and build again, or use the "
              "official binary files");
}

void read_cifar10_png(const std::string& directory, Samples&, Samples&) {
  std::vector<std::uint8_t> images;
  read_png_strip(train_batch_path(directory, 1, ".png"), 0, images);
}

}  // namespace cifar_mpi::data
