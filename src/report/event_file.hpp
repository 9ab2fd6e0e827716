#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cifar_mpi/base/shape.hpp"
#include "cifar_mpi/report/best_effort_file.hpp"
#include "report/protobuf.hpp"

/// The files that TensorBoard reads: TensorFlow's event files.
namespace cifar_mpi::report {

/// CRC-32C (Castagnoli), rotated right by 15 bits, plus 0xa282ead8: the checksum of records.
std::uint32_t masked_crc32c(std::string_view bytes);

/// A TFRecord: the length of `data` in 8 bytes, the checksum of these, `data`, its checksum; little-endian.
std::string tf_record(std::string_view data);

/// The kind of an event; the value is its field in TensorFlow's message Event.
enum class EventKind : std::uint32_t { file_version = 3, graph_def = 4, summary = 5, session_log = 7 };

struct Event {
  std::uint64_t step = 0;
  EventKind kind = EventKind::summary;
  std::string content;  ///< the message of that field, or its text
};

/// Values of one step, for EventKind::summary.
class Summary {
 public:
  void scalar(std::string_view tag, double value);

  /// TensorFlow's numbers of its types.
  enum class Type : std::uint32_t { float32 = 1, float64 = 2 };
  /// Numbers of any shape for a plugin of TensorBoard, with the plugin's metadata.
  struct Tensor {
    std::string_view plugin;
    std::string_view plugin_content;
    Type type = Type::float32;
    std::vector<std::int64_t> shape;
    std::string_view values;  ///< as in memory: row-major, little-endian
  };
  void tensor(std::string_view tag, const Tensor& tensor);
  /// For the plugin of images: PNGs, all of one size.
  void images(std::string_view tag, const Extent& extent, const std::vector<std::string>& pngs);
  /// For the plugin of texts, in Markdown.
  void text(std::string_view tag, const std::string& text);

  Event at(std::uint64_t step) const { return {step, EventKind::summary, values_.text()}; }

 private:
  void strings(std::string_view tag, std::string_view plugin, std::int64_t data_class,
               const std::vector<std::string>& values);

  Message values_;
};

/// A new file in a folder of event files, for one start of a run.
///
/// Its name is events.out.tfevents.SECONDS.HOST.PID.N. The seconds are larger than in all existing names,
/// even if clocks differ: TensorBoard reads files in the order of their names and never goes back to one. The
/// first events are the version and SessionLog START at the first step, which makes TensorBoard discard the
/// values of earlier starts from that step on.
///
/// It is a BestEffortFile: a process that is killed loses at most the event it is writing, and TensorBoard
/// stops reading before an incomplete one. There is no thread for it: an event with all of a log line's
/// scalars takes a few microseconds, and a file system that hangs would also stop the lines of metrics.jsonl.
/// Symbolic links are not followed, and no existing file is opened.
class EventFile {
 public:
  EventFile() = default;  ///< writes nothing
  /// `first_step` is the first step that this start will report; `head` follows the first two events. The
  /// head precedes all other events, even if the disk was full at first.
  EventFile(const DirectoryEntry& folder, std::uint64_t first_step, const std::vector<Event>& head,
            const Log& log);

  void write(const Event& event);
  /// Whether events can still reach the file.
  explicit operator bool() const { return static_cast<bool>(file_); }

 private:
  void open(const DirectoryEntry& entry);
  void put(const std::string& records);

  BestEffortFile file_;
  std::string head_;  ///< the part of the head that is not in the file yet
};

}  // namespace cifar_mpi::report
