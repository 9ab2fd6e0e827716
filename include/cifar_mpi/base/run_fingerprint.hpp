#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cifar_mpi {

/// What a run is, or a part of it: named texts, (item, value), every item once. Ranks compare theirs at start,
/// and a checkpoint has that of its run.
using RunFingerprint = std::vector<std::pair<std::string, std::string>>;

/// The value of `item`; null when there is none.
const std::string* find_item(const RunFingerprint& items, std::string_view item);
/// The same as a whole number; nothing also when it is none.
std::optional<std::int64_t> find_number(const RunFingerprint& items, std::string_view item);

/// As one text that any other rank can read, and back. Items and values contain no zero byte.
std::string pack(const RunFingerprint& items);
RunFingerprint unpack(std::string_view text);

}  // namespace cifar_mpi
