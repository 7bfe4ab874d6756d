// SPDX-License-Identifier: Apache-2.0
// The life of a World: made, used, ended, and made again, with ranks as threads.
#include <drivetrain/comm.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>

#include "expect_error.h"
#include "ranks.h"
#include "scoped_env.h"

namespace drivetrain {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST(World, IsOneWithoutALauncher) {
  std::vector<std::unique_ptr<ScopedEnv>> unset;
  for (const char* name : {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                           "PMI_RANK", "PMI_SIZE", "SLURM_PROCID"})
    unset.push_back(std::make_unique<ScopedEnv>(name, nullptr));
  const World world = World::from_environment();
  EXPECT_EQ(world.world_size(), 1);
  EXPECT_EQ(world.rank(), 0);
  EXPECT_TRUE(world.is_main() && world.is_local_main() && world.is_last());
}

TEST(World, OfOneReturnsWhatItIsGiven) {
  const World world = World::single();
  const auto tensor = torch::arange(3);
  EXPECT_TRUE(all_reduce(world, tensor).is_same(tensor));
  EXPECT_TRUE(gather(world, tensor).is_same(tensor));
  EXPECT_TRUE(broadcast(world, tensor).is_same(tensor));
  EXPECT_TRUE(reduce(world, tensor).is_same(tensor));
  EXPECT_TRUE(reduce_scatter(world, tensor).is_same(tensor));
  EXPECT_TRUE(pad_across_processes(world, tensor).is_same(tensor));
  EXPECT_TRUE(scatter(world, std::vector{tensor}).is_same(tensor));
  EXPECT_EQ(gather_object(world, "x"), std::vector<std::string>{"x"});
  EXPECT_EQ(broadcast_object(world, 3), 3);
  barrier(world);
  Pending pending = world.all_reduce_async(tensor, ReduceOp::sum);
  EXPECT_TRUE(pending.done());
  pending.wait();
  world.fail("a world of one has nobody to tell");
}

TEST(World, KnowsWhoItsRanksAre) {
  run_ranks(3, [](World world) {
    EXPECT_EQ(world.world_size(), 3);
    EXPECT_EQ(world.local_world_size(), 3);
    EXPECT_EQ(world.num_nodes(), 1);
    EXPECT_EQ(world.is_main(), world.rank() == 0);
    EXPECT_EQ(world.is_last(), world.rank() == 2);
    const auto all = gather(world, torch::tensor(world.rank()));
    EXPECT_TRUE(all.equal(torch::arange(3)));
  });
}

TEST(World, CanBeMadeAndEndedFiftyTimes) {
  const auto start = Clock::now();
  for (int i = 0; i < 50; ++i)
    run_ranks(
        2, [i](World world) { EXPECT_EQ(all_reduce(world, torch::tensor(i)).item<int>(), 2 * i); });
  EXPECT_LT(Clock::now() - start, 20s);
}

// The threads of this process, and the signals that each blocks.
std::map<std::string, uint64_t> signals_blocked_by_thread() {
  std::map<std::string, uint64_t> blocked;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("SigBlk:"))
        blocked[task.path().filename()] = std::stoull(line.substr(7), nullptr, 16);
  }
  return blocked;
}

// A write to a peer that has died would end the process by SIGPIPE, before any message.
TEST(World, ItsThreadsTakeNoSigpipeAndTheOthersKeepTheirs) {
  run_ranks(2, [](World outer) {
    barrier(outer);
    if (!outer.is_main()) return barrier(outer);
    const auto before = signals_blocked_by_thread();
    run_ranks(2, [&](World world) {
      barrier(world);
      if (!world.is_main()) return barrier(world);
      const uint64_t bit = uint64_t{1} << (SIGPIPE - 1);
      int num_with_it = 0;
      int num_without = 0;
      for (const auto& [thread, blocked] : signals_blocked_by_thread()) {
        if (before.count(thread) > 0) continue;
        ++((blocked & bit) != 0 ? num_without : num_with_it);
      }
      EXPECT_GE(num_without, 4);  // Gloo's and the watch's
      EXPECT_EQ(num_with_it, 2);  // those that run this
      sigset_t mine;
      pthread_sigmask(SIG_BLOCK, nullptr, &mine);
      EXPECT_EQ(sigismember(&mine, SIGPIPE), 0);
      barrier(world);
    });
    barrier(outer);
  });
}

TEST(World, TwoLiveInOneProcessAndDoNotMeet) {
  run_ranks(2, [](World first) {
    static const auto store = c10::make_intrusive<c10d::HashStore>();
    ProcessFacts facts;
    // The other way round, so that a mix-up would show.
    facts.rank = facts.local_rank = 1 - first.rank();
    facts.world_size = facts.local_world_size = 2;
    const World second = comm::join({.store = store}, facts, Config());
    Pending a = first.all_reduce_async(torch::ones({4}), ReduceOp::sum);
    const auto of_second = all_gather(second, torch::tensor(10 + second.rank()));
    const auto of_first = all_gather(first, torch::tensor(first.rank()));
    a.wait();
    EXPECT_TRUE(of_second.equal(torch::tensor({10, 11})));
    EXPECT_TRUE(of_first.equal(torch::tensor({0, 1})));
  });
}

TEST(World, CopiesShareOneWorld) {
  run_ranks(2, [](World world) {
    std::optional<World> copy = world;
    copy.reset();
    barrier(world);
  });
}

TEST(World, EndsCleanlyWithAResultThatNobodyWaitedFor) {
  const auto start = Clock::now();
  run_ranks(2, [](World world) {
    auto tensor = torch::ones({1000});
    static_cast<void>(world.all_reduce_async(tensor, ReduceOp::sum));
  });
  EXPECT_LT(Clock::now() - start, 4s);
}

TEST(Join, RefusesTwoProcessesWithOneRank) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  ProcessFacts facts;
  facts.world_size = 2;
  const Config config{.timeout = 10s};
  std::thread other([&] {
    EXPECT_ERROR(comm::join({.store = store}, facts, config), CommError,
                 "two processes say that they are rank 0; allowed: one process a rank");
  });
  EXPECT_ERROR(comm::join({.store = store}, facts, config), CommError,
               "two processes say that they are rank 0");
  other.join();
}

TEST(Join, RefusesAnotherWorldSize) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const Config config{.timeout = 10s};
  const auto join = [&](int rank, int world_size) {
    ProcessFacts facts;
    facts.rank = rank;
    facts.world_size = world_size;
    EXPECT_ERROR(comm::join({.store = store}, facts, config), CommError,
                 "allowed: one world size; start all processes with the same WORLD_SIZE");
  };
  std::thread other(join, 0, 2);
  join(1, 3);
  other.join();
}

TEST(Join, NamesTheRanksThatDoNotCome) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  ProcessFacts facts;
  facts.rank = 1;
  facts.world_size = 4;
  EXPECT_ERROR(comm::join({.store = store}, facts, Config{.timeout = 300ms}), CommError,
               "of 4 ranks, 0, 2, 3 did not come to the store of this process within 0.3 s");
}

}  // namespace
}  // namespace drivetrain
