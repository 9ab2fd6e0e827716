#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>

/// One reading of a hostile file in a separate process.
namespace cifar_mpi::test {

/// The same numbers for the same seed, on any machine.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  /// From 0 to `below` - 1.
  std::uint64_t roll(std::uint64_t below) { return random_() % below; }
  bool one_in(std::uint64_t n) { return roll(n) == 0; }
  template <class List>
  const auto& any_of(const List& list) {
    return list[roll(list.size())];
  }

 private:
  std::mt19937_64 random_;
};

/// A number from the environment.
std::uint64_t setting(const char* name, std::uint64_t otherwise);

enum class End { read, refused, crashed, hung, foreign_exception };
const char* to_string(End end);

struct Trial {
  End end = End::crashed;
  double seconds = 0.0;
  std::size_t peak_bytes = 0;  ///< of the process that read
  std::string seen;            ///< what it read from the files, or the error
};

/// Calls `read` in a child that may crash, hang (5 s) and grow. What `read` returns becomes `seen`.
Trial try_to(const std::function<std::string()>& read);

/// The same with an address space of 1 GB. (Not under AddressSanitizer, which reserves more.)
Trial try_in_a_gigabyte(const std::function<std::string()>& read);

/// Calls `make` in a child, so that HDF5's leftovers are not measured. False if it did not finish: some
/// requests crash HDF5.
bool apart(const std::function<void()>& make);

/// The end of a program: `read` for code 0, `refused` for a code of ours, with its output.
Trial try_program(const std::string& command);

/// The results of trials of one kind; expects that none crashed, hung, read a forbidden file, or took more
/// than twice the memory of the valid ones, and of 50 or more that the share `least_read` was exceeded.
class Figures {
 public:
  Figures(std::string kind, const Trial& good, double least_read = 0.0);
  ~Figures();
  Figures(const Figures&) = delete;
  Figures& operator=(const Figures&) = delete;
  void add(std::uint64_t seed, const Trial& trial);

 private:
  std::string kind_;
  Trial good_;
  double least_read_;
  std::uint64_t cases_ = 0, read_ = 0, refused_ = 0, bad_ = 0;
  double longest_s_ = 0.0;
  std::size_t most_bytes_ = 0;
};

/// A file next to those of a trial that no program may reach.
inline const std::string kSecret = "-----BEGIN THE KEY OF ANOTHER FILE-----";

}  // namespace cifar_mpi::test
