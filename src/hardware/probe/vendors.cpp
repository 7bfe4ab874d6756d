// SPDX-License-Identifier: Apache-2.0
// Facts of the vendors' libraries, by entry points that are stable parts of their ABIs.
#include <dlfcn.h>

#include <array>

#include "core/text.h"
#include "hardware/probe/document.h"

namespace drivetrain::probe {
namespace {

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

template <class Function>
Function find(void* library, const char* name) {
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

// "2.27.5"; 22705 as NCCL numbers it since 2.9.
std::string nccl_version() {
  auto* get = find<int (*)(int*)>(RTLD_DEFAULT, "ncclGetVersion");
  if (get == nullptr)
    get = find<int (*)(int*)>(dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD), "ncclGetVersion");
  int number = 0;
  if (get == nullptr || get(&number) != 0) return "";
  return number < 10000 ? core::str(number / 1000, ".", number % 1000 / 100, ".", number % 100)
                        : core::str(number / 10000, ".", number % 10000 / 100, ".", number % 100);
}

Json cuda_facts(int devices) {
  Json facts = Json::object();
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  const auto version = find<int (*)(int*)>(library, "cuDriverGetVersion");
  int number = 0;
  if (version != nullptr && version(&number) == 0)
    facts["driver_runtime"] = core::str(number / 1000, ".", number % 1000 / 10);
  const auto can_access = find<int (*)(int*, int, int)>(library, "cuDeviceCanAccessPeer");
  if (can_access == nullptr || devices < 2) return facts;
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
