#include "app/values.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace cifar_mpi::app {
namespace {

/// The converted value, or the error that rejects it.
std::string checked(const CLI::Validator& number, std::string text) {
  const std::string refusal = number(text);
  return refusal.empty() ? text : refusal;
}

TEST(Number, TakesAllThatItsTypeCanHold) {
  EXPECT_EQ(checked(number<int>(-5, 7), "-5"), "-5");
  EXPECT_EQ(checked(number<int>(-5, 7), "7"), "7");
  EXPECT_EQ(checked(number<int>(), "2147483647"), "2147483647");
  EXPECT_EQ(checked(number<std::uint64_t>(), "18446744073709551615"), "18446744073709551615");
  EXPECT_EQ(checked(number<std::int64_t>(), "9223372036854775807"), "9223372036854775807");
  for (const char* text : {"0.1", "-1e-300", ".5", "1.", "+2", "1E5"})
    EXPECT_EQ(checked(number<double>(), text), text);
}

TEST(Number, RefusesEverythingElseAndSaysWhy) {
  for (const char* text : {"", " ", "x", "1x", " 1", "1 ", "0x10", "1e3", "1.0", "-6", "8", "2147483648",
                           "010", "-0", "+3", "+-1", "++1", "+", "nan"}) {
    EXPECT_EQ(checked(number<int>(-5, 7), text),
              std::string("must be a whole number from -5 to 7, not '") + text + "'");
  }
  for (const char* text : {"18446744073709551616", "-1", "-0x1"})
    EXPECT_NE(checked(number<std::uint64_t>(), text).find("must be"), std::string::npos) << text;
  for (const char* text : {"nan", "-nan", "inf", "infinity", "1e400", "1e-400", "", "1,5", "0x1p3", "1e"})
    EXPECT_NE(checked(number<double>(), text).find("must be a finite number, not"), std::string::npos)
        << text;
  for (const char* text : {"nan", "0.09", "2.01"})
    EXPECT_NE(checked(number(0.1, 2.0), text).find("from 0.1 to 2, not"), std::string::npos) << text;
}

TEST(Timeout, IsNoneOrLongEnoughToBeSeen) {
  for (const char* good : {"0", "2", "0.2e1", "86400"}) EXPECT_EQ(checked(timeout(), good), good);
  for (const char* bad : {"", "1.9", "-2", "nan", "2e9", "2 s"})
    EXPECT_EQ(checked(timeout(), bad),
              std::string("must be never or a number from 2 to 1e9, not '") + bad + "'");
}

TEST(NotEmpty, RefusesNothingElse) {
  EXPECT_EQ(checked(not_empty(), " "), " ");
  EXPECT_EQ(checked(not_empty(), ""), "must not be empty");
}

}  // namespace
}  // namespace cifar_mpi::app
