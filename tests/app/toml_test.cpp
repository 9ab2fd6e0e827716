#include "app/toml.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "support/errors.hpp"

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
      {"0.12345678901234567", "0.12345678901234567"},
      {"true", "true"},
      {"\"\"", ""},
      {"''", ""},
      {"\"a # b\"", "a # b"},
      {"'a \"#\\ b'", "a \"#\\ b"},
      {"\"[x]\"", "[x]"},
      {R"("\b\t\n\f\r\"\\")", "\b\t\n\f\r\"\\"},
      {R"("\u00e4\u20AC\U0001F600\u0001")", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\x01"},
      {"\t7\t# a comment", "7"},
      {"7.5# \xc3\xa4", "7.5"},
      {"\"7\"# a comment", "7"},
  };
  for (const auto& [written, meant] : cases) EXPECT_EQ(value_of(written), meant) << written;
}

TEST(Toml, ReadsLinesAsEditorsLeaveThem) {
  const auto items = parse_toml(
      "\xef\xbb\xbf"
      "b=12\r\n# \xc3\xa4\r\n\r\n  a-b=1\r\n\tc\t=\t2.5",
      "file");
  ASSERT_EQ(items.size(), 3u);
  EXPECT_EQ(items[0].key, "b");
  EXPECT_EQ(items[0].value, "12");
  EXPECT_EQ(items[0].line, 1);
  EXPECT_EQ(items[1].key, "a-b");
  EXPECT_EQ(items[1].value, "1");
  EXPECT_EQ(items[1].line, 4);
  EXPECT_EQ(items[2].value, "2.5");
  EXPECT_EQ(items[2].line, 5);
  EXPECT_TRUE(parse_toml("", "file").empty());
}

TEST(Toml, WritesEveryTextSoThatItReadsBack) {
  std::string all = "\xc3\xa4\xe2\x82\xac";
  for (int c = 1; c < 128; ++c) all += static_cast<char>(c);
  EXPECT_EQ(value_of(toml_text(all)), all);
  EXPECT_EQ(value_of(toml_text("\\u0041 \\n # 'x' \"y\" ")), "\\u0041 \\n # 'x' \"y\" ");
  EXPECT_EQ(toml_text(all).find('\n'), std::string::npos);
}

TEST(Toml, NamesFileAndLineOfWhatItRefuses) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"lr =", "key = value"},
      {"lr = # 1", "key = value"},
      {"lr", "key = value"},
      {"= 1", "key = value"},
      {"= global", "expected key = value"},
      {"a.b = 1", "key = value"},
      {"\"l r\" = 1", "'l r' is not an option name"},
      {"\"\xc3\xa4\" = 1", "is not an option name"},
      {"[train]", "sections"},
      {"[[train]]", "lists"},
      {"lr = [1, 2]", "lists"},
      {"lr = {x = 1}", "tables"},
      {"lr = 1979-05-27", "dates"},
      {"lr = 1, 2", "saw ','"},
      {"lr = 1 2", "saw '2'"},
      {"lr = 1_000", "must be decimal, like 1000 or 1e-3, not 1_000"},
      {"lr = 0x1F", "must be decimal"},
      {"lr = inf", "must be decimal"},
      {"lr = 18446744073709551616", "64 bits; write a number as large as this in quotes"},
      {"lr = 1e999", "'1e999' could not be interpreted as a value; the number is too large"},
      {"model = fast94", "some file:3: a text needs quotes: model = \"fast94\""},
      {"\tdata=/a b/c.h5 # here\r", "a text needs quotes: data = \"/a b/c.h5\""},
      {"lr = 0.5,0.75", "saw ','; expected key = value, with texts in \"quotes\""},
      {"; ini", "key = value"},
      {"lr = \"1\" 2", "saw '2'"},
      {"lr = \"1", "end-of-file"},
      {"lr = '1", "end-of-file"},
      {"lr = \"C:\\data\"", "unknown escape"},
      {"lr = \"\\u0000\"", "holds a NUL"},
      {"lr = \"\\ud800\"", "surrogates"},
      {"lr = \"\xff\"", "utf-8"},
      {std::string("lr = \"\0\"", 8), "control"},
      {"seed = 2", "cannot redefine existing integer 'seed'; give each option once"},
  };
  for (const auto& [line, part] : cases) {
    SCOPED_TRACE(line);
    expect_error(ErrorKind::usage, {"some file:3: ", part},
                 [&line = line] { parse_toml("seed = 1\n\n" + line, "some file"); });
  }
}

TEST(Toml, RefusesTheFirstOfSeveralLines) {
  expect_error(ErrorKind::usage, {"file:2: "}, [] { parse_toml("a = 1\nz = []\nb = []\n", "file"); });
  expect_error(ErrorKind::usage, {"file:2: ", "give each option once"},
               [] { parse_toml("a = true\na = true\n", "file"); });
}

}  // namespace
}  // namespace cifar_mpi::app
