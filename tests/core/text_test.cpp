// SPDX-License-Identifier: Apache-2.0
#include "core/text.h"

#include <gtest/gtest.h>

namespace drivetrain::core {
namespace {

TEST(Text, JoinsAndSplits) {
  EXPECT_EQ(join(std::vector<std::string>{}), "");
  EXPECT_EQ(join(std::vector<std::string>{"a", "b"}), "a, b");
  EXPECT_EQ(split("a,,b", ','), (std::vector<std::string>{"a", "", "b"}));
  EXPECT_EQ(split("", ','), std::vector<std::string>{""});
}

TEST(Text, NearestSuggestsOnlyWhatIsNear) {
  const std::vector<std::string> names = {"cuda", "cpu", "xpu"};
  EXPECT_EQ(nearest("cud", names), "cuda");
  EXPECT_EQ(nearest("xpuu", names), "xpu");
  EXPECT_EQ(nearest("tensor", names), "");
}

}  // namespace
}  // namespace drivetrain::core
