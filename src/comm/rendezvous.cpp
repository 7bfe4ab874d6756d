// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous.h"

#include <c10/util/Exception.h>
#include <drivetrain/error.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "comm/address.h"
#include "comm/gloo.h"
#include "comm/state.h"
#include "core/rank_label.h"
#include "core/text.h"

#include <fcntl.h>

namespace drivetrain::comm {

using core::str;
using namespace std::chrono_literals;

namespace {

// Ranks that are all present connect within moments, but Gloo now and then loses a connection while
// it makes it, and waits for it to the end.
constexpr Milliseconds kConnectLimit = 10'000ms;
constexpr int kConnectAttempts = 3;

using StorePtr = c10::intrusive_ptr<c10d::Store>;

std::string text_at(const StorePtr& store, const std::string& key) {
  const auto bytes = store->get(key);
  return {bytes.begin(), bytes.end()};
}

void put(const StorePtr& store, const std::string& key, const std::string& text) {
  store->set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

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

std::vector<std::string> keys_of_ranks(std::string_view prefix, int world_size) {
  std::vector<std::string> keys;
  for (int r = 0; r < world_size; ++r) keys.push_back(str(prefix, r));
  return keys;
}

// Looks ever less often until all keys are there; false if the limit passes. `between` may throw.
template <class Between>
bool wait_for_keys(const StorePtr& store, const std::vector<std::string>& keys, Milliseconds limit,
                   const Between& between) {
  const auto deadline = Clock::now() + limit;
  for (Milliseconds pause = 1ms; !store->check(keys); pause = std::min(pause * 2, 50ms)) {
    between();
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

void call_roll(const MeetingPlace& place, const ProcessFacts& facts, const Config& config) {
  const auto keys = keys_of_ranks("present/", facts.world_size);
  const auto look_for_a_refusal = [&] {
    if (place.store->check({"refused"})) throw CommError(text_at(place.store, "refused"));
  };
  if (!wait_for_keys(place.store, keys, config.timeout, look_for_a_refusal))
    raise_missing(place, keys, config);
}

// What became of an attempt on all ranks: "" if all are connected, else the first error.
std::string outcome_of_attempt(const StorePtr& store, int world_size, Milliseconds limit) {
  const auto keys = keys_of_ranks("outcome/", world_size);
  if (!wait_for_keys(store, keys, limit, [] {}))
    return "a rank did not say whether it is connected";
  for (const std::string& key : keys)
    if (const std::string said = text_at(store, key); said != "connected") return said;
  return "";
}

// All ranks connect or all try again: each says how it went, under the attempt's own prefix.
std::unique_ptr<Transport> connect_gloo(const MeetingPlace& place, const ProcessFacts& facts,
                                        const Config& config) {
  const std::string address =
      own_address(facts.main_address, facts.main_port, facts.num_nodes == 1);
  const Milliseconds limit = std::min(config.timeout, kConnectLimit);
  for (int attempt = 1;; ++attempt) {
    const StorePtr store =
        c10::make_intrusive<c10d::PrefixStore>(str("gloo/", attempt), place.store);
    std::unique_ptr<Transport> transport;
    std::string outcome = "connected";
    try {
      transport = make_gloo(store, facts.rank, facts.world_size, address, limit);
    } catch (const std::exception& error) {
      outcome = core::split(error.what(), '\n').front();
    }
    put(store, str("outcome/", facts.rank), outcome);
    const std::string failure = outcome_of_attempt(store, facts.world_size, 3 * limit);
    if (failure.empty()) return transport;
    if (attempt == kConnectAttempts)
      throw CommError(str("rank ", facts.rank, " cannot connect to the others at ", place.name,
                          " in ", kConnectAttempts, " attempts: ", failure,
                          "; allowed: ranks that reach each other; look at the network, or name ",
                          "an interface in GLOO_SOCKET_IFNAME"));
  }
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
  connections.transport = connect_gloo(place, facts, config);
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

MeetingPlace open_store(const ProcessFacts& facts, const Config& config) {
  const std::string where = str(facts.main_address, ":", facts.main_port);
  MeetingPlace place;
  place.is_served_here = facts.rank == 0 && !facts.store_is_served;
  place.name =
      str(facts.store_is_served ? "the launcher's store at " : "rank 0's store at ", where);
  try {
    if (place.is_served_here)
      place.store = serve(facts, config);
    else
      place.store =
          c10::make_intrusive<c10d::TCPStore>(facts.main_address, store_options(facts, config));
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
