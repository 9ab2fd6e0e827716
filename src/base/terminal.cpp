#include "cifar_mpi/base/terminal.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>

#include "cifar_mpi/base/directory.hpp"

namespace cifar_mpi {
namespace {

int columns_of(int descriptor) {
  if (::isatty(descriptor) == 0) return 0;
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

int terminal_columns() {
  const bool launched = std::getenv("OMPI_COMM_WORLD_RANK") != nullptr || std::getenv("PMIX_RANK") != nullptr;
  if (!launched) return columns_of(STDOUT_FILENO);
  const std::string parent = "/proc/" + std::to_string(::getppid()) + "/fd/1";
  // O_NONBLOCK: the parent's output may be a pipe or a device that would make a plain open wait.
  const Descriptor output(::open(parent.c_str(), O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
  return output ? columns_of(output.get()) : 0;
}

bool terminal_takes_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string locale(value);
    std::ranges::transform(locale, locale.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return locale.find(".utf-8") != std::string::npos || locale.find(".utf8") != std::string::npos;
  }
  return false;
}

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
