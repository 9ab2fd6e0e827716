#include "cifar_mpi/base/run_fingerprint.hpp"

#include "cifar_mpi/base/parse_number.hpp"

namespace cifar_mpi {

const std::string* find_item(const RunFingerprint& items, std::string_view item) {
  for (const auto& [name, value] : items) {
    if (name == item) return &value;
  }
  return nullptr;
}

std::optional<std::int64_t> find_number(const RunFingerprint& items, std::string_view item) {
  const std::string* const text = find_item(items, item);
  return text == nullptr ? std::nullopt : parse_number<std::int64_t>(*text);
}

std::string pack(const RunFingerprint& items) {
  std::string text;
  for (const auto& [item, value] : items) text.append(item).append(1, '\0').append(value).append(1, '\0');
  return text;
}

RunFingerprint unpack(std::string_view text) {
  const auto take = [&text] {
    const std::size_t end = text.find('\0');
    std::string part(text.substr(0, end));
    text.remove_prefix(end + 1);
    return part;
  };
  RunFingerprint items;
  while (!text.empty()) {
    std::string item = take();
    items.emplace_back(std::move(item), take());
  }
  return items;
}

}  // namespace cifar_mpi
