#include "app/program.hpp"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <new>
#include <vector>

#include "cifar_mpi/base/build_info.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::app {
namespace {

void print(const char* program, const char* text) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s: %s\n", program, text);
  std::fflush(stderr);
}

/// Writing past a file-size limit must come back as an error of the write, not end the process.
void ignore_file_size_signal() { std::signal(SIGXFSZ, SIG_IGN); }

}  // namespace

bool first_rank() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (const char* rank = std::getenv(variable)) return std::atoi(rank) == 0;
  }
  return true;
}

std::optional<int> parse(CLI::App& app, int argc, char** argv, const std::function<void()>& check) {
  app.allow_config_extras(CLI::config_extras_mode::error);
  try {
    app.parse(argc, argv);
    check();
    return std::nullopt;
  } catch (const CLI::Success& done) {
    return first_rank() ? app.exit(done) : 0;
  } catch (const CLI::ParseError& error) {
    if (first_rank()) print(app.get_name().c_str(), concat(error.what(), "; see --help").c_str());
    return exit_code(ErrorKind::usage);
  } catch (const Error& error) {
    if (first_rank()) print(app.get_name().c_str(), error.what());
    return exit_code(error.kind());
  }
}

void add_version(CLI::App& app) {
  app.set_version_flag("--version", concat(app.get_name(), ' ', version(), " (", git_revision(), ')'))
      ->configurable(false);
}

int run_in_world(const char* program, int argc, char** argv, const std::function<int(comm::World&)>& body) {
  ignore_file_size_signal();
  std::optional<comm::World> world;
  try {
    world.emplace(argc, argv);
    return body(*world);
  } catch (const comm::AgreedError& error) {
    if (world->rank() == 0) print(program, error.what());
    return exit_code(error.kind());
  } catch (const Error& error) {
    if (!world) {
      if (first_rank()) print(program, error.what());
      return exit_code(error.kind());
    }
    print(program, concat("rank ", world->rank(), ": ", error.what()).c_str());
    world->abort(exit_code(error.kind()));
  } catch (const std::exception& error) {
    print(program, concat("internal error: ", error.what()).c_str());
    if (!world) return exit_code(ErrorKind::internal);
    world->abort(exit_code(ErrorKind::internal));
  }
}

int run_alone(const char* program, const std::function<int()>& body) {
  ignore_file_size_signal();
  try {
    return body();
  } catch (const Error& error) {
    print(program, error.what());
    return exit_code(error.kind());
  } catch (const std::exception& error) {
    print(program, concat("internal error: ", error.what()).c_str());
    return exit_code(ErrorKind::internal);
  }
}

std::string find_dataset(const std::string& given) {
  namespace fs = std::filesystem;
  if (!given.empty()) return given;
  if (const char* named = std::getenv("CIFAR_MPI_DATA"); named != nullptr && *named != '\0') return named;
  const fs::path name = fs::path("data") / "cifar10.h5";
  std::vector<fs::path> places{name};
  std::error_code error;
  const fs::path binary = fs::read_symlink("/proc/self/exe", error);
  if (!error) places.push_back(binary.parent_path().parent_path() / name);
  for (const fs::path& place : places) {
    if (fs::exists(place, error)) return place.string();
  }
  std::string looked;
  for (const fs::path& place : places) looked += (looked.empty() ? "" : " and ") + place.string();
  throw Error(ErrorKind::data,
              concat("no dataset: looked for ", looked,
                     "; make one with tools/quickstart or cifar_mpi_pack, or name one with --data or "
                     "CIFAR_MPI_DATA"));
}

}  // namespace cifar_mpi::app
