// SPDX-License-Identifier: Apache-2.0
// Stands in for AscendCL: device 0 has its matrix units 12 and its vector units 64 percent busy,
// and device 1 does not answer.
#include <cstring>

extern "C" {

const char* aclrtGetSocName() { return "Ascend910B2"; }
int aclrtGetVersion(int* major, int* minor, int* patch) {
  return *major = 1, *minor = 15, *patch = 0, 0;
}
int aclsysGetCANNVersion(int package, void* version) {
  std::strcpy(static_cast<char*>(version), "8.0.RC3");
  return package == 0 ? 0 : 100000;
}
int aclrtGetDeviceUtilizationRate(int device, int* rates) {
  rates[0] = 12;
  rates[1] = 64;
  return device == 0 ? 0 : 507899;
}

}  // extern "C"
