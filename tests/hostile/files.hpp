#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hostile/trial.hpp"

/// Files from attackers: the structure of valid ones, changed at random.
namespace cifar_mpi::test {

/// A data set of a valid file, or a group with attributes only.
struct Wanted {
  enum class Kind { bytes, floats, text, group } kind = Kind::group;
  std::string path;
  std::vector<std::uint64_t> dims;
  std::vector<std::string> texts;  ///< of a text data set
  struct Attribute {
    std::string name;
    enum class Kind { text, whole, real } kind = Kind::text;
    std::string text;
    std::int64_t number = 0;  ///< of a real one, its bits
  };
  std::vector<Attribute> attributes;
};

/// The contents of a dataset and a checkpoint.
std::vector<Wanted> dataset_plan();
std::vector<Wanted> checkpoint_plan();

/// Writes `plan` to `path` with the C library, with `changes` of its objects made otherwise: of another type,
/// rank, extent, layout, filter; links to other files or in circles; missing; groups deep or wide; attributes
/// of other types. `secret` and `other` are what links and external storage name. Then, for some seeds, bytes
/// of the file are changed, or its end is missing.
void write_changed(const std::string& path, const std::vector<Wanted>& plan, Dice& dice, int changes,
                   const std::string& secret, const std::string& other);

/// Puts at `path` one of: a pipe, links (to `secret`, nothing, itself, /dev/zero), a folder, a large file,
/// an empty one. False for none of them: the caller writes its own.
bool put_no_file(const std::string& path, Dice& dice, const std::string& secret);

/// An unexpected line or word.
std::string odd_text(Dice& dice);

}  // namespace cifar_mpi::test
