// SPDX-License-Identifier: Apache-2.0
// What ranks learn when another one fails, is late, or calls something else; ranks as threads.
#include <drivetrain/comm.h>
#include <torch/torch.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <latch>
#include <nlohmann/json.hpp>

#include "expect_error.h"
#include "ranks.h"
#include "scoped_env.h"

#include <unistd.h>

namespace drivetrain {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// What each rank's body threw, "" for nothing. Bodies have the only handle of their World, which
// therefore ends while the exception unwinds, as in a program.
std::vector<std::string> errors_of(int num_ranks, const std::function<void(World)>& body,
                                   const Config& config = {.timeout = 20s}) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> errors(num_ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(comm::join({.store = store}, facts_of_thread(rank, num_ranks), config));
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

TEST(Failure, OfARankReachesTheOthersAtOnce) {
  const auto start = Clock::now();
  const auto errors = errors_of(3, [](World world) {
    barrier(world);
    if (world.rank() == 1) throw CheckpointError("the disk is full");
    all_reduce(world, torch::ones({4}));
  });
  EXPECT_LT(Clock::now() - start, 3s);
  EXPECT_EQ(errors[1], "[rank 1/3] checkpoint: the disk is full");
  EXPECT_THAT(errors[0],
              AllOf(HasSubstr("[rank 0/3] comm: all_reduce(sum) #2 of float32[4] cannot complete: "
                              "rank 1 failed computing after barrier #1: the disk is full"),
                    HasSubstr("rank 2 ")));
  EXPECT_THAT(errors[2], HasSubstr("rank 1 failed computing after barrier #1: the disk is full"));
}

TEST(Failure, OfAnyExceptionIsNoticed) {
  const auto errors = errors_of(2, [](World world) {
    if (world.rank() == 0) throw std::runtime_error("something");
    barrier(world);
  });
  EXPECT_THAT(errors[1], HasSubstr("rank 0 failed computing before its first collective: an "
                                   "exception ended its World"));
}

TEST(Failure, AnErrorThatWasCaughtLongAgoIsNotTheReason) {
  const auto errors = errors_of(2, [](World world) {
    if (world.rank() == 0) {
      EXPECT_ERROR(throw HardwareError("an old story"), HardwareError, "old");
      throw std::runtime_error("something else");
    }
    barrier(world);
  });
  EXPECT_THAT(errors[1], HasSubstr("an exception ended its World"));
}

TEST(Failure, CanBeToldByTheProgram) {
  const auto errors = errors_of(2, [](World world) {
    if (world.rank() == 1) {
      world.fail("sample 17 cannot be read");
      EXPECT_ERROR(barrier(world), CommError,
                   "barrier in a world that has failed (sample 17 cannot be read); allowed: a new "
                   "World; make one, or end the program");
      return;
    }
    EXPECT_ERROR(barrier(world), CommError, "sample 17 cannot be read");
    EXPECT_ERROR(barrier(world), CommError,
                 "barrier in a world that has failed (barrier #1 cannot");
  });
  EXPECT_EQ(errors[0] + errors[1], "");
}

TEST(Failure, RunRanksThrowsTheFirstAndEndsTheOthers) {
  const auto start = Clock::now();
  EXPECT_ERROR(run_ranks(4,
                         [](World world) {
                           if (world.rank() == 2) throw std::runtime_error("rank 2's own");
                           barrier(world);
                         }),
               std::runtime_error, "rank 2's own");
  EXPECT_LT(Clock::now() - start, 5s);
}

TEST(Failure, ARankThatLeftIsNamed) {
  const auto errors = errors_of(2, [](World world) {
    barrier(world);
    if (world.rank() == 1) return;
    broadcast(world, torch::ones({2}), 1);
  });
  EXPECT_THAT(errors[0], HasSubstr("broadcast(root 1) #2 of float32[2] cannot complete: rank 1 has "
                                   "left the world after 1 collectives"));
}

// What a late rank waits for: that the others have lost patience, however slow this machine is.
class Patience {
 public:
  explicit Patience(int num_ranks) : lost_(num_ranks) {}

  void lose_in(const std::function<void()>& call) {
    const std::unique_ptr<std::latch, void (*)(std::latch*)> at_exit(
        &lost_, [](std::latch* lost) { lost->count_down(); });
    call();
  }
  void wait_until_lost() const { lost_.wait(); }

 private:
  std::latch lost_;
};

TEST(Timeout, NamesTheLateRanksAndWhereTheyAre) {
  const auto start = Clock::now();
  Patience patience(2);
  const auto errors = errors_of(3, [&](World world) {
    barrier(world);
    const auto call = [&] { gather(world, torch::ones({2, 3}), nullptr, {.timeout = 300ms}); };
    if (world.rank() != 2) return patience.lose_in(call);
    patience.wait_until_lost();
    call();
  });
  EXPECT_LT(Clock::now() - start, 6s);
  EXPECT_THAT(errors[0], HasSubstr("gather #2 of float32[2, 3] "));
  // Whoever is first to lose patience names the late rank; the other may learn it from them.
  EXPECT_THAT(errors[0] + errors[1],
              AllOf(HasSubstr("took longer than its timeout of 0.3 s; late: rank 2; "),
                    HasSubstr("rank 2 is computing after barrier #1"),
                    HasSubstr("set a longer timeout (DRIVETRAIN_TIMEOUT, in seconds)")));
  EXPECT_NE(errors[2], "");
}

TEST(Timeout, IsTheWorldsUnlessTheCallHasItsOwn) {
  const auto start = Clock::now();
  Patience patience(1);
  const auto errors = errors_of(2,
                                [&](World world) {
                                  if (world.is_main()) patience.lose_in([&] { barrier(world); });
                                  patience.wait_until_lost();
                                },
                                {.timeout = 1200ms});
  EXPECT_THAT(errors[0], HasSubstr("its timeout of 1.2 s; late: rank 1"));
  EXPECT_LT(Clock::now() - start, 8s);
  const auto waited = errors_of(2,
                                [](World world) {
                                  if (!world.is_main()) std::this_thread::sleep_for(1500ms);
                                  barrier(world, {.timeout = 20s});
                                },
                                {.timeout = 500ms});
  EXPECT_EQ(waited[0] + waited[1], "");
}

TEST(Timeout, CoversTheAsynchronousCalls) {
  Patience patience(1);
  const auto errors = errors_of(2, [&](World world) {
    if (!world.is_main()) return patience.wait_until_lost();
    auto tensor = torch::ones({3});
    Pending pending = world.all_reduce_async(tensor, ReduceOp::mean, {.timeout = 200ms});
    patience.lose_in([&] { pending.wait(); });
  });
  EXPECT_THAT(errors[0], HasSubstr("all_reduce(mean) #1 of float32[3] took longer"));
}

TEST(Teardown, IsBoundedThoughACollectiveCannotComplete) {
  const auto start = Clock::now();
  errors_of(2,
            [](World world) {
              auto tensor = torch::ones({3});
              if (world.is_main()) static_cast<void>(world.all_reduce_async(tensor, ReduceOp::sum));
            },
            {.timeout = 500ms});
  EXPECT_LT(Clock::now() - start, 5s);
}

// Runs both calls in debug mode, and checks that every rank gets the text.
void expect_mismatch(const std::function<void(World)>& body, const std::string& text) {
  const auto errors = errors_of(3, body, {.timeout = 20s, .debug = true});
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr(text));
}

TEST(DebugMode, NamesMismatchedShapesTypesAndOrders) {
  const std::string called = "the ranks called different collectives as number 1: ";
  expect_mismatch(
      [](World world) { all_reduce(world, torch::ones({world.rank() == 1 ? 5 : 4, 2})); },
      called +
          "rank 0 and rank 2: all_reduce(sum) of float32[4, 2]; rank 1: all_reduce(sum) of "
          "float32[5, 2]; allowed: the same call on every rank");
  expect_mismatch(
      [](World world) {
        broadcast(world, torch::ones({2}, world.rank() == 2 ? torch::kInt : torch::kFloat));
      },
      called +
          "rank 0 and rank 1: broadcast(root 0) of float32[2]; rank 2: broadcast(root 0) of "
          "int32[2]");
  expect_mismatch(
      [](World world) {
        if (world.is_main()) barrier(world);
        all_reduce(world, torch::ones({1}), ReduceOp::max);
      },
      called + "rank 0: barrier; rank 1 and rank 2: all_reduce(max) of float32[1]");
  expect_mismatch([](World world) { broadcast(world, torch::ones({2}), world.rank()); },
                  "rank 1: broadcast(root 1) of float32[2]");
}

TEST(DebugMode, HasAcceleratesMismatches) {
  expect_mismatch(
      [](World world) {
        pad_across_processes(world, world.is_main() ? torch::ones({1, 5}) : torch::ones({1, 1, 6}));
      },
      "rank 0: pad_across_processes of float32[*, 5]; rank 1 and rank 2: pad_across_processes of "
      "float32[*, 1, 6]");
  expect_mismatch(
      [](World world) {
        all_reduce(world, world.is_main() ? torch::ones({1, 5}) : torch::ones({1, 2, 5}));
      },
      "float32[1, 5]");
}

TEST(DebugMode, LetsEqualCallsPass) {
  run_ranks(3,
            [](World world) {
              for (int i = 0; i < 5; ++i) {
                EXPECT_EQ(gather(world, torch::ones({world.rank(), 2})).size(0), 3);
                EXPECT_EQ(pad_across_processes(world, torch::ones({2, world.rank()}), 1).size(1),
                          2);
                EXPECT_EQ(all_reduce(world, torch::ones({})).item<int>(), 3);
                auto tensor = torch::ones({2});
                world.all_reduce_async(tensor, ReduceOp::sum).wait();
                EXPECT_EQ(tensor[0].item<int>(), 3);
                barrier(world);
              }
            },
            {.timeout = 20s, .debug = true});
}

TEST(DebugMode, ARankThatCallsNothingIsLate) {
  Patience patience(1);
  const auto errors = errors_of(2,
                                [&](World world) {
                                  if (world.is_main()) patience.lose_in([&] { barrier(world); });
                                  patience.wait_until_lost();
                                },
                                {.timeout = 400ms, .debug = true});
  EXPECT_THAT(errors[0],
              HasSubstr("barrier #1 took longer than its timeout of 0.4 s; late: rank 1"));
}

TEST(ErrorFile, HoldsTheRankTheMessageAndTheCollective) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("drivetrain_error_" + std::to_string(::getpid()) + ".json");
  const ScopedEnv file("DRIVETRAIN_ERROR_FILE", path.c_str());
  errors_of(2, [](World world) {
    barrier(world);
    if (world.rank() == 1) {
      world.fail("a \"quoted\"\nreason\t\\");
      // The other one writes to the same file here: let this one be the last.
      std::this_thread::sleep_for(1s);
      world.fail("only the first counts");
    }
  });
  const auto error = nlohmann::json::parse(std::ifstream(path));
  EXPECT_EQ(error["rank"], 1);
  EXPECT_EQ(error["message"], "a \"quoted\"\nreason\t\\");
  EXPECT_EQ(error["collective"], "computing after barrier #1");
  EXPECT_NEAR(error["time"].get<double>(), static_cast<double>(std::time(nullptr)), 60);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace drivetrain
