// SPDX-License-Identifier: Apache-2.0
#include "comm/comm_backends.h"

#include <drivetrain/comm.h>
#include <drivetrain/error.h>
#include <drivetrain/hardware.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <map>
#include <mutex>

#include "comm/c10d_transport.h"
#include "core/text.h"
#ifdef DRIVETRAIN_HAS_NCCL
#include "comm/nccl.h"
#endif

namespace drivetrain {

using core::str;

namespace {

// Those that LibTorch itself brings.
std::map<std::string, CommBackendFactory> builtin_factories() {
  std::map<std::string, CommBackendFactory> factories;
#ifdef DRIVETRAIN_HAS_NCCL
  factories.emplace("nccl", &comm::make_nccl);
#endif
  return factories;
}

struct CommBackends {
  std::mutex mutex;
  std::map<std::string, CommBackendFactory> factories = builtin_factories();
};

CommBackends& comm_backends() {
  static auto* const all = new CommBackends;  // Not destroyed: worlds may end at exit.
  return *all;
}

CommBackendFactory factory_of(const std::string& name) {
  std::lock_guard lock(comm_backends().mutex);
  const auto found = comm_backends().factories.find(name);
  return found == comm_backends().factories.end() ? nullptr : found->second;
}

}  // namespace

void register_comm_backend(const std::string& name, CommBackendFactory make) {
  if (name == "gloo")
    throw ConfigError("comm",
                      "communication backend \"gloo\" is built in and serves host memory; "
                      "allowed: another name, as an accelerator's communication_backend()");
  if (!make)
    throw ConfigError("comm", str("communication backend \"", name,
                                  "\" has no factory; allowed: a "
                                  "function that makes a c10d backend; pass one"));
  std::lock_guard lock(comm_backends().mutex);
  if (!comm_backends().factories.emplace(name, std::move(make)).second)
    throw ConfigError("comm", str("communication backend \"", name,
                                  "\" is registered already; "
                                  "allowed: each name once; choose another"));
}

std::vector<std::string> registered_comm_backends() {
  std::vector<std::string> names = {"gloo"};
  std::lock_guard lock(comm_backends().mutex);
  for (const auto& [name, factory] : comm_backends().factories) names.push_back(name);
  return names;
}

namespace comm {

std::unique_ptr<Transport> make_device_transport(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const ProcessFacts& facts, Milliseconds timeout,
                                                 at::DeviceType type) {
  const std::string name = accelerator_of(type)->communication_backend();
  const CommBackendFactory make = factory_of(name);
  if (!make) return nullptr;
  const auto own = c10::make_intrusive<c10d::PrefixStore>(str("backend/", name), store);
  try {
    return std::make_unique<C10dTransport>(make(own, facts.rank, facts.world_size, timeout));
  } catch (const std::exception& error) {
    throw CommError(str("communication backend \"", name,
                        "\" cannot be made: ", core::split(error.what(), '\n').front(),
                        "; allowed: a library that works on this machine; without it registered, "
                        "tensors travel through host memory"));
  }
}

}  // namespace comm
}  // namespace drivetrain
