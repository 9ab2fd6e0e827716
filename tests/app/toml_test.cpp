#include "app/toml.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "support/temp_dir.hpp"

namespace cifar_mpi::app {
namespace {

std::string value_of(const std::string& written) {
  const std::vector<TomlItem> items = parse_toml("key = " + written + "\n", "file");
  return items.size() == 1 && items[0].key == "key" ? items[0].value : "(not one item)";
}

TEST(Toml, ReadsEveryKindOfValue) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"1", "1"},
      {"-1e-3", "-1e-3"},
      {"true", "true"},
      {"runs/a-b_c.d", "runs/a-b_c.d"},
      {"\"\"", ""},
      {"''", ""},
      {"\"a # b\"", "a # b"},
      {"'a \"#\\ b'", "a \"#\\ b"},
      {"\"[x]\"", "[x]"},
      {R"("\b\t\n\f\r\"\\")", "\b\t\n\f\r\"\\"},
      {R"("\u00e4\u20AC\U0001F600\u0001")", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\x01"},
      {"\t7\t# a comment", "7"},
      {"\"7\"# a comment", "7"},
  };
  for (const auto& [written, meant] : cases) EXPECT_EQ(value_of(written), meant) << written;
}

TEST(Toml, ReadsLinesAsEditorsLeaveThem) {
  const auto items = parse_toml("\xef\xbb\xbf# first\r\n\r\n  a-b=1\r\n; ini\n\tc\t=\t2", "file");
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[0].key, "a-b");
  EXPECT_EQ(items[0].value, "1");
  EXPECT_EQ(items[0].line, 3);
  EXPECT_EQ(items[1].key, "c");
  EXPECT_EQ(items[1].line, 5);
  EXPECT_TRUE(parse_toml("", "file").empty());
}

TEST(Toml, WritesEveryByteSoThatItReadsBack) {
  std::string all;
  for (int c = 1; c < 256; ++c) all += static_cast<char>(c);
  EXPECT_EQ(value_of(toml_text(all)), all);
  EXPECT_EQ(value_of(toml_text("\\u0041 \\n # 'x' \"y\" ")), "\\u0041 \\n # 'x' \"y\" ");
  EXPECT_EQ(toml_text(all).find('\n'), std::string::npos);
}

TEST(Toml, NamesFileAndLineOfWhatItRefuses) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"lr =", "'lr' has no value"},
      {"lr = # 1", "'lr' has no value"},
      {"lr", "key = value"},
      {"= 1", "key = value"},
      {"a.b = 1", "key = value"},
      {"\"lr\" = 1", "key = value"},
      {"[train]", "sections"},
      {"lr = [1, 2]", "lists"},
      {"lr = {x = 1}", "tables"},
      {"lr = 1, 2", "lists"},
      {"lr = 1 2", "unexpected text after the value of 'lr': 2"},
      {"lr = 1#2", "in quotes"},
      {"lr = \"1\" 2", "unexpected text"},
      {"lr = \"\"\"1\"\"\"", "unexpected text"},
      {"lr = \"1", "no closing quote"},
      {"lr = \"1\\\"", "no closing quote"},
      {"lr = '1", "no closing quote"},
      {"lr = \"C:\\data\"", "unknown escape '\\d'"},
      {"lr = \"\\u12\"", "unknown escape"},
      {"lr = \"\\u0000\"", "unknown escape"},
      {"lr = \"\\ud800\"", "unknown escape"},
      {"lr = \"\\U00110000\"", "unknown escape"},
      {"lr = \"\\", "unknown escape"},
      {std::string("lr = \"\0\"", 8), "control"},
      {"seed = 2", "line 1 has it already"},
  };
  for (const auto& [line, part] : cases) {
    SCOPED_TRACE(line);
    expect_error(ErrorKind::usage, {"some file:3: ", part},
                 [&line = line] { parse_toml("seed = 1\n\n" + line, "some file"); });
  }
}

}  // namespace
}  // namespace cifar_mpi::app
