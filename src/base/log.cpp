#include "cifar_mpi/base/log.hpp"

#include <fmt/core.h>

#include <atomic>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi {
namespace {

std::atomic<int> texts_being_written{0};

/// Whether a character in UTF-8 may be shown.
bool is_shown(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0) >= 0x20 && byte(0) != 0x7F;
  if (character.size() == 2) return byte(0) != 0xC2 || byte(1) >= 0xA0;  // C1
  if (character.size() != 3 || byte(0) != 0xE2) return true;
  const bool separates_or_turns = byte(1) == 0x80 && byte(2) >= 0xA8 && byte(2) <= 0xAE;  // U+2028 to U+202E
  const bool isolates = byte(1) == 0x81 && byte(2) >= 0xA6 && byte(2) <= 0xA9;            // U+2066 to U+2069
  return !separates_or_turns && !isolates;
}

void write_line(std::FILE* out, std::string_view text) {
  std::string line = printable(text);
  line += '\n';
  write_flushed(out, line);
}

}  // namespace

void write_flushed(std::FILE* out, std::string_view text) {
  ++texts_being_written;
  std::fwrite(text.data(), 1, text.size(), out);
  std::fflush(out);
  --texts_being_written;
}

std::string printable(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const std::string_view character = text.substr(0, length == 0 ? 1 : length);
    if (length > 0 && is_shown(character)) {
      shown += character;
    } else if (character == "\n") {
      shown += "\\n";
    } else if (character == "\t") {
      shown += "\\t";
    } else {
      for (const char byte : character)
        shown += fmt::format("\\x{:02x}", static_cast<unsigned>(static_cast<unsigned char>(byte)));
    }
    text.remove_prefix(character.size());
  }
  return shown;
}

void Log::info(std::string_view line) const {
  if (rank_ == 0) write_line(out_, line);
}

void Log::warn(std::string_view line) const {
  if (rank_ == 0) write_line(stderr, concat("warning: ", line));
}

void Log::every_rank(std::string_view line) const { write_line(stderr, concat("[rank ", rank_, "] ", line)); }

bool is_logging() { return texts_being_written > 0; }

}  // namespace cifar_mpi
