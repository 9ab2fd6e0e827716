#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace cifar_mpi::report {

/// A message in the wire format of Protocol Buffers, field by field in the order of the calls
/// (protobuf.dev/programming-guides/encoding).
///
/// Written by hand, because event files and traces need only five kinds of fields. A library would have to be
/// installed on every cluster in a matching version, and the build would need its compiler and TensorFlow's
/// .proto files.
class Message {
 public:
  /// int32, int64, enum, bool; a negative number takes ten bytes.
  Message& number(std::uint32_t field, std::int64_t value) {
    key(field, 0);
    varint(static_cast<std::uint64_t>(value));
    return *this;
  }
  Message& number(std::uint32_t field, double value) {
    key(field, 1);
    little_endian(std::bit_cast<std::uint64_t>(value), 8);
    return *this;
  }
  Message& number(std::uint32_t field, float value) {
    key(field, 5);
    little_endian(std::bit_cast<std::uint32_t>(value), 4);
    return *this;
  }
  /// fixed64
  Message& fixed(std::uint32_t field, std::uint64_t value) {
    key(field, 1);
    little_endian(value, 8);
    return *this;
  }
  /// string, bytes, and a message inside this one.
  Message& bytes(std::uint32_t field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    text_ += value;
    return *this;
  }
  Message& message(std::uint32_t field, const Message& value) { return bytes(field, value.text_); }
  /// An entry of a map from text to messages.
  Message& entry(std::uint32_t field, std::string_view name, const Message& value) {
    return message(field, Message().bytes(1, name).message(2, value));
  }

  const std::string& text() const { return text_; }

 private:
  void key(std::uint32_t field, std::uint32_t wire_type) { varint(std::uint64_t{field} << 3 | wire_type); }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
    text_ += static_cast<char>(value);
  }
  void little_endian(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) text_ += static_cast<char>(value >> (8 * i));
  }

  std::string text_;
};

}  // namespace cifar_mpi::report
