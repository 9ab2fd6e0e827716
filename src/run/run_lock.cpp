#include "cifar_mpi/run/run_lock.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <random>
#include <sstream>
#include <stop_token>
#include <system_error>
#include <thread>
#include <vector>

#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/input_file.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::run {
namespace {

constexpr const char* kUnreadable = "unreadable";

constexpr std::size_t kMostClaims = 100;

/// Empty if it cannot be read.
std::string read_all(const DirectoryEntry& file) {
  return read_small_file(file).value_or(SmallFile()).content;
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::uint64_t number(const std::string& text) { return std::strtoull(text.c_str(), nullptr, 10); }

std::string random_token() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

/// Field 22 of /proc/PID/stat, counted after the command's name, which may contain anything; 0 if the process
/// is gone or a zombie.
std::uint64_t process_start_of(std::uint64_t pid) {
  const std::string stat = read_all(concat("/proc/", pid, "/stat"));
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(stat.substr(name_end + 1));
  std::string field;
  fields >> field;
  if (field == "Z" || field == "X") return 0;
  for (int i = 4; i <= 22; ++i) fields >> field;
  return number(field);
}

enum class Process : std::uint8_t { gone, running, unknown };

/// What is known here of the process that wrote a lock. The same PID on another machine, before a reboot or
/// in another container proves nothing.
Process process_of(const LockHolder& holder, const LockHolder& me) {
  const bool visible = !holder.boot.empty() && holder.host == me.host && holder.boot == me.boot &&
                       holder.pid_namespace == me.pid_namespace && holder.pid > 0;
  if (!visible) return Process::unknown;
  if (::kill(static_cast<pid_t>(holder.pid), 0) != 0) {
    if (errno == ESRCH) return Process::gone;
    // Where /proc hides the processes of other users, their start times are unknown.
    if (read_all(concat("/proc/", holder.pid, "/stat")).empty()) return Process::unknown;
  }
  return process_start_of(holder.pid) == holder.process_start ? Process::running : Process::gone;
}

/// A lock, or a claim to replace it that a killed process left.
struct Claim {
  DirectoryEntry file;
  LockHolder holder;
  SmallFile seen;
};

/// Each token is followed once; a claim with a repeated token, or without one, is identified by its place alone.
std::vector<Claim> read_claims(const DirectoryEntry& lock) {
  std::vector<Claim> claims;
  DirectoryEntry at = lock;
  while (const std::optional<SmallFile> file = read_small_file(at)) {
    if (claims.size() == kMostClaims) {
      throw Error(ErrorKind::checkpoint, lock.path(), " has more than ", kMostClaims,
                  " claims to replace it, more than starts of runs leave; remove ", lock.path(), "*");
    }
    LockHolder holder = parse_lock(file->content);
    const auto known = [&](const Claim& claim) { return claim.holder.token == holder.token; };
    if (holder.token == kUnreadable || std::ranges::any_of(claims, known)) {
      holder = parse_lock("");
      if (!claims.empty()) holder.token += concat('-', claims.size());
    }
    DirectoryEntry next = lock + concat(".after.", holder.token);
    claims.push_back({std::exchange(at, std::move(next)), std::move(holder), *file});
  }
  return claims;
}

bool same_claim(const Claim& a, const Claim& b) {
  return a.holder.token == b.holder.token && a.seen.content == b.seen.content &&
         a.seen.modified_s == b.seen.modified_s;
}

bool same_claims(const std::vector<Claim>& a, const std::vector<Claim>& b) {
  return std::ranges::equal(a, b, same_claim);
}

std::string name_of(const LockHolder& holder) {
  if (holder.pid == 0 && holder.host.empty()) return "an unknown process";
  return concat("process ", holder.pid, " on ", holder.host.empty() ? "an unknown host" : holder.host,
                holder.job.empty() ? "" : concat(" (SLURM job ", holder.job, ")"));
}

[[noreturn]] void refuse(const Directory& run, const LockHolder& holder, const char* how_known) {
  if (holder.token.starts_with(kUnreadable)) {
    throw Error(ErrorKind::checkpoint, (run / "lock").path(),
                " is not a readable lock, but has just changed, so the run directory is in use; choose "
                "another --run-dir, or stop the process that changes that file and remove it");
  }
  throw Error(ErrorKind::checkpoint, run.path(), " is in use by ", name_of(holder), " since ", holder.since,
              ", ", how_known, "; wait until it ends or choose another --run-dir");
}

/// Replaces the lock with the claim `mine`. A folder in its place is not a lock of ours; it is renamed.
void put_in_place(const DirectoryEntry& mine, const DirectoryEntry& lock) {
  const auto renamed = [](const DirectoryEntry& from, const DirectoryEntry& to) {
    return ::renameat(from.folder(), from.name(), to.folder(), to.name()) == 0;
  };
  if (renamed(mine, lock)) return;
  if (errno == EISDIR || errno == ENOTEMPTY || errno == EEXIST) {
    const DirectoryEntry aside = lock + concat(".folder.", random_token());
    if (renamed(lock, aside) && renamed(mine, lock)) return;
  }
  const std::string why = last_error();
  remove_file(mine);
  throw Error(ErrorKind::checkpoint, lock.path(), " is stale, but cannot be replaced: ", why, "; remove it");
}

enum class Created : std::uint8_t { no, empty, whole };

/// On a full disk a file can often be created but not written. An empty file still works as a lock: its
/// holder is unknown, so other starts respect it while it is renewed.
Created create(const DirectoryEntry& file, const std::string& text) {
  try {
    return create_atomically(file, text) ? Created::whole : Created::no;
  } catch (const Error&) {
    const int how = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    const Descriptor empty = open_at(file, how);
    if (empty) return Created::empty;
    if (errno == EEXIST) return Created::no;
    throw;
  }
}

/// Why none of the claims can belong to a running process; empty if one may.
std::string why_all_stale(const std::vector<Claim>& claims, const LockHolder& me) {
  std::string why;
  for (const Claim& claim : claims) {
    why = why_stale(claim.holder, me);
    if (why.empty()) break;
  }
  return why;
}

/// Throws if a claim is known to belong to a running process.
void refuse_if_running(const Directory& run, const std::vector<Claim>& claims, const LockHolder& me) {
  for (const Claim& claim : claims) {
    if (process_of(claim.holder, me) == Process::running && why_stale(claim.holder, me).empty())
      refuse(run, claim.holder, "which is running");
  }
}

/// Watches the claims until they have not changed for three heartbeats of their holders; returns a sentence
/// that says so. Empty if claims went away; throws if one changed. Looks are counted: time in which this
/// process is stopped, and perhaps the holder too, counts as one look.
std::string watch(const Directory& run, const std::vector<Claim>& claims, const LockHolder& me,
                  const RunLock::Listener& report, const RunLock::Pause& pause) {
  double patience = 0.0;
  for (const Claim& claim : claims) patience = std::max(patience, patience_s(claim.holder, me));
  const std::string seconds = fmt::format("{:.3g} s", patience);
  report(concat("waiting up to ", seconds, " to see whether ", name_of(claims.back().holder), " still runs"));
  const int looks = std::max(30, static_cast<int>(std::ceil(patience)));
  for (int i = 0; i < looks; ++i) {
    pause(patience / looks);
    const std::vector<Claim> now = read_claims(run / "lock");
    if (same_claims(now, claims)) continue;
    const auto changed = std::ranges::mismatch(now, claims, same_claim).in1;
    if (changed == now.end()) return {};
    refuse(run, changed->holder, "which has just renewed the lock");
  }
  return concat("it gave no sign of life for ", seconds);
}

/// Takes the lock, or throws. Returns false if its text is still to be written.
bool acquire(const Directory& run, const LockHolder& me, const RunLock::Listener& report,
             const RunLock::Pause& pause) {
  constexpr int kRounds = 100;  // in each, another process was faster
  const DirectoryEntry lock = run / "lock";
  const std::string text = to_text(me);
  for (int round = 0; round < kRounds; ++round) {
    if (const Created created = create(lock, text); created != Created::no) return created == Created::whole;
    const std::vector<Claim> claims = read_claims(lock);
    if (claims.empty()) continue;
    refuse_if_running(run, claims, me);
    std::string stale = why_all_stale(claims, me);
    if (stale.empty()) stale = watch(run, claims, me, report, pause);
    if (stale.empty()) continue;
    const DirectoryEntry mine = lock + concat(".after.", claims.back().holder.token);
    const Created created = create(mine, text);
    if (created == Created::no) continue;
    std::vector<Claim> now = read_claims(lock);
    const std::string token = created == Created::whole ? me.token : concat(kUnreadable, '-', claims.size());
    const bool first = !now.empty() && now.back().holder.token == token;
    if (first) now.pop_back();
    if (!first || !same_claims(now, claims)) {
      remove_file(mine);
      continue;
    }
    put_in_place(mine, lock);
    for (std::size_t i = 1; i < claims.size(); ++i) remove_file(claims[i].file);
    report(concat("took over the lock of ", name_of(claims.back().holder), ": ", stale));
    return created == Created::whole;
  }
  throw Error(ErrorKind::checkpoint, lock.path(), " keeps changing; are several runs being started?");
}

}  // namespace

LockHolder this_process(double heartbeat_s) {
  LockHolder me;
  me.token = random_token();
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  me.host = host.data();
  me.pid = static_cast<std::uint64_t>(::getpid());
  me.process_start = process_start_of(me.pid);
  me.boot = read_all("/proc/sys/kernel/random/boot_id");
  std::erase(me.boot, '\n');
  std::error_code unknown;
  me.pid_namespace = std::filesystem::read_symlink("/proc/self/ns/pid", unknown).string();
  me.job = environment("SLURM_JOB_ID");
  me.restarts = number(environment("SLURM_RESTART_COUNT"));
  me.since = wall_time();
  me.heartbeat_s = heartbeat_s;
  return me;
}

std::string to_text(const LockHolder& h) {
  return concat("token=", h.token, "\nhost=", h.host, "\npid=", h.pid, "\nprocess_start=", h.process_start,
                "\nboot=", h.boot, "\npid_namespace=", h.pid_namespace, "\njob=", h.job,
                "\nrestarts=", h.restarts, "\nsince=", h.since, "\nheartbeat_s=", h.heartbeat_s, '\n');
}

LockHolder parse_lock(const std::string& text) {
  LockHolder h;
  h.token = kUnreadable;
  h.heartbeat_s = 0.0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find('=');
    if (at == std::string::npos) continue;
    const std::string key = line.substr(0, at);
    const std::string value = line.substr(at + 1);
    // A token becomes part of a file name.
    if (key == "token" && !value.empty() &&
        value.find_first_not_of("0123456789abcdef") == std::string::npos) {
      h.token = value;
    }
    if (key == "host") h.host = value;
    if (key == "pid") h.pid = number(value);
    if (key == "process_start") h.process_start = number(value);
    if (key == "boot") h.boot = value;
    if (key == "pid_namespace") h.pid_namespace = value;
    if (key == "job") h.job = value;
    if (key == "restarts") h.restarts = number(value);
    if (key == "since") h.since = value;
    if (key == "heartbeat_s") h.heartbeat_s = std::strtod(value.c_str(), nullptr);
  }
  constexpr double kSlowest = 60.0;  // limits how long a forged lock can delay a start
  if (!(h.heartbeat_s > 0.0 && h.heartbeat_s <= kSlowest)) h.heartbeat_s = 0.0;
  return h;
}

std::string why_stale(const LockHolder& holder, const LockHolder& me) {
  if (!holder.job.empty() && holder.job == me.job && me.restarts > holder.restarts) {
    return concat("this is restart ", me.restarts, " of that job");
  }
  return process_of(holder, me) == Process::gone ? "that process is gone" : "";
}

double patience_s(const LockHolder& holder, const LockHolder& me) {
  return 3.0 * (holder.heartbeat_s > 0.0 ? holder.heartbeat_s : me.heartbeat_s);
}

/// Renews the lock, and notices if another run has taken it over.
struct RunLock::Heart {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::jthread thread;  ///< last: it ends first
};

RunLock::RunLock(const Directory& run, LockHolder me, const Listener& report, const Pause& pause)
    : lock_(run / "lock"), me_(std::move(me)), heart_(std::make_unique<Heart>()) {
  signed_ = acquire(run, me_, report, pause);
}

RunLock::RunLock(const Directory& run, LockHolder me, const Listener& report, Listener lost,
                 const Pause& pause)
    : RunLock(run, std::move(me), report, pause) {
  heart_->thread =
      std::jthread([this, &heart = *heart_, lost = std::move(lost)](const std::stop_token& over) {
        using Clock = std::chrono::steady_clock;
        constexpr std::chrono::duration<double> kSlice{0.25};
        const auto period = std::chrono::duration<double>(me_.heartbeat_s);
        std::unique_lock lock(heart.mutex);
        auto beaten = Clock::now(), awake = beaten;
        while (!heart.wake.wait_for(lock, over, std::min(period, kSlice), [] { return false; }) &&
               !over.stop_requested()) {
          const auto now = Clock::now();
          // A process that was stopped checks at once whether another run has taken over its directory.
          const bool stood_still = now - awake > 4 * kSlice;
          awake = now;
          if (now - beaten < period && !stood_still) continue;
          beaten = now;
          if (!held()) {
            lost(name_of(parse_lock(read_all(lock_))));
            return;
          }
          if (!signed_) sign();
          ::utimensat(lock_.folder(), lock_.name(), nullptr, AT_SYMLINK_NOFOLLOW);
        }
      });
}

RunLock::~RunLock() {
  heart_.reset();
  const std::string token = parse_lock(read_all(lock_)).token;
  if (token == me_.token || (!signed_ && token == kUnreadable)) remove_file(lock_);
}

void RunLock::sign() {
  try {
    write_atomically(lock_, to_text(me_));
    signed_ = true;
  } catch (const Error&) {  // there is still no space
  }
}

void RunLock::sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

bool RunLock::held() const {
  // A lock that cannot be read (folder removed, server unreachable) does not indicate another run.
  const std::string token = parse_lock(read_all(lock_)).token;
  return token == me_.token || token == kUnreadable;
}

}  // namespace cifar_mpi::run
