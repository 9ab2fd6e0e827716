#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/base/names.hpp"

/// RUN_DIR/self_check: what the last self-check of a device came to.
namespace cifar_mpi::run {

/// running: it began, and something that says nothing of the device kept it from ending: the next start checks again.
/// on_lanes: passed, but for graphs. failed: the device gave a wrong result. hung: the watchdog ended it, and the next start
/// checks once more (running_again). hung_twice: the watchdog ended that one, too.
enum class SelfCheckResult : std::uint8_t {
  running,
  passed,
  on_lanes,
  failed,
  hung,
  running_again,
  hung_twice
};
constexpr auto names_of(SelfCheckResult) {
  return std::to_array<Name<SelfCheckResult>>({{"running", SelfCheckResult::running},
                                               {"passed", SelfCheckResult::passed},
                                               {"on-lanes", SelfCheckResult::on_lanes},
                                               {"failed", SelfCheckResult::failed},
                                               {"hung", SelfCheckResult::hung},
                                               {"running-again", SelfCheckResult::running_again},
                                               {"hung-twice", SelfCheckResult::hung_twice}});
}

/// The file's first line is "RESULT KEY TIME", the rest is text for people.
struct SelfCheckRecord {
  SelfCheckResult result = SelfCheckResult::running;
  std::string key;   ///< of what was checked: a word; the record is of nothing else
  std::string time;  ///< of the wall
  std::string text;  ///< lines
};

/// RUN_DIR/self_check, for people.
std::string self_check_path(const std::string& run_dir);

/// Throws Error{io}.
void write_self_check(const Directory& run, const SelfCheckRecord& record);

/// None where there is no such file, or it is none of ours: then nothing is known.
std::optional<SelfCheckRecord> read_self_check(const Directory& run);

/// Whatever runs now hangs: turns `running` into `hung` and `running_again` into `hung_twice`, and leaves other records as they
/// are. Throws Error{io}.
void note_hung_self_check(const Directory& run);

}  // namespace cifar_mpi::run
