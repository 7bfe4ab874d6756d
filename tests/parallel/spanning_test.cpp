// SPDX-License-Identifier: Apache-2.0
// Each rank's model lives on two devices.
#include <torch/torch.h>

#include "models.h"
#include "spanning_model.h"

namespace drivetrain::parallel {
namespace {

TEST(Spanning, TwoDevicesARankTrainAsOneProcess) {
  if (here::is_cpu()) GTEST_SKIP() << "the CPU is one device";
  for (const int n : {1, 2, 3, 4}) {
    const auto all = on_ranks(n, [&](World world) {
      const auto device = [&](int i) {
        return at::Device(here::device().type(),
                          static_cast<at::DeviceIndex>(2 * world.rank() + i));
      };
      return train_spanning(world, device(0), device(1));
    });
    for (const auto& one : all) expect_equal(one, all[0]);
    if (n == 1) expect_equal(all[0], train_whole(n));
    expect_close(all[0], train_whole(n));
  }
}

}  // namespace
}  // namespace drivetrain::parallel
