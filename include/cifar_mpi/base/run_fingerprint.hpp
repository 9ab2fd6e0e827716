#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cifar_mpi {

/// Identifies a run, or a part of it, by pairs of item and value, each item once. Ranks compare theirs at
/// start, and a checkpoint stores that of its run.
using RunFingerprint = std::vector<std::pair<std::string, std::string>>;

/// The value of `item`; null when there is none.
const std::string* find_item(const RunFingerprint& items, std::string_view item);
/// The value as a whole number; empty if there is no such item or its value is not a whole number.
std::optional<std::int64_t> find_number(const RunFingerprint& items, std::string_view item);

/// Converts to one text for other ranks, and back. Items and values contain no zero byte.
std::string pack(const RunFingerprint& items);
RunFingerprint unpack(std::string_view text);

}  // namespace cifar_mpi
