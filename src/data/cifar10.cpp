#include <cstddef>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/input_file.hpp"
#include "cifar_mpi/base/text.hpp"
#include "data/cifar.hpp"

namespace cifar_mpi::data {

std::vector<std::string> cifar10_label_names() {
  return {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};
}

std::string train_batch_path(const std::string& directory, int number, const char* extension) {
  return concat(directory, "/data_batch_", number, extension);
}

std::vector<std::uint8_t> read_label_list(const std::string& path) {
  const std::string text = read_text_file(path, ErrorKind::data);
  std::vector<std::uint8_t> labels;
  std::size_t at = 0;
  const auto next = [&] {
    at = text.find_first_not_of(" \t\r\n", at);
    if (at == std::string::npos) at = text.size();
    return at < text.size() ? text[at++] : '\0';
  };
  const auto fail = [&] {
    throw Error(ErrorKind::data, "'", path, "' is not a JSON list of labels from 0 to ", kCifarClasses - 1,
                ": unexpected text at byte ", at, ", label ", labels.size());
  };
  if (next() != '[') fail();
  for (char separator = ','; separator != ']';) {
    if (labels.size() ==
        kCifarTrainBatches * kCifarBatch) {  // or the images of a small file would fill the memory
      throw Error(ErrorKind::data, "'", path, "' has more labels than CIFAR-10, ", labels.size());
    }
    const char digit = next();
    if (digit < '0' || digit > '9') fail();
    labels.push_back(static_cast<std::uint8_t>(digit - '0'));
    separator = next();
    if (separator != ',' && separator != ']') fail();
  }
  if (next() != '\0') fail();
  return labels;
}

}  // namespace cifar_mpi::data
