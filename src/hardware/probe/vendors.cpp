// SPDX-License-Identifier: Apache-2.0
// Facts of the vendors' libraries, by entry points that are stable parts of their ABIs.
#include <array>

#include "core/text.h"
#include "hardware/probe/document.h"
#include "hardware/vendor_library.h"

namespace drivetrain::probe {
namespace {

using hardware::VendorLibrary;

// c10d compiles a backend in or not; its class then is there or not.
struct Communication {
  const char* name;
  const char* virtual_table;
};
constexpr std::array kCommunication = {
    Communication{"gloo", "_ZTVN4c10d16ProcessGroupGlooE"},
    Communication{"nccl", "_ZTVN4c10d16ProcessGroupNCCLE"},
    Communication{"xccl", "_ZTVN4c10d16ProcessGroupXCCLE"},
    Communication{"mpi", "_ZTVN4c10d15ProcessGroupMPIE"},
    Communication{"ucc", "_ZTVN4c10d15ProcessGroupUCCE"},
};

// "2.27.5"; 22705 as NCCL numbers it since 2.9. LibTorch may hold NCCL in a library of its own.
std::string nccl_version() {
  auto* get = reinterpret_cast<int (*)(int*)>(dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  const VendorLibrary library({"libnccl.so.2"}, RTLD_LAZY | RTLD_NOLOAD);
  if (get == nullptr) library.find("ncclGetVersion", get);
  int number = 0;
  if (get == nullptr || get(&number) != 0) return "";
  return number < 10000 ? core::str(number / 1000, ".", number % 1000 / 100, ".", number % 100)
                        : core::str(number / 10000, ".", number % 10000 / 100, ".", number % 100);
}

Json cuda_facts(int devices) {
  Json facts = Json::object();
  const VendorLibrary library({"libcuda.so.1"});
  int (*version)(int*) = nullptr;
  int (*can_access)(int*, int, int) = nullptr;
  int number = 0;
  if (library.find("cuDriverGetVersion", version) && version(&number) == 0)
    facts["driver_runtime"] = core::str(number / 1000, ".", number % 1000 / 10);
  if (!library.find("cuDeviceCanAccessPeer", can_access) || devices < 2) return facts;
  for (int from = 0; from < devices; ++from) {
    Json reached = Json::array();
    for (int to = 0; to < devices; ++to) {
      int can = 0;
      if (from != to && can_access(&can, from, to) == 0 && can != 0) reached.push_back(to);
    }
    facts["peers"].push_back({{"device", from}, {"reaches", reached}});
  }
  return facts;
}

}  // namespace

Json communication_backends() {
  Json all = Json::array();
  for (const auto& [name, table] : kCommunication) {
    const bool is_built = dlsym(RTLD_DEFAULT, table) != nullptr;
    const bool is_nccl = std::string(name) == "nccl";
    all.push_back({{"name", name},
                   {"built", is_built},
                   {"version", is_built && is_nccl ? nccl_version() : ""}});
  }
  return all;
}

Json vendor_facts(const std::string& backend, int devices) {
  return backend == "cuda" ? cuda_facts(devices) : Json::object();
}

}  // namespace drivetrain::probe
