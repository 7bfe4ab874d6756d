// SPDX-License-Identifier: Apache-2.0
// split_between_processes, with the values of Accelerate's own tests.
#include <torch/torch.h>

#include <drivetrain/drivetrain.h>
#include <gtest/gtest.h>

#include <numeric>

#include "expect_error.h"
#include "ranks.h"

namespace drivetrain {
namespace {

using Ints = std::vector<int>;

// What each rank gets of 0 .. length - 1.
std::vector<Ints> shares(int world_size, int length, bool apply_padding = false) {
  std::vector<Ints> all(world_size);
  Ints inputs(length);
  std::iota(inputs.begin(), inputs.end(), 0);
  run_ranks(world_size, [&](const World& world) {
    const Accelerator accelerator({.world = world});
    all[world.rank()] = accelerator.split_between_processes(inputs, apply_padding);
    const auto tensor = accelerator.split_between_processes(here::tensor(inputs), apply_padding);
    EXPECT_TRUE(torch::equal(tensor, here::tensor(all[world.rank()])));
  });
  return all;
}

Ints sizes(const std::vector<Ints>& all) {
  Ints out;
  for (const Ints& one : all) out.push_back(static_cast<int>(one.size()));
  return out;
}

TEST(SplitBetweenProcesses, TheFirstRanksGetOneMore) {
  EXPECT_EQ(sizes(shares(1, 17)), Ints({17}));
  EXPECT_EQ(sizes(shares(2, 17)), Ints({9, 8}));
  EXPECT_EQ(sizes(shares(4, 17)), Ints({5, 4, 4, 4}));
  EXPECT_EQ(sizes(shares(7, 17)), Ints({3, 3, 3, 2, 2, 2, 2}));
  EXPECT_EQ(shares(3, 5), (std::vector<Ints>{{0, 1}, {2, 3}, {4}}));
}

TEST(SplitBetweenProcesses, FewerElementsThanRanks) {
  EXPECT_EQ(shares(4, 2), (std::vector<Ints>{{0}, {1}, {}, {}}));
  EXPECT_EQ(shares(3, 0), (std::vector<Ints>{{}, {}, {}}));
}

TEST(SplitBetweenProcesses, PaddingRepeatsTheLastElement) {
  EXPECT_EQ(shares(3, 5, true), (std::vector<Ints>{{0, 1}, {2, 3}, {4, 4}}));
  EXPECT_EQ(shares(4, 2, true), (std::vector<Ints>{{0}, {1}, {1}, {1}}));
  EXPECT_EQ(shares(2, 0, true), (std::vector<Ints>{{}, {}}));
}

TEST(SplitBetweenProcesses, MapsOfEqualLengths) {
  run_ranks(4, [](const World& world) {
    const Accelerator accelerator({.world = world});
    const std::map<std::string, std::vector<int>> inputs = {{"a", {1, 2, 3, 4, 5, 6, 7, 8}},
                                                            {"b", {8, 7, 6, 5, 4, 3, 2, 1}}};
    const auto mine = accelerator.split_between_processes(inputs);
    if (world.rank() == 3) {
      EXPECT_EQ(mine.at("a"), Ints({7, 8}));
      EXPECT_EQ(mine.at("b"), Ints({2, 1}));
    }
  });
  const std::map<std::string, std::vector<int>> wrong = {{"a", {1, 2}}, {"b", {1}}};
  EXPECT_ERROR(Accelerator().split_between_processes(wrong), std::invalid_argument,
               "the values of a map to split have 2 and 1 elements");
}

TEST(SplitBetweenProcesses, RefusesAScalar) {
  EXPECT_ERROR(Accelerator().split_between_processes(here::ones({})), std::invalid_argument,
               "a 0-dim tensor cannot be split");
}

}  // namespace
}  // namespace drivetrain
