#include "cifar_mpi/run/run_directory.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <span>
#include <string_view>

#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::run {
namespace {

/// How the record of a finished run begins.
constexpr const char* kFinished = "0 ";

bool holds(const Directory& folder, const char* file) {
  const std::vector<std::string> names = folder.names();
  return std::ranges::find(names, file) != names.end();
}

/// True if the user's input is at fault rather than the machine.
bool is_of_the_user(ErrorKind kind) {
  return kind == ErrorKind::usage || kind == ErrorKind::data || kind == ErrorKind::checkpoint;
}

/// The step in a name of the form of `checkpoint_name`; empty for other names.
std::optional<std::uint64_t> step_of(const std::string& name) {
  unsigned long long step = 0;
  if (std::sscanf(name.c_str(), "step_%llu", &step) != 1 || checkpoint_name(step) != name)
    return std::nullopt;
  return step;
}

/// NAME of "NAME.PID-N.tmp", the name of an unfinished file of write_atomically; empty for other names.
std::string unfinished(const std::string& name) {
  const std::size_t dot = name.rfind('.', name.size() - std::min<std::size_t>(name.size(), 5));
  if (dot == std::string::npos || !name.ends_with(".tmp")) return {};
  const std::string number = name.substr(dot + 1, name.size() - dot - 5);
  const bool ours =
      number.find('-') != std::string::npos && number.find_first_not_of("0123456789-") == std::string::npos;
  return ours ? name.substr(0, dot) : std::string();
}

/// RUN_DIR/checkpoints; empty only if it does not exist. Throws Error{io} when it cannot be opened.
std::optional<Directory> find_checkpoints(const Directory& run) {
  const DirectoryEntry folder = run / "checkpoints";
  struct stat found {};
  const bool known = ::fstatat(folder.folder(), folder.name(), &found, AT_SYMLINK_NOFOLLOW) == 0;
  if (!known && errno == ENOENT) return std::nullopt;
  return Directory(folder);
}

std::vector<std::uint64_t> steps_in(const Directory& checkpoints) {
  std::vector<std::uint64_t> steps;
  for (const std::string& name : checkpoints.names()) {
    if (const auto step = step_of(name)) steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

/// Runs `alone` on rank 0 and agrees on its outcome. While `alone` pauses, all ranks show in `heart` that
/// they make progress.
void lead(const comm::World& world, comm::Heartbeat* heart,
          const std::function<void(const RunLock::Pause&)>& alone) {
  std::byte goes_on{1};
  std::uint64_t pauses = 0;
  const auto tell = [&] {
    world.broadcast(std::span(&goes_on, 1));
    if (heart != nullptr) heart->progress.show(++pauses, engine::ProgressCounter::kNobody);
  };
  const auto finish = [&] {
    goes_on = std::byte{0};
    tell();
  };
  world.together([&] {
    if (world.rank() != 0) {
      while (goes_on != std::byte{0}) tell();
      return;
    }
    try {
      alone([&](double seconds) {
        RunLock::sleep_for(seconds);
        tell();
      });
    } catch (...) {
      finish();
      throw;
    }
    finish();
  });
}

/// The newest checkpoint of a run directory, or why there is none; nothing if `path` is not a folder.
std::optional<InputFile> newest_of_folder(const std::string& path) {
  const Directory run = Directory::if_any(path);
  if (!run) return std::nullopt;
  try {
    const std::vector<std::uint64_t> steps = list_checkpoints(run);
    if (!steps.empty()) return open_checkpoint(run, steps.back());
    return InputFile(path, "it is a folder without checkpoints/step_*.h5");
  } catch (const Error& error) {
    return InputFile(path, error.what());
  }
}

}  // namespace

std::string checkpoint_name(std::uint64_t step) { return concat("step_", fmt::format("{:09}", step), ".h5"); }

Directory make_folders(const std::string& run_dir) try {
  Directory run = Directory::make(run_dir);
  checkpoint_folder(run);
  return run;
} catch (const Error& error) {
  throw Error(ErrorKind::io, "cannot use the run directory ", run_dir, ": ", error.what(),
              "; choose another with --run-dir");
}

std::string checkpoint_path(const std::string& run_dir, std::uint64_t step) {
  return concat(run_dir, "/checkpoints/", checkpoint_name(step));
}

InputFile open_checkpoint(const Directory& run, std::uint64_t step) try {
  const Directory checkpoints(run / "checkpoints");
  return checkpoints / checkpoint_name(step);
} catch (const Error& error) {
  return {checkpoint_path(run.path(), step), error.what()};
}

InputFile open_checkpoint(const std::string& path) {
  if (std::optional<InputFile> newest = newest_of_folder(path)) return std::move(*newest);
  const std::size_t name = path.rfind('/') + 1;  // 0 when there is none
  const std::string link =
      path.substr(name) == "latest" || path.substr(name) == "best" ? read_link(path) : "";
  if (link.empty()) return path;
  if (!step_of(link))
    return {path, concat("it is a link to '", printable(link), "', not to a checkpoint next to it")};
  return DirectoryEntry(path.substr(0, name) + link);
}

Directory checkpoint_folder(const Directory& run) { return Directory::make(run / "checkpoints"); }

std::vector<std::uint64_t> list_checkpoints(const Directory& run) try {
  const std::optional<Directory> checkpoints = find_checkpoints(run);
  return checkpoints ? steps_in(*checkpoints) : std::vector<std::uint64_t>();
} catch (const Error& error) {
  throw Error(ErrorKind::io, "cannot list checkpoints: ", error.what(),
              "; make it readable, or name another run directory");
}

void retire_checkpoints(const Directory& run, std::uint64_t newest, const Retention& retention,
                        std::optional<std::uint64_t> best) try {
  const std::optional<Directory> checkpoints = find_checkpoints(run);
  if (!checkpoints) return;
  std::vector<std::uint64_t> steps = steps_in(*checkpoints);
  std::erase_if(steps, [&](std::uint64_t step) { return step > newest; });
  const auto every = static_cast<std::uint64_t>(retention.keep_every);
  for (std::size_t i = 0; i + static_cast<std::size_t>(retention.keep) < steps.size(); ++i) {
    if ((every > 0 && steps[i] % every == 0) || steps[i] == best) continue;
    remove_file(*checkpoints / checkpoint_name(steps[i]));
  }
} catch (const Error&) {  // if it cannot be read, it stays
}

void link_latest(const Directory& run, std::uint64_t step) {
  const Directory checkpoints(run / "checkpoints");
  link_atomically(checkpoints / "latest", checkpoint_name(step));
}

void link_best(const Directory& run, std::optional<std::uint64_t> step) {
  const Directory checkpoints(run / "checkpoints");
  const DirectoryEntry link = checkpoints / "best";
  const std::string target = read_link(link);
  if (step) {
    if (target != checkpoint_name(*step)) link_atomically(link, checkpoint_name(*step));
  } else if (!target.empty()) {
    remove_file(link);
  }
}

void remove_temporary_files(const Directory& run) {
  // Not those of `lock` and report.html, which other processes write without the lock.
  constexpr std::array<std::string_view, 6> kOfTheRun{"config.toml", "metrics.jsonl", "self_check",
                                                      "timeline.h5", "summaries.h5",  "evaluation.h5"};
  for (const std::string& name : run.names()) {
    const std::string finished = unfinished(name);
    if (std::ranges::find(kOfTheRun, finished) != kOfTheRun.end()) remove_file(run / name);
  }
  const std::optional<Directory> checkpoints = find_checkpoints(run);
  if (!checkpoints) return;
  for (const std::string& name : checkpoints->names()) {
    const std::string finished = unfinished(name);
    if (finished == "latest" || finished == "best" || step_of(finished)) remove_file(*checkpoints / name);
  }
}

std::optional<double> free_bytes(const Directory& run) {
  struct statvfs found {};
  if (::fstatvfs((run / "exit").folder(), &found) != 0) return std::nullopt;
  return static_cast<double>(found.f_bavail) * static_cast<double>(found.f_frsize);
}

void record_exit(const Directory& run, int code, const std::string& sentence) noexcept {
  try {
    create_atomically(run / "exit", concat(code, ' ', printable(sentence), '\n'));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "warning: cannot record how the run ended: %s\n", printable(error.what()).c_str());
  }
}

std::string recorded_exit(const Directory& run) {
  const std::optional<SmallFile> file = read_small_file(run / "exit");
  return file ? printable(file->content.substr(0, file->content.find('\n'))) : std::string();
}

RunDirectory::RunDirectory(std::string path, const comm::World& world, comm::Heartbeat* heart)
    : world_(world) {
  const Log log(world.rank());
  lead(world, heart, [&](const RunLock::Pause& pause) {
    made_ = !Directory::if_any(path);
    directory_ = make_folders(path);
    lock_.emplace(
        directory_, this_process(), [&](const std::string& why) { log.info(why); },
        [this](const std::string& holder) {
          Log(world_.rank())
              .every_rank(concat(directory_.path(), " was taken over by ", holder,
                                 " while this run was stopped; this run ends without a record"));
          world_.abort(exit_code(ErrorKind::checkpoint));
        },
        pause);
    last_end_ = recorded_exit(directory_);
    if (!last_end_.starts_with(kFinished)) remove_file(directory_ / "exit");
    remove_temporary_files(directory_);
  });
  // Other ranks need it only to record a failure; they then report that they cannot.
  if (world.rank() != 0) directory_ = Directory::if_any(path);
}

RunDirectory::~RunDirectory() {
  lock_.reset();
  if (!made_ || begun_ || !directory_) return;
  try {
    const DirectoryEntry checkpoints = directory_ / "checkpoints";
    if (directory_.names().size() > 1 ||
        ::unlinkat(checkpoints.folder(), checkpoints.name(), AT_REMOVEDIR) != 0)
      return;
    ::rmdir(directory_.path().c_str());
  } catch (const std::exception&) {  // it stays
  }
}

void RunDirectory::begin() {
  world_.together([&] {
    if (world_.rank() == 0 && recorded_exit(directory_).starts_with(kFinished))
      remove_file(directory_ / "exit");
  });
  begun_ = true;
}

void RunDirectory::drop_finished_record() const noexcept {
  if (begun_) return;
  try {
    if (recorded_exit(directory_).starts_with(kFinished)) remove_file(directory_ / "exit");
  } catch (const std::exception&) {  // record_exit reports what it cannot do
  }
}

void RunDirectory::record_end_of(const std::function<void()>& body) const {
  try {
    body();
    if (world_.rank() == 0) record_exit(directory_, 0, "done");
  } catch (const comm::AgreedError& error) {
    const bool leaves_nothing =
        made_ && !begun_ && is_of_the_user(error.kind()) && !holds(directory_, "config.toml");
    if (world_.rank() == 0 && !is_of_the_user(error.kind())) drop_finished_record();
    if (world_.rank() == 0 && !leaves_nothing) record_exit(directory_, exit_code(error.kind()), error.what());
    throw;
  } catch (const Error& error) {
    drop_finished_record();
    record_exit(directory_, exit_code(error.kind()), concat("rank ", world_.rank(), ": ", error.what()));
    throw;
  } catch (const std::exception& error) {
    drop_finished_record();
    record_exit(directory_, exit_code(ErrorKind::internal),
                concat("rank ", world_.rank(), ": internal error: ", error.what()));
    throw;
  }
}

}  // namespace cifar_mpi::run
