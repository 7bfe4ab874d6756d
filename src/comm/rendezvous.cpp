// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous.h"

#include <c10/util/Exception.h>
#include <drivetrain/error.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "comm/address.h"
#include "comm/connect.h"
#include "comm/gloo.h"
#include "comm/sigpipe.h"
#include "comm/state.h"
#include "comm/store_keys.h"
#include "core/rank_label.h"
#include "core/text.h"

#include <fcntl.h>

namespace drivetrain::comm {

using core::str;
using namespace std::chrono_literals;

namespace {

// A refusal ends the meeting for all ranks that are still waiting.
[[noreturn]] void refuse(const StorePtr& store, const std::string& message) {
  put(store, "refused", message);
  throw CommError(message);
}

void announce(const StorePtr& store, const ProcessFacts& facts) {
  const std::string size = std::to_string(facts.world_size);
  if (store->add(str("claim/", facts.rank), 1) > 1)
    refuse(store, str("two processes say that they are rank ", facts.rank,
                      "; allowed: one process a rank; give each its own RANK"));
  // Whoever is first decides the size, and the others compare.
  const auto agreed = store->compareSet("size", std::vector<uint8_t>(),
                                        std::vector<uint8_t>(size.begin(), size.end()));
  if (const std::string other(agreed.begin(), agreed.end()); other != size)
    refuse(store,
           str("rank ", facts.rank, " comes to a world of ", size, " ranks, but others to one of ",
               other, "; allowed: one world size; start all processes with the same WORLD_SIZE"));
  put(store, str("present/", facts.rank), size);
}

[[noreturn]] void raise_missing(const MeetingPlace& place, const std::vector<std::string>& keys,
                                const Config& config) {
  std::vector<std::string> missing;
  for (size_t r = 0; r < keys.size(); ++r)
    if (!place.store->check({keys[r]})) missing.push_back(std::to_string(r));
  throw CommError(str("of ", keys.size(), " ranks, ", core::join(missing), " did not come to ",
                      place.name, " within ", seconds(config.timeout),
                      "; allowed: all ranks within DRIVETRAIN_TIMEOUT; start them all, with one "
                      "MASTER_ADDR and MASTER_PORT"));
}

void call_roll(const MeetingPlace& place, const ProcessFacts& facts, const Config& config) {
  const auto keys = keys_of_ranks("present/", facts.world_size);
  const auto look_for_a_refusal = [&] {
    if (place.store->check({"refused"})) throw CommError(text_at(place.store, "refused"));
  };
  if (!wait_for_keys(place.store, keys, config.timeout, look_for_a_refusal))
    raise_missing(place, keys, config);
}

Connections connect(const MeetingPlace& place, const ProcessFacts& facts, const Config& config,
                    State& state) {
  Connections connections;
  connections.store = place.store;
  connections.serves_store = place.is_served_here;
  connections.watch = std::make_unique<Watch>(place.store->clone(), facts.rank, facts.world_size,
                                              place.name, [&state] { return state.position(); });
  announce(place.store, facts);
  call_roll(place, facts, config);
  const std::string address =
      own_address(facts.main_address, facts.main_port, facts.num_nodes == 1);
  connections.transport =
      connect_all(place, facts, config.timeout, [&](const StorePtr& store, Milliseconds limit) {
        return make_gloo(store, facts.rank, facts.world_size, address, limit);
      });
  return connections;
}

std::string what_of(const c10::Error& error) {
  return core::split(error.what_without_backtrace(), '\n').front();
}

}  // namespace

World join(const MeetingPlace& place, const ProcessFacts& facts, const Config& config) {
  core::set_rank_label(facts.rank, facts.world_size);
  const auto state = std::make_shared<State>(facts, config);
  if (facts.world_size == 1) return World(state);
  const SigpipeBlocked no_sigpipe;
  try {
    state->connect(connect(place, facts, config, *state));
  } catch (const c10::Error& error) {
    throw CommError(str("rank ", facts.rank, " cannot join the others at ", place.name, ": ",
                        what_of(error),
                        "; allowed: ranks that reach each other; look at the "
                        "network, or name an interface in GLOO_SOCKET_IFNAME"));
  }
  return World(state);
}

namespace {

c10d::TCPStoreOptions store_options(const ProcessFacts& facts, const Config& config) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(facts.main_port);
  options.isServer = facts.rank == 0 && !facts.store_is_served;
  options.waitWorkers = false;
  options.timeout = std::max(config.timeout, Milliseconds(1000));
  if (!options.isServer || !facts.store_fd) return options;
  const int port = listening_port(*facts.store_fd);
  if (port != facts.main_port)
    throw ConfigError(str("DRIVETRAIN_STORE_FD listens on port ", port, ", but MASTER_PORT is ",
                          facts.main_port, "; allowed: the same port; unset DRIVETRAIN_STORE_FD"));
  ::fcntl(*facts.store_fd, F_SETFD, FD_CLOEXEC);
  options.masterListenFd = facts.store_fd;
  return options;
}

// A store that this process serves goes on until the process ends: a rank that is quick to make
// its next World must not meet the last one's store.
StorePtr serve(const ProcessFacts& facts, const Config& config) {
  static std::mutex mutex;
  static auto* const served = new std::map<int, StorePtr>;  // By port; not destroyed at exit.
  std::lock_guard lock(mutex);
  StorePtr& store = (*served)[facts.main_port];
  if (!store)
    store = c10::make_intrusive<c10d::TCPStore>(facts.main_address, store_options(facts, config));
  return store->clone();
}

// LibTorch's client waits without a limit for the first answer of whoever listens at the port, and
// only a store gives one. So it is made in a thread that is left behind if need be.
StorePtr reach(const ProcessFacts& facts, const Config& config) {
  const auto options = store_options(facts, config);
  std::promise<StorePtr> promise;
  std::future<StorePtr> reached = promise.get_future();
  std::thread([promise = std::move(promise), address = facts.main_address, options]() mutable {
    try {
      promise.set_value(c10::make_intrusive<c10d::TCPStore>(address, options));
    } catch (...) {  // Thrown again where it is waited for.
      promise.set_exception(std::current_exception());
    }
  }).detach();
  if (reached.wait_for(options.timeout + 1s) == std::future_status::timeout)
    throw CommError(str("rank ", facts.rank, " does not reach rank 0's store at ",
                        facts.main_address, ":", facts.main_port,
                        ": no store answers there within ", seconds(options.timeout),
                        "; allowed: the port that rank 0 serves; look at whether rank 0 runs, or "
                        "whether another program has the port: set MASTER_PORT to a free one"));
  return reached.get();
}

MeetingPlace open_store(const ProcessFacts& facts, const Config& config) {
  const std::string where = str(facts.main_address, ":", facts.main_port);
  const SigpipeBlocked no_sigpipe;
  MeetingPlace place;
  place.is_served_here = facts.rank == 0 && !facts.store_is_served;
  place.name =
      str(facts.store_is_served ? "the launcher's store at " : "rank 0's store at ", where);
  try {
    place.store = place.is_served_here ? serve(facts, config) : reach(facts, config);
  } catch (const c10::Error& error) {
    throw CommError(place.is_served_here
                        ? str("rank 0 cannot serve the store at port ", facts.main_port, ": ",
                              what_of(error), "; allowed: a free port; set MASTER_PORT to another")
                        : str("rank ", facts.rank, " does not reach ", place.name, ": ",
                              what_of(error),
                              "; allowed: the address of rank 0's machine; look at "
                              "MASTER_ADDR, MASTER_PORT and whether rank 0 runs"));
  }
  return place;
}

}  // namespace
}  // namespace drivetrain::comm

namespace drivetrain {

World World::single() { return comm::join({}, ProcessFacts(), Config()); }

World World::from_environment(const Config& config) {
  // Equal on all ranks, as creating a world is collective: two worlds never meet.
  static std::atomic<int> generation{0};
  const ProcessFacts facts = ProcessFacts::from_environment();
  if (facts.world_size == 1) return comm::join({}, facts, config);
  const std::string prefix = core::str("drivetrain/", facts.run_id, "/", generation++);
  comm::MeetingPlace place = comm::open_store(facts, config);
  place.store = c10::make_intrusive<c10d::PrefixStore>(prefix, place.store);
  return comm::join(place, facts, config);
}

}  // namespace drivetrain
