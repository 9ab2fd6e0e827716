#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "hdf5/hdf5.hpp"
#include "hostile/files.hpp"
#include "support/temp_dir.hpp"

/// Every file that the programs read, as an attacker may make it. HOSTILE_CASES: cases of each kind;
/// HOSTILE_SEED: the first seed; a failure names its seed. tools/fuzz runs this for longer.
namespace cifar_mpi::test {

namespace fs = std::filesystem;

class Hostile : public testing::Test {
 protected:
  Hostile() {
    write_file(secret_, kSecret + "\n");
    fs::create_directories(dir_ / "precious/checkpoints");
    write_file(dir_ / "precious/checkpoints/step_000000001.h5", "not theirs");
    if (!apart([&] { write(other_, dataset_plan(), 0, 0); })) throw std::runtime_error("no good file");
  }

  /// A fresh folder for a case.
  std::string folder() {
    fs::remove_all(dir_ / "case");
    fs::create_directory(dir_ / "case");
    return dir_ / "case";
  }

  void write(const std::string& path, const std::vector<Wanted>& plan, std::uint64_t seed,
             int changes) const {
    Dice dice(seed);
    if (changes == 0) {
      do {
        dice = Dice(++seed * 1000);
        write_changed(path, plan, dice, 0, secret_, other_);
      } while (!is_whole(path));
      return;
    }
    write_changed(path, plan, dice, changes, secret_, other_);
  }

  /// `make(folder, seed)` puts the files of a case there, seed 0 those of a good one; `read` tries to read them. More than the
  /// share `least_read` must be read: where all are refused, the first check is the only one that is tested.
  template <class Make, class Read>
  void fuzz(const std::string& kind, std::uint64_t share, Make make, Read read, double least_read = 0.0) {
    const std::uint64_t cases = std::max<std::uint64_t>(setting("HOSTILE_CASES", 100) / share, 1);
    const std::uint64_t first = setting("HOSTILE_SEED", 1);
    const std::string good = folder();
    if (!apart([&] { make(good, 0); })) throw std::runtime_error("no good file");
    Figures figures(kind, read(good), least_read);
    for (std::uint64_t seed = first; seed < first + cases; ++seed) {
      const std::string place = folder();
      static_cast<void>(apart([&] { make(place, seed); }));  // half a file is a file, too
      const std::string before = state();
      figures.add(seed, read(place));
      EXPECT_EQ(state(), before) << kind << ", seed " << seed
                                 << ": files beside those of the case were touched";
      if (HasFailure() && ++failures_ > 5) return;
    }
  }

  const TempDir dir_;
  const std::string secret_ = dir_ / "secret", other_ = dir_ / "other.h5";

 private:
  static bool is_whole(const std::string& path) {
    try {
      static_cast<void>(hdf5::Reader(path).members("/"));
      return hdf5::Reader(path).has("/train") || hdf5::Reader(path).has("/provenance/configuration");
    } catch (const Error&) {
      return false;
    }
  }

  /// Names, content and times of files that no case may touch.
  std::string state() const {
    std::string text;
    for (const auto& entry : fs::recursive_directory_iterator(dir_.path())) {
      const std::string path = entry.path().string();
      if (path.starts_with(dir_ / "case")) continue;
      text += concat(path, ' ', fs::last_write_time(path).time_since_epoch().count(), ' ');
      if (entry.is_regular_file()) text += read_file(path);
      text += '\n';
    }
    return text;
  }

  int failures_ = 0;
};

inline std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += text + "\n";
  return all;
}

}  // namespace cifar_mpi::test
