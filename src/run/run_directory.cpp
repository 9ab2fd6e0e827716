#include "cifar_mpi/run/run_directory.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/input_file.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::run {
namespace {

namespace fs = std::filesystem;

std::string checkpoint_name(std::uint64_t step) { return concat("step_", fmt::format("{:09}", step), ".h5"); }

/// The step of a name that `checkpoint_name` gives, and of no other.
std::optional<std::uint64_t> step_of(const std::string& name) {
  unsigned long long step = 0;
  if (std::sscanf(name.c_str(), "step_%llu", &step) != 1 || checkpoint_name(step) != name)
    return std::nullopt;
  return step;
}

/// NAME of "NAME.PID-N.tmp", as write_atomically names what it has not finished; empty for other names.
std::string unfinished(const std::string& name) {
  const std::size_t dot = name.rfind('.', name.size() - std::min<std::size_t>(name.size(), 5));
  if (dot == std::string::npos || !name.ends_with(".tmp")) return {};
  const std::string number = name.substr(dot + 1, name.size() - dot - 5);
  const bool ours =
      number.find('-') != std::string::npos && number.find_first_not_of("0123456789-") == std::string::npos;
  return ours ? name.substr(0, dot) : std::string();
}

/// Names in a folder; when it cannot be read those found so far, and `error` says why.
std::vector<std::string> names_in(const fs::path& folder, std::error_code& error) {
  std::vector<std::string> names;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  return names;
}

std::vector<CheckpointFile> checkpoints_in(const fs::path& folder, std::error_code& error) {
  std::vector<CheckpointFile> files;
  for (const std::string& name : names_in(folder, error)) {
    if (const auto step = step_of(name)) files.push_back({*step, (folder / name).string()});
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return files;
}

}  // namespace

void make_folders(const std::string& run_dir) {
  std::error_code error;
  const fs::path folder = fs::path(run_dir) / "checkpoints";
  if (fs::is_symlink(folder, error)) {
    throw Error(ErrorKind::io, concat(folder.string(),
                                      " is a symbolic link, through which this run would write and remove "
                                      "files elsewhere; name the run directory itself with --run-dir"));
  }
  fs::create_directories(folder, error);
  if (!error) return;
  throw Error(ErrorKind::io, concat("cannot make the run directory ", run_dir, ": ", error.message(),
                                    "; choose another with --run-dir"));
}

std::string checkpoint_path(const std::string& run_dir, std::uint64_t step) {
  return concat(run_dir, "/checkpoints/", checkpoint_name(step));
}

std::vector<CheckpointFile> list_checkpoints(const std::string& run_dir) {
  const fs::path folder = fs::path(run_dir) / "checkpoints";
  std::error_code error;
  std::vector<CheckpointFile> files = checkpoints_in(folder, error);
  if (!error || error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) {
    return files;
  }
  throw Error(ErrorKind::io, concat("cannot look for checkpoints in ", folder.string(), ": ", error.message(),
                                    "; make it readable, or name another run directory"));
}

void retire_checkpoints(const std::string& run_dir, std::uint64_t newest, const Retention& retention,
                        std::optional<std::uint64_t> best) {
  std::error_code unreadable;
  std::vector<CheckpointFile> files = checkpoints_in(fs::path(run_dir) / "checkpoints", unreadable);
  std::erase_if(files, [&](const CheckpointFile& file) { return file.step > newest; });
  const auto every = static_cast<std::uint64_t>(retention.keep_every);
  for (std::size_t i = 0; i + static_cast<std::size_t>(retention.keep) < files.size(); ++i) {
    if ((every > 0 && files[i].step % every == 0) || files[i].step == best) continue;
    std::error_code ignored;
    fs::remove(files[i].path, ignored);
  }
}

void link_latest(const std::string& run_dir, std::uint64_t step) {
  link_atomically(run_dir + "/checkpoints/latest", checkpoint_name(step));
}

void link_best(const std::string& run_dir, std::optional<std::uint64_t> step) {
  const std::string link = run_dir + "/checkpoints/best";
  std::error_code error;
  const fs::path target = fs::read_symlink(link, error);  // empty when it is none
  if (step) {
    if (target != checkpoint_name(*step)) link_atomically(link, checkpoint_name(*step));
  } else if (!target.empty()) {
    fs::remove(link, error);
  }
}

void remove_temporary_files(const std::string& run_dir) {
  const fs::path folder = fs::path(run_dir) / "checkpoints";
  std::error_code unreadable;
  for (const std::string& name : names_in(folder, unreadable)) {
    const std::string finished = unfinished(name);
    std::error_code ignored;
    if (finished == "latest" || finished == "best" || step_of(finished)) fs::remove(folder / name, ignored);
  }
}

void record_exit(const std::string& run_dir, int code, const std::string& sentence) noexcept {
  try {
    create_atomically(run_dir + "/exit", concat(code, ' ', printable(sentence), '\n'));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "warning: how the run ended could not be recorded: %s\n",
                 printable(error.what()).c_str());
  }
}

std::string recorded_exit(const std::string& run_dir) {
  const std::optional<SmallFile> file = read_small_file(run_dir + "/exit");
  return file ? printable(file->content.substr(0, file->content.find('\n'))) : std::string();
}

RunDirectory::RunDirectory(std::string path, const comm::World& world)
    : path_(std::move(path)), world_(world) {
  const Log log(world.rank());
  world.together([&] {
    if (world.rank() != 0) return;
    make_folders(path_);
    lock_.emplace(
        path_, this_process(), [&](const std::string& why) { log.info(why); },
        [this](const std::string& holder) {
          Log(world_.rank())
              .every_rank(concat(path_, " was taken over by ", holder,
                                 " while this run stood still; this run ends without a record"));
          world_.abort(exit_code(ErrorKind::checkpoint));
        });
    last_end_ = recorded_exit(path_);
    std::error_code ignored;
    fs::remove(path_ + "/exit", ignored);
    remove_temporary_files(path_);
  });
}

void RunDirectory::record_end_of(const std::function<void()>& body) const {
  try {
    body();
    if (world_.rank() == 0) record_exit(path_, 0, "done");
  } catch (const comm::AgreedError& error) {
    if (world_.rank() == 0) record_exit(path_, exit_code(error.kind()), error.what());
    throw;
  } catch (const Error& error) {
    record_exit(path_, exit_code(error.kind()), concat("rank ", world_.rank(), ": ", error.what()));
    throw;
  } catch (const std::exception& error) {
    record_exit(path_, exit_code(ErrorKind::internal),
                concat("rank ", world_.rank(), ": internal error: ", error.what()));
    throw;
  }
}

}  // namespace cifar_mpi::run
