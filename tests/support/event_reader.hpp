#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/temp_dir.hpp"

/// Reads TensorFlow's event files without sharing code with their writer, and imitates TensorBoard's two
/// readers of several files.
namespace cifar_mpi::test {

/// CRC-32C bit by bit, masked as records have it.
inline std::uint32_t masked_crc(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0x82F63B78 : crc >> 1;
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8;
}

template <class T>
T little_endian(std::string_view bytes) {
  T value{};
  if (bytes.size() < sizeof value) throw std::runtime_error("a number is cut");
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

/// The data of the records up to the first that is not whole. Throws where a whole one has a wrong checksum.
inline std::vector<std::string> read_records(std::string_view bytes) {
  std::vector<std::string> records;
  while (bytes.size() >= 12) {
    const auto length = little_endian<std::uint64_t>(bytes);
    if (little_endian<std::uint32_t>(bytes.substr(8)) != masked_crc(bytes.substr(0, 8)))
      throw std::runtime_error("the checksum of a length is wrong");
    if (bytes.size() - 12 < length || bytes.size() - 12 - length < 4) break;
    const std::string_view data = bytes.substr(12, length);
    if (little_endian<std::uint32_t>(bytes.substr(12 + length)) != masked_crc(data))
      throw std::runtime_error("the checksum of a record is wrong");
    records.emplace_back(data);
    bytes.remove_prefix(16 + length);
  }
  return records;
}

/// A field of a message: its number, and its bytes or those of its number (a varint as 8 bytes).
struct Field {
  std::uint64_t number = 0;
  std::string value;
};

inline std::vector<Field> fields_of(std::string_view message) {
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      if (message.empty() || shift > 63) throw std::runtime_error("a varint is cut or too long");
      const auto byte = static_cast<unsigned char>(message.front());
      message.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
  };
  std::vector<Field> fields;
  while (!message.empty()) {
    const std::uint64_t key = varint();
    std::uint64_t size = 0;
    std::string value;
    switch (key & 7) {
      case 0: {
        const std::uint64_t number = varint();
        value.assign(reinterpret_cast<const char*>(&number), sizeof number);
        break;
      }
      case 1:
        size = 8;
        break;
      case 2:
        size = varint();
        break;
      case 5:
        size = 4;
        break;
      default:
        throw std::runtime_error("an unknown wire type");
    }
    if (size > message.size()) throw std::runtime_error("a field is cut");
    if ((key & 7) != 0) value = message.substr(0, size);
    message.remove_prefix(size);
    fields.push_back({key >> 3, std::move(value)});
  }
  return fields;
}

/// The parts of an event that tests use.
struct EventRead {
  std::uint64_t step = 0;
  double wall_time = 0.0;
  std::string file_version, graph_def;
  bool start = false;
  std::vector<std::pair<std::string, float>> scalars;
  std::vector<std::string> tensors;                                  ///< tags
  std::vector<std::pair<std::string, std::vector<double>>> doubles;  ///< tensors of that type
};

inline void note_doubles(EventRead& event, const std::string& tag, std::string_view tensor) {
  constexpr std::uint64_t kDouble = 2;
  std::uint64_t type = 0;
  for (const Field& field : fields_of(tensor)) {
    if (field.number == 1) type = little_endian<std::uint64_t>(field.value);
    if (field.number != 4 || type != kDouble) continue;
    std::vector<double> values(field.value.size() / sizeof(double));
    std::memcpy(values.data(), field.value.data(), values.size() * sizeof(double));
    event.doubles.emplace_back(tag, std::move(values));
  }
}

inline EventRead event_of(std::string_view record) {
  EventRead event;
  for (const Field& field : fields_of(record)) {
    if (field.number == 1) event.wall_time = little_endian<double>(field.value);
    if (field.number == 2) event.step = little_endian<std::uint64_t>(field.value);
    if (field.number == 3) event.file_version = field.value;
    if (field.number == 4) event.graph_def = field.value;
    if (field.number == 7)
      event.start = little_endian<std::uint64_t>(fields_of(field.value).at(0).value) == 1;
    if (field.number != 5) continue;
    for (const Field& entry : fields_of(field.value)) {
      std::string tag;
      for (const Field& part : fields_of(entry.value)) {
        if (part.number == 1) tag = part.value;
        if (part.number == 2) event.scalars.emplace_back(tag, little_endian<float>(part.value));
        if (part.number == 8) event.tensors.push_back(tag);
        if (part.number == 8) note_doubles(event, tag, part.value);
      }
    }
  }
  return event;
}

inline std::vector<EventRead> read_events(const std::string& path) {
  std::vector<EventRead> events;
  for (const std::string& record : read_records(read_file(path))) events.push_back(event_of(record));
  return events;
}

/// The event files of a folder in the order in which TensorBoard reads them.
inline std::vector<std::string> event_files(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

using Points = std::vector<std::pair<std::uint64_t, float>>;
using Lines = std::map<std::string, Points>;

enum class Reader {
  python,  ///< at every SessionLog START but the first, discards all from its step on
  rust,    ///< ignores START; discards a tag's points from a repeated step on
};

/// The line of each tag.
inline Lines lines_of(const std::string& folder, Reader reader) {
  Lines lines;
  bool started = false;
  for (const std::string& path : event_files(folder)) {
    for (const EventRead& event : read_events(path)) {
      const auto forget = [&](Points& points) {
        std::erase_if(points, [&](const auto& point) { return point.first >= event.step; });
      };
      if (event.start && started && reader == Reader::python) {
        for (auto& [tag, points] : lines) forget(points);
      }
      started = started || event.start;
      for (const auto& [tag, value] : event.scalars) {
        Points& points = lines[tag];
        if (reader == Reader::rust) forget(points);
        points.emplace_back(event.step, value);
      }
    }
  }
  return lines;
}

/// The steps of a line, "1 2 3": in the order of the points.
inline std::string steps_of(const Points& points) {
  std::string text;
  for (const auto& point : points) text += (text.empty() ? "" : " ") + std::to_string(point.first);
  return text;
}

}  // namespace cifar_mpi::test
