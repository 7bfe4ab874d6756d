// SPDX-License-Identifier: Apache-2.0
// all_gather, gather, broadcast, scatter and pad_across_processes.
#include <drivetrain/comm.h>
#include <torch/torch.h>

#include <map>

#include "expect_error.h"
#include "ranks.h"

namespace drivetrain {
namespace {

constexpr int kWorlds[] = {1, 2, 3, 4, 7};
constexpr torch::ScalarType kTypes[] = {
    torch::kFloat,  torch::kDouble,       torch::kHalf,         torch::kBFloat16, torch::kByte,
    torch::kChar,   torch::kShort,        torch::kInt,          torch::kLong,     torch::kBool,
    torch::kUInt16, torch::kComplexFloat, torch::kFloat8_e4m3fn};

// Rank r's tensor of any type; float8 has few operations, so it is made by conversion.
torch::Tensor held_by(int rank, torch::IntArrayRef sizes, torch::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(500 + rank);
  return torch::randint(0, 5, sizes, generator, torch::kFloat).to(dtype);
}

void expect_same(const torch::Tensor& got, const torch::Tensor& wanted) {
  EXPECT_EQ(got.sizes(), wanted.sizes());
  EXPECT_EQ(got.scalar_type(), wanted.scalar_type());
  EXPECT_TRUE(got.to(torch::kComplexDouble).equal(wanted.to(torch::kComplexDouble)));
}

struct Sample {
  torch::Tensor image;
  std::map<std::string, std::vector<torch::Tensor>> extra;
  std::optional<torch::Tensor> label;
  std::string name;
};

Sample sample_of(int rank) {
  return {
      torch::full({2, 2}, rank),
      {{"b", {torch::full({1}, 10 + rank)}}, {"a", {torch::full({}, 20 + rank), torch::ones({0})}}},
      torch::full({1}, rank % 2 == 0).to(torch::kBool),
      "rank " + std::to_string(rank)};
}

TEST(AllGather, ConcatenatesInTheOrderOfRanks) {
  for (const int size : kWorlds)
    run_ranks(size, [size](World world) {
      for (const auto dtype : kTypes)
        for (const auto& sizes : std::vector<std::vector<int64_t>>{{0}, {1}, {3}, {2, 0}, {3, 2}}) {
          std::vector<torch::Tensor> all;
          for (int r = 0; r < size; ++r)
            all.push_back(held_by(r, sizes, dtype).to(torch::kComplexDouble));
          expect_same(all_gather(world, held_by(world.rank(), sizes, dtype)),
                      torch::cat(all).to(dtype));
        }
    });
}

TEST(AllGather, MakesScalarsARow) {
  run_ranks(3, [](World world) {
    const auto got = all_gather(world, torch::tensor(world.rank() * 1.5));
    EXPECT_TRUE(got.equal(torch::tensor({0.0, 1.5, 3.0})));
  });
}

TEST(AllGather, TakesNestedValues) {
  run_ranks(2, [](World world) {
    const Sample got = all_gather(world, sample_of(world.rank()));
    EXPECT_TRUE(got.image.equal(torch::tensor({0, 0, 0, 0, 1, 1, 1, 1}).view({4, 2})));
    EXPECT_TRUE(got.extra.at("b")[0].equal(torch::tensor({10, 11})));
    EXPECT_TRUE(got.extra.at("a")[0].equal(torch::tensor({20, 21})));
    EXPECT_EQ(got.extra.at("a")[1].numel(), 0);
    EXPECT_TRUE(got.label->equal(torch::tensor({true, false})));
    EXPECT_EQ(got.name, "rank " + std::to_string(world.rank()));
  });
}

TEST(AllGather, ThroughTheAsynchronousCallIsTheSame) {
  for (const int size : kWorlds)
    run_ranks(size, [size](World world) {
      for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kBool, torch::kLong}) {
        const auto in = held_by(world.rank(), {2, 3}, dtype);
        const auto out = torch::empty({size, 2, 3}, dtype);
        world.all_gather_async(out, in).wait();
        for (int r = 0; r < size; ++r) expect_same(out[r], held_by(r, {2, 3}, dtype));
      }
      EXPECT_ERROR(world.all_gather_async(torch::empty({1}), torch::empty({3})),
                   std::invalid_argument, "all_gather_async of 3 elements of float32 into 1");
    });
}

TEST(Gather, GivesExactlyTheRowsThatRanksHave) {
  for (const int size : kWorlds)
    run_ranks(size, [size](World world) {
      // 0, 1, 2 … rows: fewer than ranks, none at all, and a rank without any.
      for (const auto dtype : kTypes)
        for (int first = 0; first < 3; ++first) {
          const auto rows_of = [&](int r) { return int64_t{(r + first) % 3}; };
          std::vector<torch::Tensor> all;
          std::vector<int64_t> counts;
          for (int r = 0; r < size; ++r) {
            all.push_back(held_by(r, {rows_of(r), 2}, dtype).to(torch::kComplexDouble));
            counts.push_back(rows_of(r));
          }
          std::vector<int64_t> rows;
          const auto got =
              gather(world, held_by(world.rank(), {rows_of(world.rank()), 2}, dtype), &rows);
          expect_same(got, torch::cat(all).to(dtype));
          EXPECT_EQ(rows, counts);
        }
    });
}

TEST(Gather, HasAcceleratesValues) {
  for (const int size : {2, 3, 4})
    run_ranks(size, [size](World world) {
      const auto mine = torch::arange(size * world.rank() + 1, size * world.rank() + size + 1);
      EXPECT_TRUE(gather(world, mine).equal(torch::arange(1, size * size + 1)));
      EXPECT_TRUE(gather(world, torch::tensor(world.rank())).equal(torch::arange(size)));
      const auto transposed = torch::arange(12).view({4, 3}).t();
      EXPECT_TRUE(gather(world, transposed).slice(0, 0, 3).equal(transposed));
    });
}

TEST(Gather, TakesNestedValuesOfDifferentLengths) {
  run_ranks(3, [](World world) {
    const int r = world.rank();
    const std::vector<torch::Tensor> mine = {torch::full({r, 2}, r), torch::full({2 - r}, 10.5 + r),
                                             torch::full({}, r)};
    const auto got = gather(world, mine);
    EXPECT_TRUE(got[0].equal(torch::tensor({1, 1, 2, 2, 2, 2}).view({3, 2})));
    EXPECT_TRUE(got[1].equal(torch::tensor({10.5, 10.5, 11.5})));
    EXPECT_TRUE(got[2].equal(torch::arange(3)));
  });
}

// What gather tells where rank 1's tensors are others than rank 0's.
void expect_gather_refuses(const std::vector<torch::Tensor>& of_rank_0,
                           const std::vector<torch::Tensor>& of_rank_1, const char* message) {
  EXPECT_ERROR(
      run_ranks(2, [&](World world) { gather(world, world.is_main() ? of_rank_0 : of_rank_1); }),
      CommError, message);
}

TEST(Gather, RefusesRowsOfDifferentForms) {
  const char* const differs = "differs from this rank's in type or in a size other than dim 0";
  for (const auto& [mine, theirs] : {std::pair{2, 3}, {3, 2}, {3, 4}, {4, 5}, {0, 1}})
    expect_gather_refuses({torch::ones({2, mine})}, {torch::ones({2, theirs})}, differs);
  expect_gather_refuses({torch::ones({2}, torch::kInt)}, {torch::ones({2})}, differs);
  expect_gather_refuses({torch::ones({2, 3})}, {torch::ones({2, 3, 1})}, differs);
  expect_gather_refuses({torch::ones({2})}, {torch::Tensor()}, differs);
  std::vector<torch::Tensor> many(9, torch::ones({2, 3}));
  const auto all = many;
  many[8] = torch::ones({3, 2});
  expect_gather_refuses(all, many, "tensor 8 of rank");
  expect_gather_refuses(all, many, "allowed: rows of one type and shape");
}

TEST(Gather, RefusesAnotherNumberOfTensors) {
  const char* const differs = "allowed: the same number of tensors on every rank";
  const auto some = [](size_t n) { return std::vector<torch::Tensor>(n, torch::ones({2})); };
  for (const auto& [mine, theirs] : {std::pair{0, 1}, {1, 2}, {7, 8}, {8, 9}, {3, 20}})
    expect_gather_refuses(some(mine), some(theirs), differs);
  expect_gather_refuses(some(1), some(2), "gave ");
}

TEST(Gather, TakesMoreTensorsThanItsFirstMessageTells) {
  for (const size_t num_tensors : {0, 1, 7, 8, 19})
    run_ranks(3, [&](World world) {
      const int r = world.rank();
      const auto got = gather(world, std::vector<torch::Tensor>(num_tensors, torch::full({r}, r)));
      ASSERT_EQ(got.size(), num_tensors);
      for (const auto& tensor : got) EXPECT_TRUE(tensor.equal(torch::tensor({1, 2, 2})));
    });
}

TEST(Broadcast, GivesEveryRankTheRootsValue) {
  for (const int size : kWorlds)
    run_ranks(size, [size](World world) {
      for (int root = 0; root < size; ++root) {
        std::vector<torch::Tensor> mine;
        for (const auto dtype : kTypes) mine.push_back(held_by(world.rank(), {3, 2}, dtype));
        mine.push_back(torch::full({}, world.rank()));
        mine.push_back(torch::empty({0, 4}));
        mine.push_back(torch::full({2, 3}, world.rank()).t());
        const auto got = broadcast(world, mine, root);
        for (size_t i = 0; i < std::size(kTypes); ++i)
          expect_same(got[i], held_by(root, {3, 2}, kTypes[i]));
        EXPECT_EQ(got[std::size(kTypes)].item<int>(), root);
        EXPECT_EQ(got[std::size(kTypes) + 1].sizes(), (std::vector<int64_t>{0, 4}));
        EXPECT_TRUE(got.back().equal(torch::full({3, 2}, root)));
      }
      EXPECT_ERROR(broadcast(world, torch::ones({}), -1), std::invalid_argument,
                   "broadcast with root -1; allowed: 0 to");
    });
}

TEST(Broadcast, InPlaceKeepsTheTensorsAndTheirLayout) {
  run_ranks(3, [](World world) {
    const auto parameter = torch::full({2}, world.rank() + 0.5).requires_grad_();
    const auto transposed = torch::full({2, 3}, world.rank()).t();
    const auto scalar = torch::full({}, world.rank()).to(torch::kBool);
    world.broadcast_({parameter, transposed, scalar, torch::Tensor()}, 2);
    EXPECT_TRUE(parameter.detach().equal(torch::full({2}, 2.5)));
    EXPECT_TRUE(parameter.requires_grad());
    EXPECT_TRUE(transposed.equal(torch::full({3, 2}, 2)));
    EXPECT_FALSE(transposed.is_contiguous());
    EXPECT_TRUE(scalar.item<bool>());
    const auto flat = torch::full({3}, world.rank());
    world.broadcast_async(flat, 1).wait();
    EXPECT_TRUE(flat.equal(torch::ones({3}, torch::kLong)));
  });
}

TEST(Scatter, GivesEachRankItsPartWhateverItsForm) {
  for (const int size : kWorlds)
    run_ranks(size, [size](World world) {
      const int root = size - 1;
      std::vector<std::vector<torch::Tensor>> parts;
      if (world.rank() == root)
        for (int r = 0; r < size; ++r)
          parts.push_back({held_by(r, {r, 2}, kTypes[r]), torch::full({}, r), torch::Tensor()});
      const auto mine = scatter(world, parts, root, std::vector<torch::Tensor>(3));
      expect_same(mine[0], held_by(world.rank(), {world.rank(), 2}, kTypes[world.rank()]));
      EXPECT_EQ(mine[1].item<int>(), world.rank());
      EXPECT_FALSE(mine[2].defined());
    });
}

TEST(Scatter, NeedsNoFormWhereTheTypeSaysIt) {
  run_ranks(2, [](World world) {
    std::vector<torch::Tensor> parts;
    if (world.is_main()) parts = {torch::zeros({1}), torch::ones({3})};
    EXPECT_EQ(scatter(world, parts).numel(), world.is_main() ? 1 : 3);
  });
}

TEST(Scatter, RefusesAnotherNumberOfPartsOrTensors) {
  EXPECT_ERROR(scatter(World::single(), std::vector<torch::Tensor>(2)), std::invalid_argument,
               "scatter of 2 parts over 1 ranks; allowed: one part a rank");
  const std::vector<std::vector<torch::Tensor>> parts = {{torch::ones({})}};
  EXPECT_ERROR(scatter(World::single(), parts), std::invalid_argument,
               "part 0 has 1 tensors and `like` has 0");
}

TEST(PadAcrossProcesses, PadsToTheLongest) {
  for (const int size : kWorlds)
    run_ranks(size, [size](World world) {
      const int64_t own = world.is_main() ? size + 1 : size;
      const auto got = pad_across_processes(world, torch::arange(own));
      auto wanted = torch::arange(own);
      if (size > 1 && !world.is_main())
        wanted = torch::cat({wanted, torch::zeros({1}, torch::kLong)});
      EXPECT_TRUE(got.equal(wanted));
    });
}

TEST(PadAcrossProcesses, TakesDimValueAndSide) {
  run_ranks(2, [](World world) {
    const int64_t own = world.rank() + 1;
    const auto got = pad_across_processes(world, torch::ones({2, own}), -1, 7, true);
    EXPECT_EQ(got.sizes(), (std::vector<int64_t>{2, 2}));
    EXPECT_EQ(got[0][0].item<float>(), world.is_main() ? 7 : 1);
    EXPECT_EQ(got[0][1].item<float>(), 1);
    const auto boolean = pad_across_processes(world, torch::zeros({own}, torch::kBool), 0, 1);
    EXPECT_EQ(boolean[1].item<bool>(), world.is_main());
    // Too few dims: unchanged.
    EXPECT_EQ(pad_across_processes(world, torch::ones({own}), 1).numel(), own);
    EXPECT_EQ(pad_across_processes(world, torch::tensor(5)).item<int>(), 5);
  });
}

TEST(Exchanges, RefuseSparseTensors) {
  run_ranks(2, [](World world) {
    const auto sparse = torch::eye(2).to_sparse();
    EXPECT_ERROR(all_gather(world, sparse), std::invalid_argument,
                 "layout Sparse; allowed: strided; pass tensor.to_dense()");
  });
}

}  // namespace
}  // namespace drivetrain
