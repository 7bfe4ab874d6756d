// SPDX-License-Identifier: Apache-2.0
// Ranks that connect, or try again together; ranks as threads with a transport that fails at will.
#include "comm/connect.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <chrono>
#include <thread>

#include "expect_error.h"
#include "ranks.h"

namespace drivetrain {
namespace {

using namespace std::chrono_literals;

// Carries nothing; `owner` says whose it is.
struct Nothing : comm::Transport {
  Started all_reduce(at::Tensor, ReduceOp, comm::Milliseconds) override { return {}; }
  Started reduce(at::Tensor, ReduceOp, int, comm::Milliseconds) override { return {}; }
  Started reduce_scatter(at::Tensor, at::Tensor, ReduceOp, comm::Milliseconds) override {
    return {};
  }
  Started broadcast(at::Tensor, int, comm::Milliseconds) override { return {}; }
  Started all_gather(at::Tensor, at::Tensor, comm::Milliseconds) override { return {}; }
  Started scatter(at::Tensor, at::Tensor, int, comm::Milliseconds) override { return {}; }
  bool finish(comm::Milliseconds) override { return true; }
  void abort() override {}
};

// What `make(rank, attempt)` leads to on each rank: "connected" or the error, and its attempts.
struct Outcome {
  std::string text;
  int attempts = 0;
};

template <class Make>
std::vector<Outcome> connect_ranks(int num_ranks, comm::Milliseconds timeout, const Make& make) {
  const comm::MeetingPlace place{.store = c10::make_intrusive<c10d::HashStore>()};
  std::vector<Outcome> outcomes(num_ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank)
    threads.emplace_back([&, rank] {
      Outcome& outcome = outcomes[rank];
      try {
        const auto transport =
            comm::connect_all(place, facts_of_thread(rank, num_ranks), timeout,
                              [&](const comm::StorePtr&, comm::Milliseconds limit) {
                                return make(rank, ++outcome.attempts, limit);
                              });
        outcome.text = transport ? "connected" : "nothing";
      } catch (const std::exception& error) {
        outcome.text = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

TEST(Connect, AllTryAgainIfOneRankLostItsConnection) {
  const auto outcomes = connect_ranks(3, 20s, [](int rank, int attempt, comm::Milliseconds limit) {
    EXPECT_EQ(limit, 10s);
    if (rank == 1 && attempt < 3) throw std::runtime_error("connection reset\nby a peer");
    return std::make_unique<Nothing>();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.text, "connected");
    EXPECT_EQ(outcome.attempts, 3);
  }
}

TEST(Connect, EndsAfterThreeAttemptsOnEveryRankWithTheReason) {
  const auto outcomes = connect_ranks(2, 20s, [](int rank, int, comm::Milliseconds) {
    if (rank == 1) throw std::runtime_error("no route to host\nand a backtrace");
    return std::make_unique<Nothing>();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.attempts, 3);
    EXPECT_THAT(outcome.text,
                ::testing::HasSubstr("cannot connect to the others at the store of this process in "
                                     "3 attempts: no route to host; allowed: ranks that reach each "
                                     "other; look at the network"));
  }
}

TEST(Connect, DoesNotWaitForARankThatStaysSilent) {
  const auto outcomes = connect_ranks(2, 100ms, [](int rank, int, comm::Milliseconds limit) {
    EXPECT_EQ(limit, 100ms);
    if (rank == 1) std::this_thread::sleep_for(3s);
    return std::make_unique<Nothing>();
  });
  EXPECT_THAT(outcomes[0].text, ::testing::HasSubstr("a rank did not say whether it is connected"));
}

}  // namespace
}  // namespace drivetrain
