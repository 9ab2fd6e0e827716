#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "app/config_file.hpp"
#include "app/recipes.hpp"
#include "cifar_mpi/comm/world.hpp"

/// The common part of all programs: parsing and exit.
namespace cifar_mpi::app {

/// Parses the command line and the file of --config, takes options unset in both from the recipe that
/// `find_recipe` names, then runs `check`, which throws Error for invalid values. Returns the exit code when
/// the program must exit before MPI starts: 0 after --help and the like, 2 for a usage error, which only the
/// first rank of a launched program prints. If an option is given twice, the last one counts. `sources`
/// receives the sources of the other options. A program calls this first: it also makes sure that descriptors
/// 0 to 2 are open.
std::optional<int> parse(
    CLI::App& app, int argc, char** argv, const std::function<void()>& check = [] {},
    const std::function<std::optional<Recipe>()>& find_recipe = [] { return std::nullopt; },
    Places* sources = nullptr);

/// The exit code of a program whose result is its output: `code`, or 5 with a message when that is 0 but
/// standard output could not be written.
int finish(const std::string& program, int code);

/// True for the rank that may print before MPI starts, according to the launcher's variables.
bool first_rank();

/// Runs `body` inside an MPI world, and turns errors into one sentence and the exit code of their kind. If
/// all ranks agreed on an error, rank 0 prints it and every rank exits; an error of this rank alone ends all
/// ranks. Before `body` begins, ranks whose program, build or options differ from rank 0's cause such an
/// error; paths of inputs may differ (--data, --config). `body` first makes a Watchdog; until then a start
/// without progress is ended after five times --timeout, or 120 s for programs without that option.
int run_in_world(const CLI::App& app, int argc, char** argv, const std::function<int(comm::World&)>& body);

/// The same without MPI.
int run_alone(const char* program, const std::function<int()>& body);

/// Makes a folder and its parents. Throws Error{io}.
void make_folder(const std::filesystem::path& folder);

/// Makes the folder of an output file and checks that the file can be written. Throws Error{usage} if it exists and `force` is
/// false, Error{io} if it cannot be written.
void prepare_output(const std::string& path, bool force);

/// Before a measurement: throws on all ranks if rank 0 could not write its result to `path`, or if `path` holds something
/// that does not begin with `begins`; `what` names the file that was expected. An empty path is none.
void prepare_json(const comm::World& world, const std::string& path, std::string_view begins,
                  std::string_view what);
/// Rank 0 writes the file, unless `path` is empty. Collective.
void write_json(const comm::World& world, const std::string& path, std::string_view text);

/// The dataset file: `given`, else $CIFAR_MPI_DATA, else data/cifar10.h5 below the working directory or below
/// the parent of this binary's folder. Throws Error{data} with the places searched, or if the file that
/// $CIFAR_MPI_DATA names is not a dataset.
std::string find_dataset(const std::string& given);

}  // namespace cifar_mpi::app
