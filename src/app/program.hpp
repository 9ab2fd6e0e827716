#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>

#include "app/recipes.hpp"
#include "cifar_mpi/comm/world.hpp"

/// What all programs share: how they parse, how they end.
namespace cifar_mpi::app {

/// Parses the command line and the file of --config, takes what both left out from the recipe that `find_recipe`
/// names, then runs `check`, which throws Error for values that make no sense. Returns the exit code when the program must end here, before MPI starts: 0 after --help and
/// the like, 2 for a usage error, which only the first rank of a launched program prints. Of an option given
/// twice the last counts. The first thing a program calls: it also sees to it that descriptors 0 to 2 are
/// taken.
std::optional<int> parse(
    CLI::App& app, int argc, char** argv, const std::function<void()>& check = [] {},
    const std::function<std::optional<Recipe>()>& find_recipe = [] { return std::nullopt; });

/// The exit code of a program whose result is what it printed: `code`, or 5 with a sentence when that is 0
/// but standard output could not be written.
int finish(const std::string& program, int code);

/// True for the rank that may speak before MPI is up, by what the launcher says.
bool first_rank();

/// Runs `body` inside an MPI world, and turns errors into one sentence and the exit code of their kind: an
/// error that all ranks agreed on is printed by rank 0 and every rank leaves; one that only this rank knows
/// of ends all ranks. Ranks that run another program or build than rank 0, or with other options than
/// `app` has parsed there, are such an error before `body` begins; paths of inputs may differ (--data,
/// --config). `body` makes a Watchdog first; until then a start that does not get on is ended after five times
/// --timeout, or 120 s where there is no such option.
int run_in_world(const CLI::App& app, int argc, char** argv, const std::function<int(comm::World&)>& body);

/// The same without MPI.
int run_alone(const char* program, const std::function<int()>& body);

/// The dataset file: `given`, else $CIFAR_MPI_DATA, else data/cifar10.h5 below the working directory or below
/// the parent of the folder of this binary. Throws Error{data} saying where it looked, and for a file that
/// $CIFAR_MPI_DATA names and that is no dataset.
std::string find_dataset(const std::string& given);

}  // namespace cifar_mpi::app
