#include "report/json.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace cifar_mpi::report {
namespace {

TEST(JsonObject, ReadsNumbersTextsAndObjectsOfThem) {
  JsonObject object;
  ASSERT_EQ(object.parse(R"( {"a":-1.5e2,"b":{"c":{"d":7}},"e":null,"f":"","g":true,"h":{}} )"), "");
  EXPECT_EQ(object.number("a"), -150.0);
  EXPECT_EQ(object.number("b.c.d"), 7.0);
  EXPECT_TRUE(std::isnan(object.number("e")));
  EXPECT_TRUE(std::isnan(object.number("f")));
  EXPECT_TRUE(std::isnan(object.number("nothing")));
  EXPECT_EQ(object.text("a"), "");
  EXPECT_EQ(object.find("nothing"), nullptr);
  EXPECT_NE(object.find("e"), nullptr);
  EXPECT_EQ(object.members().size(), 5u);
}

TEST(JsonObject, ReadsEscapes) {
  JsonObject object;
  ASSERT_EQ(object.parse(R"({"a":"\"\\\/\b\f\n\r\té€😀"})"), "");
  EXPECT_EQ(object.text("a"), "\"\\/\b\f\n\r\t\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
}

TEST(JsonObject, RefusesWhatIsNoneAndSaysWhere) {
  JsonObject object;
  EXPECT_EQ(object.parse(""), "expected { at character 1");
  EXPECT_EQ(object.parse("[1]"), "expected { at character 1");
  EXPECT_EQ(object.parse(R"({"a":1)"), "expected , or } at character 7");
  EXPECT_EQ(object.parse(R"({"a":1}{)"), "expected nothing more at character 8");
  EXPECT_EQ(object.parse(R"({"a":["b"]})"), "expected a number at character 7");
  EXPECT_EQ(object.parse(R"({"a":[1,]})"), "expected a number at character 9");
  EXPECT_EQ(object.parse(R"({"a":[1,2})"), "expected , or ] at character 10");
  EXPECT_EQ(object.parse(R"({"a":[1)"), "expected , or ] at character 8");
  EXPECT_EQ(object.parse(R"({"a":[1,1e999]})"), "expected a number of double precision at character 9");
  EXPECT_EQ(object.parse(R"({"a":NaN})"), "expected a value at character 6");
  EXPECT_EQ(object.parse(R"({"a":-Infinity})"), "expected a number of double precision at character 6");
  EXPECT_EQ(object.parse(R"({"a":1e999})"), "expected a number of double precision at character 6");
  EXPECT_EQ(object.parse(R"({"a":1,"a":2})"), "expected no second \"a\" at character 11");
  EXPECT_EQ(object.parse("{\"a\":\"\n\"}"), "expected the end of a text at character 7");
  EXPECT_EQ(object.parse(R"({"a":"\x"})"), "expected a valid escape at character 8");
  EXPECT_NE(object.parse(R"({"a":"\ud800"})"), "") << "half a character";
  EXPECT_NE(object.parse(R"({"a":"\ud800A"})"), "") << "half a character";
}

TEST(JsonObject, HoldsItsLimits) {
  JsonObject object;
  EXPECT_EQ(object.parse(R"({"a":{"a":{"a":{"a":1}}}})"), "");
  EXPECT_NE(object.parse(R"({"a":{"a":{"a":{"a":{"a":1}}}}})"), "");
  std::string deep, many;
  for (int i = 0; i < 100000; ++i) deep += "{\"a\":";
  EXPECT_NE(object.parse(deep), "");
  for (int i = 0; i < 65; ++i) many += (i == 0 ? "{\"" : ",\"") + std::to_string(i) + "\":1";
  EXPECT_EQ(object.parse(many + "}"), "expected no more than 64 members at character 444");
}

TEST(JsonText, StandsInAnyPage) {
  EXPECT_EQ(json_text("a\"b\\c\n"), R"("a\u0022b\u005cc\u000a")");
  EXPECT_EQ(json_text("</script><!--&"), R"("\u003c/script\u003e\u003c!--\u0026")");
  EXPECT_EQ(json_text("\xC3\xA9\xFF\xE2\x80\xA8"), "\"\xC3\xA9\\ufffd\\u2028\"");
  JsonObject object;
  ASSERT_EQ(object.parse("{\"a\":" + json_text("a\"\\</script>\xE2\x80\xA9") + "}"), "");
  EXPECT_EQ(object.text("a"), "a\"\\</script>\xE2\x80\xA9");
}

}  // namespace
}  // namespace cifar_mpi::report
