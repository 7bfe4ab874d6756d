// SPDX-License-Identifier: Apache-2.0
// One of several processes, each with a model on two devices of its own. Fails unless all ranks
// end with the same bits, and those within 1e-6 of one process on the CPU.
#include <drivetrain/comm.h>
#include <torch/torch.h>

#include <iostream>

#include "spanning_model.h"

namespace {

void run() {
  using namespace drivetrain;  // NOLINT(google-build-using-namespace)
  const auto accelerator = get_accelerator();
  if (accelerator->device_count() != 2)
    throw std::runtime_error(accelerator->name() + " has another number of devices than 2");
  const World world = World::from_environment();
  const auto device = [&](int index) {
    return at::Device(accelerator->device_type(), static_cast<at::DeviceIndex>(index));
  };
  const auto ours = parallel::train_spanning(world, device(0), device(1));
  const auto whole = parallel::train_whole(world.world_size());
  for (size_t i = 0; i < ours.size(); ++i) {
    if (!at::allclose(ours[i], whole[i], 1e-6, 1e-6))
      throw std::runtime_error("parameter " + std::to_string(i) +
                               " is another than in one process");
    if (!at::equal(broadcast(world, ours[i], 0), ours[i]))
      throw std::runtime_error("parameter " + std::to_string(i) + " is another than on rank 0");
  }
  std::cout << "rank " << world.rank() << " of " << world.world_size() << " agrees\n";
}

}  // namespace

int main() {
  try {
    run();
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
