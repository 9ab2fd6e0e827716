#include "cifar_mpi/base/terminal.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

namespace cifar_mpi {
namespace {

/// Restores environment variables.
class Locale {
 public:
  Locale() {
    for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
      if (const char* const value = std::getenv(name)) before_[name] = value;
      ::unsetenv(name);
    }
  }
  ~Locale() {
    for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) ::unsetenv(name);
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  Locale(const Locale&) = delete;
  Locale& operator=(const Locale&) = delete;

 private:
  std::map<std::string, std::string> before_;
};

TEST(Terminal, TakesUtf8WhereTheFirstLocaleThatIsSetSaysSo) {
  const Locale restored;
  EXPECT_FALSE(terminal_takes_utf8());
  ::setenv("LANG", "de_DE.utf8", 1);
  EXPECT_TRUE(terminal_takes_utf8());
  ::setenv("LC_CTYPE", "C", 1);
  EXPECT_FALSE(terminal_takes_utf8());
  ::setenv("LC_ALL", "", 1);
  EXPECT_FALSE(terminal_takes_utf8()) << "what is empty is not set";
  ::setenv("LC_ALL", "C.UTF-8", 1);
  EXPECT_TRUE(terminal_takes_utf8());
}

}  // namespace
}  // namespace cifar_mpi
