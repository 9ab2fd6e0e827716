#include "app/program.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "app/usage.hpp"
#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/build_info.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/data/dataset.hpp"

namespace cifar_mpi::app {
namespace {

void print(const std::string& program, const std::string& text) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s: %s\n", program.c_str(), printable(text).c_str());
  std::fflush(stderr);
}

/// One rank prints what all ranks know. The others wait a moment: a launcher that sees a rank exit with a
/// nonzero code ends the rest, which may not have printed yet, and Open MPI 5 may drop recent output.
void print_once(bool speaks, const std::string& program, const std::string& text) {
  constexpr std::chrono::milliseconds kHeadStart{200};
  if (speaks) {
    print(program, text);
  } else {
    std::this_thread::sleep_for(kHeadStart);
  }
}

/// Before MPI starts, a rank cannot know whether an error is common to all. If rank 0 has it too, the
/// launcher ends all ranks when rank 0 exits; a rank that is still alive then is the only one with the error.
void print_before_mpi(const std::string& program, const std::string& text) {
  constexpr std::chrono::seconds kLaunchersTime{2};
  if (first_rank()) return print(program, text);
  std::this_thread::sleep_for(kLaunchersTime);
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  print(program, concat(text, " (on a rank other than 0, host ", host.data(), ")"));
}

/// The next opened file would get a closed descriptor below 3, and printed text would go into that file.
/// Standard output stays unwritable, so that `finish` notices.
void take_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) < 0 && errno == EBADF)
      static_cast<void>(::open("/dev/null", descriptor == STDERR_FILENO ? O_WRONLY : O_RDONLY));
  }
}

void let_the_last_count(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_max() == 1) option->take_last();
  }
  for (CLI::App* command : app.get_subcommands({})) let_the_last_count(*command);
}

/// For a help text that shows the values of the named model and file.
void show_what_holds(CLI::App& app, const std::function<std::optional<Recipe>()>& find_recipe) {
  try {
    Places places = read_config(app);
    take_recipe_of_optimizer(app, places);
    if (const std::optional<Recipe> recipe = find_recipe()) take_recipe(app, *recipe, places);
  } catch (const Error&) {  // print help anyway
  }
}

/// The values of an option: those given, else its default.
std::string values_of(const CLI::Option& option) {
  if (option.count() == 0) return option.get_default_str();
  std::string text;
  for (const std::string& value : option.reduced_results()) text += (text.empty() ? "" : ",") + value;
  return text;
}

void add_options(const CLI::App& app, RunFingerprint& items) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (name != "--data" && name != "--config") items.emplace_back(name, values_of(*option));
  }
  for (const CLI::App* command : app.get_subcommands()) {
    items.emplace_back("the command", command->get_name());
    add_options(*command, items);
  }
}

/// Options that must be equal on all ranks.
RunFingerprint fingerprint_of_start(const CLI::App& app) {
  RunFingerprint items{{"the program", concat(app.get_name(), ' ', version(), " (", git_revision(), ')')}};
  add_options(app, items);
  return items;
}

/// Time limit of a start in seconds, as that of a watchdog while it starts; 0: none.
double start_limit(const CLI::App& app) {
  constexpr double kTimeout = 120.0, kPatience = 5.0;
  const CLI::Option* const option = app.get_option_no_throw("--timeout");
  if (option == nullptr) return kPatience * kTimeout;
  return kPatience * std::strtod(values_of(*option).c_str(), nullptr);  // 0 for "never"
}

/// Whether a rank may compute on more than one thread.
bool may_have_threads(const CLI::App& app) {
  const CLI::Option* const option = app.get_option_no_throw("--threads");
  if (option != nullptr) return values_of(*option) != "1";
  const std::vector<const CLI::App*> commands = app.get_subcommands([](const CLI::App*) { return true; });
  return std::ranges::any_of(
      commands, [](const CLI::App* command) { return command->parsed() && may_have_threads(*command); });
}

/// The message for an exception that is not our Error.
Error as_error(const std::exception& error) {
  if (const auto* ours = dynamic_cast<const Error*>(&error)) return *ours;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return {
        ErrorKind::device,
        "not enough memory; use a smaller batch or set, fewer ranks on this node, or raise its limit (ulimit "
        "-v)"};
  }
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again) {
    return {ErrorKind::device,
            "a thread could not be started; raise the limits on processes and memory (ulimit -u, ulimit -v)"};
  }
  return {ErrorKind::internal, "internal error: ", error.what()};
}

/// Writing beyond a file-size limit, or to a pipe without a reader, must return an error instead of ending
/// the process.
void ignore_signals_of_writing() {
  for (const int signal : {SIGXFSZ, SIGPIPE}) std::signal(signal, SIG_IGN);
}

/// Restarts the program in the same process, with an environment in which OpenMP's threads, which run
/// oneDNN's kernels, sleep after a short spin. Returns if the environment already says how they wait.
///
/// By default they spin for milliseconds on cores that our own threads or other processes need: beside other
/// programs a step on two threads took 4 to 10 times as long. libgomp reads the variable when it is loaded,
/// so setting it in main is too late. Call this before MPI starts.
void limit_spinning(char** argv) {
  constexpr const char* kVariable = "GOMP_SPINCOUNT";
  constexpr const char* kSpins = "1000";  // 15 to 50 microseconds
  if (std::getenv(kVariable) != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  if (::setenv(kVariable, kSpins, 1) != 0) return;
  std::fflush(nullptr);
  ::execv("/proc/self/exe", argv);
  // Without /proc the run continues, but is slower beside other programs.
}

}  // namespace

bool first_rank() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (const char* rank = std::getenv(variable)) return std::atoi(rank) == 0;
  }
  return true;
}

std::optional<int> parse(CLI::App& app, int argc, char** argv, const std::function<void()>& check,
                         const std::function<std::optional<Recipe>()>& find_recipe, Places* sources) {
  take_standard_descriptors();
  let_the_last_count(app);
  const std::string program = app.get_name();
  ::prctl(PR_SET_NAME, program.c_str());  // otherwise ps shows a restarted program (limit_spinning) as exe
  try {
    refuse_wrong_values(app, argc, argv);
    app.parse(argc, argv);
    refuse_rivals(app);
    Places places = read_config(app);
    take_recipe_of_optimizer(app, places);
    if (const std::optional<Recipe> recipe = find_recipe()) take_recipe(app, *recipe, places);
    if (sources != nullptr) *sources = places;
    name_sources(places, check);
    return std::nullopt;
  } catch (const CLI::Success& done) {
    show_what_holds(app, find_recipe);
    return first_rank() ? finish(program, app.exit(done)) : 0;
  } catch (const CLI::ParseError& error) {
    print_before_mpi(program, concat(explain(error, app), "; see --help"));
    return exit_code(ErrorKind::usage);
  } catch (const Error& error) {
    print_before_mpi(program, error.what());
    return exit_code(error.kind());
  }
}

int finish(const std::string& program, int code) {
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written || code != 0) return code;
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  const bool reader_left = poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;  // as in `... | head`
  if (!reader_left) {
    print(
        program,
        "standard output could not be written, so the result is lost or incomplete; check the disk, pipe or "
        "terminal that it goes to");
  }
  return exit_code(ErrorKind::io);
}

int run_in_world(const CLI::App& app, int argc, char** argv, const std::function<int(comm::World&)>& body) {
  if (may_have_threads(app)) limit_spinning(argv);
  ignore_signals_of_writing();
  const std::string program = app.get_name();
  std::optional<comm::World> world;
  try {
    world.emplace(argc, argv, start_limit(app));
    world->require_equal(ErrorKind::usage, fingerprint_of_start(app),
                         "start all ranks with the same program and options");
    return body(*world);
  } catch (const comm::AgreedError& error) {
    print_once(world->rank() == 0, program, error.what());
    return exit_code(error.kind());
  } catch (const std::exception& exception) {
    const Error error = as_error(exception);
    if (!world) {
      print_once(first_rank(), program, error.what());
      return exit_code(error.kind());
    }
    print(program, concat("rank ", world->rank(), ": ", error.what()));
    world->abort(exit_code(error.kind()));
  }
}

int run_alone(const char* program, const std::function<int()>& body) {
  ignore_signals_of_writing();
  try {
    return body();
  } catch (const std::exception& exception) {
    const Error error = as_error(exception);
    print(program, error.what());
    return exit_code(error.kind());
  }
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) {
    throw Error(ErrorKind::io, "cannot make the folder '", folder.string(), "': ", error.message());
  }
}

void prepare_output(const std::string& path, bool force) {
  std::error_code error;
  if (!force && std::filesystem::is_regular_file(path, error)) {
    throw Error(ErrorKind::usage, path,
                " exists already; name another file, or give --force to overwrite it");
  }
  make_folder(std::filesystem::path(path).parent_path());
  require_writable(path);
}

void prepare_json(const comm::World& world, const std::string& path, std::string_view begins,
                  std::string_view what) {
  world.together([&] {
    if (world.rank() != 0 || path.empty()) return;
    require_like_or_nothing(path, begins, what, "--json");
    require_writable(path);
  });
}

void write_json(const comm::World& world, const std::string& path, std::string_view text) {
  world.together([&] {
    if (world.rank() == 0 && !path.empty()) write_atomically(path, text);
  });
}

std::string find_dataset(const std::string& given) {
  namespace fs = std::filesystem;
  if (!given.empty()) return given;
  if (const char* named = std::getenv("CIFAR_MPI_DATA"); named != nullptr && *named != '\0') {
    try {
      return data::DatasetFile(named), named;
    } catch (const Error& damage) {
      throw Error(damage.kind(), damage.what(), " (the environment's CIFAR_MPI_DATA names it)");
    }
  }
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
  throw Error(
      ErrorKind::data, "no dataset: looked for ", looked,
      "; make one with tools/quickstart or cifar_mpi_pack, or name one with --data or CIFAR_MPI_DATA");
}

}  // namespace cifar_mpi::app
