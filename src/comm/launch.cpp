#include "comm/launch.hpp"

#include <array>

#include "cifar_mpi/base/parse_number.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::comm {
namespace {

std::optional<int> number_in(const Environment& environment, const char* variable) {
  const char* const value = environment(variable);
  return value == nullptr ? std::nullopt : parse_number<int>(value);
}

}  // namespace

std::optional<Announcement> announced_ranks(const Environment& environment) {
  // Open MPI's mpirun; MPICH's and Intel's mpiexec and srun --mpi=pmi2; MVAPICH2's mpirun_rsh; any srun.
  constexpr std::array<const char*, 4> kVariables = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                                     "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"};
  for (const char* const variable : kVariables) {
    if (const std::optional<int> ranks = number_in(environment, variable))
      return Announcement{variable, *ranks};
  }
  return std::nullopt;
}

std::string world_of_one_text(const Announcement& announced, std::string_view library) {
  return concat("the launcher announced ", announced.ranks, " ranks (", announced.variable, "=",
                announced.ranks,
                "), but this process is alone in its MPI world, because the launcher does not match the MPI "
                "library of this binary, ",
                library, "; start it with the mpirun of ", library, ", or under SLURM with srun --mpi=pmix");
}

std::vector<Setting> settings_before_init(const Environment& environment, int cores) {
  std::vector<Setting> settings;
  if (number_in(environment, "OMPI_COMM_WORLD_LOCAL_SIZE").value_or(1) > cores) {
    settings.push_back({"OMPI_MCA_mpi_yield_when_idle", "1"});
  }
  if (environment("OMPI_COMM_WORLD_SIZE") == nullptr) {
    settings.push_back({"OMPI_MCA_ess_singleton_isolated", "1"});
  }
  std::erase_if(settings, [&](const Setting& s) { return environment(s.variable.data()) != nullptr; });
  return settings;
}

}  // namespace cifar_mpi::comm
