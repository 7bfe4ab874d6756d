// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous.h"

#include <drivetrain/error.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <atomic>

#include "comm/gloo.h"
#include "comm/state.h"
#include "core/rank_label.h"
#include "core/text.h"

#include <unistd.h>

namespace drivetrain::comm {

using core::str;

namespace {

c10::intrusive_ptr<c10d::Store> connect(const ProcessFacts& facts, const Config& config) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(facts.main_port);
  options.isServer = facts.rank == 0 && !facts.store_is_served;
  options.numWorkers = facts.world_size;
  options.waitWorkers = false;
  options.timeout = config.timeout;
  options.multiTenant = true;
  // The store closes what it is given: a duplicate, so that a later World can serve there again.
  if (facts.store_fd && options.isServer) options.masterListenFd = ::dup(*facts.store_fd);
  return c10::make_intrusive<c10d::TCPStore>(facts.main_address, options);
}

}  // namespace

World join(const c10::intrusive_ptr<c10d::Store>& store, const ProcessFacts& facts,
           const Config& config) {
  core::set_rank_label(facts.rank, facts.world_size);
  std::unique_ptr<Transport> transport;
  if (facts.world_size > 1)
    transport = make_gloo(c10::make_intrusive<c10d::PrefixStore>("gloo", store), facts.rank,
                          facts.world_size, "127.0.0.1", config.timeout);
  return World(std::make_shared<State>(facts, config, std::move(transport)));
}

}  // namespace drivetrain::comm

namespace drivetrain {

World World::single() { return comm::join(nullptr, ProcessFacts(), Config()); }

World World::from_environment(const Config& config) {
  static std::atomic<int> generation{0};
  const ProcessFacts facts = ProcessFacts::from_environment();
  if (facts.world_size == 1) return comm::join(nullptr, facts, config);
  const auto store = comm::connect(facts, config);
  const std::string prefix = core::str("drivetrain/", facts.run_id, "/", generation++);
  return comm::join(c10::make_intrusive<c10d::PrefixStore>(prefix, store), facts, config);
}

}  // namespace drivetrain
