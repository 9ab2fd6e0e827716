#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/base/error.hpp"
#include "support/contains.hpp"

namespace cifar_mpi {

/// An empty folder that is removed with its content.
class TempDir {
 public:
  TempDir() : path_((std::filesystem::temp_directory_path() / "cifar_mpi_test_XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("cannot make a temporary folder");
    opened_ = Directory(path_);
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  const Directory& opened() const { return opened_; }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::string path_;
  Directory opened_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_file(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

/// The text of the Error that `action` throws, which must be of `kind`; "" if it throws none.
inline std::string refusal(ErrorKind kind, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), exit_code(kind)) << error.what();
    return error.what();
  }
  return "";
}

/// Expects an Error of `kind` whose text holds every one of `parts`.
inline void expect_error(ErrorKind kind, const std::vector<std::string>& parts,
                         const std::function<void()>& action) {
  const std::string text = refusal(kind, action);
  EXPECT_NE(text, "") << "expected an error";
  for (const std::string& part : parts) EXPECT_TRUE(contains(text, part));
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

}  // namespace cifar_mpi
