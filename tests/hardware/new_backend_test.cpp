// SPDX-License-Identifier: Apache-2.0
// The backend that tools/new-backend has made as "toy", over the devices of the plugin "sim". This
// program also holds the registry's table as the tool has edited it, which comes before the
// library's own; so the suite in contract_*_test.cpp meets it as users of an edited library would.
#include <torch/torch.h>

#include <drivetrain_sim/sim.h>

#include "contract.h"
#include "hardware/toy.h"

namespace drivetrain {
namespace {

[[maybe_unused]] const bool loaded =
    (sim::load({.devices = 2, .memory_bytes = int64_t{256} << 20}), true);

TEST(NewBackend, IsInTheRegistryWithItsOwnClass) {
  const auto toy = make_accelerator("toy");
  EXPECT_NE(dynamic_cast<ToyAccelerator*>(toy.get()), nullptr);
  EXPECT_EQ(toy->facts().priority, 95);
  EXPECT_EQ(toy->device_count(), 2);
  EXPECT_EQ(toy->get_device_name(1), "toy device 1");
}

TEST(NewBackend, IsDetectedByItsPriority) {
  clear_accelerator();
  EXPECT_EQ(get_accelerator()->name(), "toy");
  clear_accelerator();
}

TEST(NewBackend, SaysWhatItsVendorsLibraryDoesNotTell) {
  EXPECT_EQ(make_accelerator("toy")->get_version(), "");
  EXPECT_ERROR(make_accelerator("toy")->utilization(), HardwareError,
               "toy: utilization is not supported: libsimrt.so, or simGetUtilization in it");
}

}  // namespace
}  // namespace drivetrain
