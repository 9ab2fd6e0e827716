#include "run/self_check_record.hpp"

#include "cifar_mpi/base/atomic_file.hpp"
#include "cifar_mpi/base/input_file.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::run {

std::string self_check_path(const std::string& run_dir) { return concat(run_dir, "/self_check"); }

void write_self_check(const Directory& run, const SelfCheckRecord& record) {
  const std::string content =
      concat(to_string(record.result), ' ', record.key, ' ', record.time, '\n', record.text);
  write_atomically(run / "self_check", content);
}

std::optional<SelfCheckRecord> read_self_check(const Directory& run) {
  constexpr std::size_t kMost = 1 << 20;  // a line for each device of a large job
  const std::optional<SmallFile> file = read_small_file(run / "self_check", kMost);
  if (!file) return std::nullopt;
  const std::string& content = file->content;
  const std::string line = content.substr(0, content.find('\n'));
  const std::size_t first = line.find(' '), second = line.find(' ', first + 1);
  if (first == std::string::npos || second == std::string::npos) return std::nullopt;
  const auto result = find_name<SelfCheckResult>(line.substr(0, first));
  if (!result) return std::nullopt;
  SelfCheckRecord record;
  record.result = *result;
  record.key = line.substr(first + 1, second - first - 1);
  record.time = printable(line.substr(second + 1));
  if (line.size() < content.size()) record.text = content.substr(line.size() + 1);
  return record;
}

void note_hung_self_check(const Directory& run) {
  std::optional<SelfCheckRecord> record = read_self_check(run);
  if (!record) return;
  if (record->result == SelfCheckResult::running) {
    record->result = SelfCheckResult::hung;
  } else if (record->result == SelfCheckResult::running_again) {
    record->result = SelfCheckResult::hung_twice;
  } else {
    return;
  }
  write_self_check(run, *record);
}

}  // namespace cifar_mpi::run
