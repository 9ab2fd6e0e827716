#include <filesystem>
#include <sstream>
#include <system_error>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/input_file.hpp"
#include "cifar_mpi/base/text.hpp"
#include "data/cifar.hpp"

namespace cifar_mpi::data {
namespace {

/// The first of `names` that exists in `directory`; empty if none does.
std::string first_there(const std::string& directory, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    std::error_code ignored;
    const auto found = std::filesystem::symlink_status(directory + "/" + name, ignored);
    if (std::filesystem::exists(found)) return name;
  }
  return {};
}

}  // namespace

std::vector<std::string> read_name_list(const std::string& path, int count) {
  std::istringstream lines(read_text_file(path, ErrorKind::data));
  std::vector<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with('\r')) line.pop_back();
    names.push_back(line);
  }
  while (!names.empty() && names.back().empty()) names.pop_back();
  if (names.size() != static_cast<std::size_t>(count)) {
    throw Error(ErrorKind::data, "'", path, "' has ", names.size(), " names, expected ", count,
                ", one per line; fetch it again");
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty())
      throw Error(ErrorKind::data, "'", path, "' has no name in line ", i + 1, "; fetch it again");
  }
  return names;
}

bool holds_cifar100(const std::string& directory) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(directory, error);
  if (!std::filesystem::is_directory(status)) {
    const std::string why = std::filesystem::exists(status) ? "it is not a folder"
                            : error                         ? error.message()
                                                            : "there is none";
    throw Error(ErrorKind::data, "cannot read the folder '", directory, "': ", why,
                "; fetch CIFAR-10 with tools/fetch_cifar10, or name the folder of ",
                "its unpacked binary files, or of CIFAR-100's");
  }
  std::vector<std::string> names{"test_batch.bin"};
  for (int i = 1; i <= kCifarTrainBatches; ++i) names.push_back(concat("data_batch_", i, ".bin"));
  const std::string ten = first_there(directory, names);
  const std::string hundred = first_there(directory, {"train.bin", "test.bin"});
  if (ten.empty() && hundred.empty()) {
    throw Error(
        ErrorKind::data, "'", directory, "' has neither the binary files of CIFAR-10 (data_batch_1..5.bin, ",
        "test_batch.bin) nor those of CIFAR-100 (train.bin, test.bin); name the folder that has them");
  }
  if (!ten.empty() && !hundred.empty()) {
    throw Error(ErrorKind::data, "'", directory, "' has ", ten, " of CIFAR-10 and ", hundred,
                " of CIFAR-100; keep each set in a folder of its own");
  }
  return ten.empty();
}

std::vector<std::string> read_cifar100_binary(const std::string& directory, bool coarse, Samples& train,
                                              Samples& test) {
  const BinaryRecord& record = coarse ? kCifar100Coarse : kCifar100Fine;
  std::vector<std::string> names =
      read_name_list(concat(directory, coarse ? "/coarse" : "/fine", "_label_names.txt"), record.classes);
  train = {};
  test = {};
  read_binary_batch(directory + "/train.bin", kCifar100Train, train, record);
  read_binary_batch(directory + "/test.bin", kCifar100Test, test, record);
  return names;
}

}  // namespace cifar_mpi::data
