#include "cifar_mpi/base/shell_word.hpp"

#include <string_view>

namespace cifar_mpi {

std::string shell_word(const std::string& text) {
  const auto harmless = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_./-+=:,@").find(c) != std::string_view::npos;
  };
  bool plain = !text.empty();
  for (const char c : text) plain = plain && harmless(c);
  if (plain) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

}  // namespace cifar_mpi
