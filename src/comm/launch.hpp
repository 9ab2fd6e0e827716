#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Reads the launcher's environment variables, and sets others before MPI_Init. Pure functions, testable without MPI.
namespace cifar_mpi::comm {

/// `getenv` or a stand-in: the value, or nullptr when the variable is not set.
using Environment = std::function<const char*(const char*)>;

/// The number of ranks that a launcher announced, and the variable with that number.
struct Announcement {
  std::string_view variable;
  int ranks = 0;
};

/// The first variable that is set decides: the launcher closest to the MPI library comes first, so that a
/// `mpirun -np 1` inside a larger job step counts. SLURM_NTASKS is ignored, because it is also set in batch
/// scripts before any launch.
std::optional<Announcement> announced_ranks(const Environment& environment);

/// The error text for a world of one rank instead of `announced.ranks`.
std::string world_of_one_text(const Announcement& announced, std::string_view library);

struct Setting {
  std::string_view variable;
  std::string_view value;
};

/// Variables to set before MPI_Init unless the user has set them; `cores` is the number of cores this rank
/// may run on. With more local ranks than cores: yield while waiting (otherwise a waiting rank takes time
/// from the rank it waits for). No launcher: do not start a daemon for this single process.
std::vector<Setting> settings_before_init(const Environment& environment, int cores);

}  // namespace cifar_mpi::comm
