#include "page/text.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace cifar_mpi::page {
namespace {

TEST(Html, LetsNoTextBecomeMarkup) {
  EXPECT_EQ(html("<b a=\"1\" c='2'>&amp;"), "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;amp;");
  EXPECT_EQ(html("</script><script>alert(1)</script>").find('<'), std::string::npos);
}

TEST(Html, ShowsWhatWouldSteerOrTurn) {
  EXPECT_EQ(html("a\x1b[31m\xFF\xE2\x80\xAE\nb"), "a\\x1b[31m\\xff\\xe2\\x80\\xae\\nb");
  EXPECT_EQ(html("a\n<b>\n", true), "a\n&lt;b&gt;\n");
}

TEST(Figures, HaveThreeDigitsThatCount) {
  EXPECT_EQ(figure(0.0), "0");
  EXPECT_EQ(figure(2.623), "2.62");
  EXPECT_EQ(figure(59.5), "59.50");
  EXPECT_EQ(figure(123.456), "123.5");
  EXPECT_EQ(figure(5012.3), "5012");
  EXPECT_EQ(figure(0.01234), "0.0123");
  EXPECT_EQ(figure(1e-7), "1e-07");
  EXPECT_EQ(figure(std::nan("")), "?");
  EXPECT_EQ(percent(0.595), "59.50 %");
  EXPECT_EQ(duration(4.25), "4.2 s");
  EXPECT_EQ(duration(42.0), "42 s");
  EXPECT_EQ(duration(725.0), "12 min 5 s");
  EXPECT_EQ(duration(11220.0), "3 h 7 min");
  EXPECT_EQ(duration(1e100), "?");
}

TEST(PlaceClass, IsAShareToATenThousandth) {
  EXPECT_EQ(place_class(0.0), "p0");
  EXPECT_EQ(place_class(0.1234), "p12 q34");
  EXPECT_EQ(place_class(0.07), "p7");
  EXPECT_EQ(place_class(0.99999), "p100");
  EXPECT_EQ(place_class(7.0), "p100");
  EXPECT_EQ(place_class(-7.0), "p0");
  EXPECT_EQ(place_class(std::nan("")), "p0");
}

TEST(Shortened, CutsBetweenCharacters) {
  EXPECT_EQ(shortened("abc", 3), "abc");
  EXPECT_EQ(shortened("abcd", 3), "abc…");
  EXPECT_EQ(shortened("ab\xE2\x82\xAC\xE2\x82\xAC", 3), "ab\xE2\x82\xAC…");
}

}  // namespace
}  // namespace cifar_mpi::page
