// SPDX-License-Identifier: Apache-2.0
// Stands in for NVIDIA's driver library: two devices of capability 9.0.
#include <cstddef>
#include <cstdio>
#include <cstring>

extern "C" {

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 13010, 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, ordinal < 2 ? 0 : 101; }
int cuDeviceGetName(char* name, int length, int device) {
  std::snprintf(name, static_cast<size_t>(length), "Stand-in %d", device);
  return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = size_t{80} << 30, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 16 ? 132 : attribute == 75 ? 9 : attribute == 76 ? 0 : -1;
  return *value < 0;
}
int cuDeviceGetUuid(unsigned char* uuid, int device) {
  for (int i = 0; i < 16; ++i) uuid[i] = static_cast<unsigned char>(16 * device + i);
  return 0;
}

}  // extern "C"
