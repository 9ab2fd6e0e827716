#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// What the launcher wrote into the environment, and what we add to it before MPI_Init. Pure, to be tested
/// without MPI.
namespace cifar_mpi::comm {

/// `getenv` or a stand-in: the value, or nullptr when the variable is not set.
using Environment = std::function<const char*(const char*)>;

/// How many ranks a launcher says it started, and the variable in which it said so.
struct Announcement {
  std::string_view variable;
  int ranks = 0;
};

/// The first variable that is set decides: the launcher that is nearest to the MPI library is asked first, so
/// that a `mpirun -np 1` inside a larger job step is believed. SLURM_NTASKS is not asked: it is set in batch
/// scripts, too, where nobody has launched anything.
std::optional<Announcement> announced_ranks(const Environment& environment);

/// The sentence for a world of one that should have been one of `announced.ranks`.
std::string world_of_one_text(const Announcement& announced, std::string_view library);

struct Setting {
  std::string_view variable;
  std::string_view value;
};

/// Variables to set before MPI_Init where the user has not set them; `cores` is the number of cores this rank
/// may run on. More local ranks than cores: give way while waiting (without it a rank that waits steals the
/// time of the one it waits for). No launcher: do not start a daemon for this single process.
std::vector<Setting> settings_before_init(const Environment& environment, int cores);

}  // namespace cifar_mpi::comm
