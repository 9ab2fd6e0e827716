#include "app/values.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "app/program.hpp"
#include "app/programs.hpp"
#include "app/train_options.hpp"
#include "cifar_mpi/config/config.hpp"

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
    EXPECT_TRUE(contains(checked(number<std::uint64_t>(), text), "must be")) << text;
  for (const char* text : {"nan", "-nan", "inf", "infinity", "1e400", "1e-400", "", "1,5", "0x1p3", "1e"})
    EXPECT_TRUE(contains(checked(number<double>(), text), "must be a finite number, not")) << text;
  for (const char* text : {"nan", "0.09", "2.01"})
    EXPECT_TRUE(contains(checked(number(0.1, 2.0), text), "from 0.1 to 2, not")) << text;
}

TEST(Timeout, IsNoneOrLongEnoughToBeSeen) {
  for (const char* good : {"2", "0.2e1", "86400"}) EXPECT_EQ(checked(timeout(), good), good);
  EXPECT_EQ(checked(timeout(), "never"), "0");
  for (const char* bad : {"", "0", "1.9", "-2", "nan", "2e9", "2 s"})
    EXPECT_EQ(checked(timeout(), bad),
              std::string("must be never or a number from 2 to 1e9, not '") + bad + "'");
}

}  // namespace
}  // namespace cifar_mpi::app

namespace cifar_mpi::test {
namespace {

/// All options that take a number according to --help.
std::vector<std::string> numeric_options(const std::string& help) {
  static const std::regex kOption("\n +(--[a-z-]+) (N|X)(?=[ \n])");
  std::vector<std::string> options;
  for (std::sregex_iterator at(help.begin(), help.end(), kOption), end; at != end; ++at)
    options.push_back((*at)[1]);
  return options;
}

/// What cifar_mpi_train prints about these words, parsed in this process: a program would load its libraries for each.
Outcome parsed_by_train(std::vector<std::string> words) {
  words.insert(words.begin(), "cifar_mpi_train");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  CLI::App cli("", words.front());
  app::TrainOptions options;
  options.add_to(cli);
  testing::internal::CaptureStderr();
  const auto code =
      app::parse(cli, static_cast<int>(argv.size()), argv.data(), [&] { config::check(options.config()); });
  return {code.value_or(0), testing::internal::GetCapturedStderr()};
}

TEST_F(Programs, RefuseInEveryNumericOptionWhatIsNoNumber) {
  const auto words = {"", "nan", "1x"};
  const std::vector<std::string> of_train = numeric_options(run_command(kTrain + " --help-all").output);
  EXPECT_GE(of_train.size(), 18u);
  for (const std::string& option : of_train) {
    for (const char* word : words) {
      SCOPED_TRACE(option + " " + word);
      expect_refusal(parsed_by_train({option, word}), 2, option);
    }
  }
  const std::vector<std::pair<std::string, std::size_t>> programs{{kEval, 3},
                                                                  {kPack + " --out " + file("never.h5"), 4},
                                                                  {kBench + " step", 5},
                                                                  {kBench + " allreduce", 1}};
  for (const auto& [program, at_least] : programs) {
    const std::vector<std::string> options = numeric_options(run_command(program + " --help").output);
    EXPECT_GE(options.size(), at_least) << program;
    for (const std::string& option : options) {
      // --classes and --seed of pack are for synthetic sets only.
      const std::string rest =
          option != "--synthetic" && program.find("pack") != std::string::npos ? " --synthetic 8 " : " ";
      for (const char* word : words) {
        SCOPED_TRACE(program + rest + option + " " + word);
        expect_refusal(run_command(program + rest + option + " " + in_quotes(word)), 2, option);
      }
    }
  }
}

}  // namespace
}  // namespace cifar_mpi::test
