#include "report/event_file.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::report {
namespace {

/// The remainder of each byte by the polynomial 0x1EDC6F41, bits reversed.
constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kCrcTable = crc_table();

template <class T>
void append_little_endian(std::string& text, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) text += static_cast<char>(value >> (8 * i));
}

std::string record_of(const Event& event) {
  Message message;
  message.number(1, wall_seconds()).number(2, static_cast<std::int64_t>(event.step));
  message.bytes(static_cast<std::uint32_t>(event.kind), event.content);
  return tf_record(message.text());
}

constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr std::int64_t kMostSeconds = 9'999'999'999;  // ten digits, so that names sort by them

/// The seconds in a name of our form; 0 for any other.
std::int64_t seconds_of(std::string_view name) {
  constexpr std::size_t kDigits = 10;
  if (!name.starts_with(kPrefix) || name.size() <= kPrefix.size() + kDigits) return 0;
  std::int64_t seconds = 0;
  for (const char c : name.substr(kPrefix.size(), kDigits)) {
    if (c < '0' || c > '9') return 0;
    seconds = 10 * seconds + (c - '0');
  }
  return name[kPrefix.size() + kDigits] == '.' ? seconds : 0;
}

/// Now, or a second after the newest file there.
std::int64_t next_seconds(const Directory& folder) {
  auto next = static_cast<std::int64_t>(wall_seconds());
  for (const std::string& name : folder.names()) {
    const std::int64_t seconds = seconds_of(name);
    if (seconds < kMostSeconds) next = std::max(next, seconds + 1);
  }
  return next;
}

/// The name of this machine, as part of a file name.
std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "unknown";
  std::string host(name);
  const auto plain = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-';
  };
  std::ranges::replace_if(
      host, [&](char c) { return !plain(c); }, '-');
  return host.empty() ? "unknown" : host;
}

}  // namespace

std::uint32_t masked_crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

std::string tf_record(std::string_view data) {
  std::string record;
  append_little_endian(record, static_cast<std::uint64_t>(data.size()));
  append_little_endian(record, masked_crc32c(record));
  record += data;
  append_little_endian(record, masked_crc32c(data));
  return record;
}

void Summary::scalar(std::string_view tag, double value) {
  values_.message(1, Message().bytes(1, tag).number(2, static_cast<float>(value)));
}

void Summary::tensor(std::string_view tag, const Tensor& tensor) {
  constexpr std::int64_t kDataClassTensor = 2;
  Message shape, content, metadata;
  for (const std::int64_t extent : tensor.shape) shape.message(2, Message().number(1, extent));
  content.number(1, static_cast<std::int64_t>(tensor.type)).message(2, shape).bytes(4, tensor.values);
  metadata.message(1, Message().bytes(1, tensor.plugin).bytes(2, tensor.plugin_content));
  metadata.number(4, kDataClassTensor);
  values_.message(1, Message().bytes(1, tag).message(8, content).message(9, metadata));
}

void Summary::strings(std::string_view tag, std::string_view plugin, std::int64_t data_class,
                      const std::vector<std::string>& values) {
  constexpr std::int64_t kString = 7;
  Message content, metadata;
  const auto count = static_cast<std::int64_t>(values.size());
  content.number(1, kString).message(2, Message().message(2, Message().number(1, count)));
  for (const std::string& value : values) content.bytes(8, value);
  metadata.message(1, Message().bytes(1, plugin)).number(4, data_class);
  values_.message(1, Message().bytes(1, tag).message(8, content).message(9, metadata));
}

void Summary::images(std::string_view tag, const Extent& extent, const std::vector<std::string>& pngs) {
  constexpr std::int64_t kBlobSequence = 3;
  std::vector<std::string> values{std::to_string(extent.width), std::to_string(extent.height)};
  values.insert(values.end(), pngs.begin(), pngs.end());
  strings(tag, "images", kBlobSequence, values);
}

void Summary::text(std::string_view tag, const std::string& text) {
  constexpr std::int64_t kTensor = 2;
  strings(tag, "text", kTensor, {text});
}

EventFile::EventFile(const DirectoryEntry& folder, std::uint64_t first_step, const std::vector<Event>& head,
                     const Log& log)
    : file_(folder.path(), "TensorBoard will lack its values", log) {
  constexpr std::int64_t kStart = 1;
  try {
    open(folder);
  } catch (const Error& error) {
    file_.warn(error.what());
  }
  if (!file_) return;
  head_ = record_of({0, EventKind::file_version, "brain.Event:2"});
  head_ += record_of({first_step, EventKind::session_log, Message().number(1, kStart).text()});
  for (const Event& event : head) head_ += record_of(event);
  put({});
}

void EventFile::open(const DirectoryEntry& entry) {
  constexpr int kAttempts = 1000;
  const Directory folder = Directory::make(entry);
  const std::string stem =
      concat(kPrefix, fmt::format("{:010}", next_seconds(folder)), '.', host_name(), '.', ::getpid());
  for (int attempt = 0; attempt < kAttempts && !file_; ++attempt) {
    const DirectoryEntry file = folder / concat(stem, '.', attempt);
    const int how = O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    if (Descriptor made = open_at(file, how)) file_.open(std::move(made), file.path());
    if (!file_ && errno != EEXIST) break;
  }
  if (!file_) file_.warn(last_error());
}

void EventFile::write(const Event& event) {
  if (file_) put(record_of(event));
}

void EventFile::put(const std::string& records) {
  if (file_.write(head_ + records)) head_.clear();
}

}  // namespace cifar_mpi::report
