// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/comm.h>

#include "expect_error.h"
#include "ranks.h"

namespace drivetrain {
namespace {

TEST(Collectives, SmokeOnFourRanks) {
  run_ranks(4, [](World world) {
    const auto mine = torch::full({3}, world.rank() + 1.0);
    EXPECT_TRUE(all_reduce(world, mine).equal(torch::full({3}, 10.0)));
    EXPECT_TRUE(gather(world, torch::full({world.rank()}, world.rank()))
                    .equal(torch::tensor({1, 2, 2, 3, 3, 3})));
    EXPECT_EQ(broadcast_object(world, std::string(world.is_main() ? "hello" : "")), "hello");
    barrier(world);
    auto flat = torch::full({2}, 4.0 * world.rank());
    auto pending = world.all_reduce_async(flat, ReduceOp::mean);
    pending.wait();
    EXPECT_TRUE(flat.equal(torch::full({2}, 6.0)));
  });
}

}  // namespace
}  // namespace drivetrain
