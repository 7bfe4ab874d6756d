// SPDX-License-Identifier: Apache-2.0
// Stands in for NVIDIA's monitoring library, whose numbering is not the driver's: device 1 of
// vendors/cuda.cpp is 37 percent busy, and device 0 is not to be found.
#include <cstring>

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** handle) {
  static int device = 37;
  *handle = &device;
  return std::strcmp(uuid, "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f") == 0 ? 0 : 6;
}
int nvmlDeviceGetUtilizationRates(void* handle, unsigned* gpu_and_memory) {
  gpu_and_memory[0] = static_cast<unsigned>(*static_cast<int*>(handle));
  gpu_and_memory[1] = 99;
  return 0;
}

}  // extern "C"
