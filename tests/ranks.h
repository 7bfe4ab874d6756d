// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process, over an in-process store and Gloo on the loopback interface.
#pragma once

#include <drivetrain/comm.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "comm/rendezvous.h"
#include "test_device.h"

namespace drivetrain {

inline ProcessFacts facts_of_thread(int rank, int num_ranks) {
  ProcessFacts facts;
  facts.rank = facts.local_rank = rank;
  facts.world_size = facts.local_world_size = num_ranks;
  facts.source = "test";
  return facts;
}

// Runs `body` on `num_ranks` threads, each with its own World, and throws again what the first rank
// to fail threw. The others learn of it at their next collective and end as well.
inline void run_ranks(int num_ranks, const std::function<void(World)>& body,
                      const Config& config = {.timeout = std::chrono::seconds(60)}) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex;
  std::exception_ptr first;
  const auto run_rank = [&](int rank) {
    std::optional<World> world;
    const auto fail = [&](const char* reason) {
      std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
      if (world) world->fail(reason);
    };
    try {
      here::take_rank(rank);
      world = comm::join({.store = store}, facts_of_thread(rank, num_ranks), config);
      body(*world);
    } catch (const std::exception& error) {
      fail(error.what());
    } catch (...) {
      fail("something that is not a std::exception");
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) threads.emplace_back(run_rank, rank);
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace drivetrain
