// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/comm.h>
#include <torch/torch.h>

#include "expect_error.h"
#include "ranks.h"

namespace drivetrain {
namespace {

constexpr int kWorlds[] = {1, 2, 3, 4, 7};

TEST(BroadcastObject, CarriesBytesOfAnyLength) {
  const std::string with_zero("a\0b", 3);
  for (const int size : kWorlds)
    run_ranks(size, [&](World world) {
      for (const std::string& text :
           {std::string(), std::string("x"), with_zero, std::string(100'000, 'y')})
        for (int root = 0; root < world.world_size(); root += 3)
          EXPECT_EQ(broadcast_object(world, world.rank() == root ? text : "mine", root), text);
      EXPECT_ERROR(broadcast_object(world, std::string(), 7), std::invalid_argument,
                   "broadcast_object with root 7");
    });
}

TEST(BroadcastObject, CarriesListsNumbersAndStructs) {
  struct Point {
    int x;
    double y;
    bool operator==(const Point&) const = default;
  };
  run_ranks(3, [](World world) {
    const bool is_main = world.is_main();
    const std::vector<std::string> list = {"", "one", "two words"};
    EXPECT_EQ(broadcast_object(world, is_main ? list : std::vector<std::string>{"other"}), list);
    EXPECT_EQ(broadcast_object(world, is_main ? std::vector<std::string>() : list).size(), 0U);
    EXPECT_EQ(broadcast_object(world, is_main ? 42 : 0), 42);
    EXPECT_EQ(broadcast_object(world, is_main ? Point{1, 2.5} : Point{}), (Point{1, 2.5}));
  });
}

TEST(GatherObject, GivesEveryRanksBytesInOrder) {
  for (const int size : kWorlds)
    run_ranks(size, [size](World world) {
      // Rank 0 has none; the others differ in length.
      const auto all = gather_object(world, std::string(world.rank() * 3, 'a' + world.rank()));
      ASSERT_EQ(all.size(), static_cast<size_t>(size));
      for (int r = 0; r < size; ++r) EXPECT_EQ(all[r], std::string(r * 3, 'a' + r));
      EXPECT_EQ(gather_object(world, "").back(), "");
    });
}

TEST(Barrier, NobodyPassesBeforeTheLastHasCome) {
  for (const int size : kWorlds) {
    std::atomic<int> arrived{0};
    run_ranks(size, [&](World world) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10 * world.rank()));
      ++arrived;
      barrier(world);
      EXPECT_EQ(arrived, size);
    });
  }
}

}  // namespace
}  // namespace drivetrain
