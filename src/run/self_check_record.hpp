#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "cifar_mpi/base/directory.hpp"
#include "cifar_mpi/base/names.hpp"

/// RUN_DIR/self_check: the result of the last self-check of a device.
namespace cifar_mpi::run {

/// running: it began but did not end, for a reason other than the device; the next start checks again.
/// on_lanes: passed, but graphs are wrong. refused: passed, but no graph could be made; the next start checks again.
/// failed: the device gave a wrong result. hung: the watchdog ended it; the next start checks once more (running_again).
/// hung_twice: the watchdog ended that check, too.
enum class SelfCheckResult : std::uint8_t {
  running,
  passed,
  on_lanes,
  refused,
  failed,
  hung,
  running_again,
  hung_twice
};
constexpr auto names_of(SelfCheckResult) {
  return std::to_array<Name<SelfCheckResult>>({{"running", SelfCheckResult::running},
                                               {"passed", SelfCheckResult::passed},
                                               {"on-lanes", SelfCheckResult::on_lanes},
                                               {"graphs-refused", SelfCheckResult::refused},
                                               {"failed", SelfCheckResult::failed},
                                               {"hung", SelfCheckResult::hung},
                                               {"running-again", SelfCheckResult::running_again},
                                               {"hung-twice", SelfCheckResult::hung_twice}});
}

/// The file's first line is "RESULT KEY TIME", the rest is text for users.
struct SelfCheckRecord {
  SelfCheckResult result = SelfCheckResult::running;
  std::string key;   ///< identifies what was checked, in a word; the record applies to nothing else
  std::string time;  ///< wall time
  std::string text;  ///< lines
};

/// RUN_DIR/self_check, for messages.
std::string self_check_path(const std::string& run_dir);

/// Throws Error{io}.
void write_self_check(const Directory& run, const SelfCheckRecord& record);

/// Empty if there is no such file or it is not one of ours.
std::optional<SelfCheckRecord> read_self_check(const Directory& run);

/// Changes a record of `running` to `hung` and of `running_again` to `hung_twice`; leaves others as they are. Throws
/// Error{io}.
void note_hung_self_check(const Directory& run);

}  // namespace cifar_mpi::run
