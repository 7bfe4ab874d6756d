// SPDX-License-Identifier: Apache-2.0
// all_reduce, reduce and reduce_scatter against the same arithmetic in one process.
#include <drivetrain/comm.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "expect_error.h"
#include "ranks.h"

namespace drivetrain {
namespace {

constexpr int kWorlds[] = {1, 2, 3, 4, 7};

// What rank r holds: reproducible, different for each rank.
torch::Tensor held_by(int rank, torch::IntArrayRef sizes, torch::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(1000 + rank);
  const auto values = torch::randint(-9, 10, sizes, generator, torch::kLong);
  return dtype == torch::kBool ? values.gt(0) : values.to(dtype);
}

// The oracle: all ranks' tensors stacked, reduced in 64 bits by LibTorch itself.
torch::Tensor expected(int world_size, torch::IntArrayRef sizes, torch::ScalarType dtype,
                       ReduceOp op) {
  std::vector<torch::Tensor> all;
  for (int r = 0; r < world_size; ++r) all.push_back(held_by(r, sizes, dtype));
  const auto stacked = torch::stack(all);
  if (dtype == torch::kBool) return op == ReduceOp::max ? stacked.any(0) : stacked.all(0);
  const auto wide = stacked.to(stacked.is_floating_point() ? torch::kDouble : torch::kLong);
  switch (op) {
    case ReduceOp::sum:
      return wide.sum(0).to(dtype);
    case ReduceOp::mean:
      return wide.mean(0).to(dtype);
    case ReduceOp::max:
      return wide.amax(0).to(dtype);
    default:
      return wide.amin(0).to(dtype);
  }
}

bool has_meaning(torch::ScalarType dtype, ReduceOp op) {
  const bool is_order = op == ReduceOp::max || op == ReduceOp::min;
  if (dtype == torch::kBool) return is_order;
  return op != ReduceOp::mean || torch::isFloatingType(dtype);
}

constexpr torch::ScalarType kTypes[] = {
    torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kByte,
    torch::kChar,  torch::kShort,  torch::kInt,  torch::kLong,     torch::kBool};
constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::mean, ReduceOp::max, ReduceOp::min};
const std::vector<std::vector<int64_t>> kShapes = {{}, {0}, {1}, {3}, {2, 0}, {5, 3}, {7, 1, 2}};

void expect_same(const torch::Tensor& got, const torch::Tensor& wanted) {
  EXPECT_EQ(got.sizes(), wanted.sizes());
  EXPECT_EQ(got.scalar_type(), wanted.scalar_type());
  EXPECT_TRUE(got.is_contiguous());
  EXPECT_TRUE(torch::allclose(got.to(torch::kDouble), wanted.to(torch::kDouble), 1e-6, 0, true))
      << got << "\nwanted " << wanted;
}

TEST(AllReduce, EqualsOneProcessForEveryTypeShapeAndOperation) {
  for (const int size : kWorlds)
    run_ranks(size, [](World world) {
      for (const ReduceOp op : kOps) {
        // All at once: types travel in groups, and each must come back to its own place.
        std::vector<torch::Tensor> mine;
        std::vector<torch::Tensor> wanted;
        for (const auto dtype : kTypes)
          for (const auto& sizes : kShapes)
            if (has_meaning(dtype, op)) {
              mine.push_back(held_by(world.rank(), sizes, dtype));
              wanted.push_back(expected(world.world_size(), sizes, dtype, op));
            }
        const auto got = all_reduce(world, mine, op);
        ASSERT_EQ(got.size(), wanted.size());
        for (size_t i = 0; i < got.size(); ++i) expect_same(got[i], wanted[i]);
      }
    });
}

TEST(AllReduce, HasAcceleratesValues) {
  run_ranks(2, [](World world) {
    const auto mine = torch::tensor({2.0 * world.rank() + 1, 2.0 * world.rank() + 2});
    EXPECT_TRUE(all_reduce(world, mine).equal(torch::tensor({4.0, 6.0})));
    EXPECT_TRUE(all_reduce(world, mine, ReduceOp::mean).equal(torch::tensor({2.0, 3.0})));
    EXPECT_TRUE(all_reduce(world, mine, ReduceOp::max).equal(torch::tensor({3.0, 4.0})));
  });
}

TEST(AllReduce, LeavesItsArgumentAloneAndCarriesNoGradient) {
  run_ranks(2, [](World world) {
    const auto mine = torch::ones({4}).requires_grad_();
    const auto sum = all_reduce(world, mine * 2);
    EXPECT_FALSE(sum.requires_grad());
    EXPECT_TRUE(mine.equal(torch::ones({4})));
    const auto view = torch::arange(6.0).view({2, 3}).t();
    EXPECT_TRUE(all_reduce(world, view).equal(view * 2));
  });
}

TEST(AllReduce, FindsNanOnAnyRank) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  for (int holder = 0; holder < 3; ++holder)
    for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16})
      run_ranks(3, [&](World world) {
        auto mine = torch::tensor({1.0, -inf, inf, 2.0}).to(dtype);
        if (world.rank() == holder) mine[3] = nan;
        for (const ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
          const auto got = all_reduce(world, mine, op).to(torch::kDouble);
          EXPECT_TRUE(got.slice(0, 0, 3).equal(torch::tensor({1.0, -inf, inf}, torch::kDouble)));
          EXPECT_TRUE(std::isnan(got[3].item<double>()));
          auto in_place = mine.clone();
          world.all_reduce_async(in_place, op).wait();
          EXPECT_TRUE(std::isnan(in_place[3].item<double>()));
        }
      });
}

TEST(AllReduce, SumsHalfPrecisionInFloat32) {
  // 2048 + 1 + 1 in float16 step by step stays 2048; in float32, rounded once, it is 2050.
  run_ranks(3, [](World world) {
    const auto mine = torch::full({1}, world.rank() == 0 ? 2048.0 : 1.0).to(torch::kHalf);
    EXPECT_EQ(all_reduce(world, mine).item<double>(), 2050.0);
  });
}

TEST(AllReduce, TakesComplexNumbers) {
  run_ranks(2, [](World world) {
    const auto mine = torch::complex(torch::full({2}, 1.0 + world.rank()), torch::ones({2}));
    const auto wanted = torch::complex(torch::full({2}, 3.0), torch::full({2}, 2.0));
    EXPECT_TRUE(all_reduce(world, mine).equal(wanted));
    EXPECT_TRUE(all_reduce(world, mine.conj()).equal(wanted.conj().resolve_conj()));
  });
}

TEST(AllReduce, RefusesWhatHasNoMeaning) {
  for (const int size : {1, 2})
    run_ranks(size, [](World world) {
      EXPECT_ERROR(all_reduce(world, torch::ones({2}, torch::kLong), ReduceOp::mean),
                   std::invalid_argument,
                   "all_reduce: the mean of int64 is not defined; allowed: sum, max, min; convert");
      EXPECT_ERROR(all_reduce(world, torch::ones({2}, torch::kBool)), std::invalid_argument,
                   "the sum of bool is not defined; allowed: max (any) and min (all)");
      EXPECT_ERROR(all_reduce(world, torch::ones({2}, torch::kComplexFloat), ReduceOp::max),
                   std::invalid_argument, "is not defined; allowed: sum, mean");
      EXPECT_ERROR(all_reduce(world, torch::ones({2}).to(torch::kFloat8_e4m3fn)),
                   std::invalid_argument, "allowed: floating types of 16 to 64 bits");
      // The world is as good as before.
      EXPECT_EQ(all_reduce(world, torch::ones({})).item<int>(), world.world_size());
    });
}

TEST(AllReduceAsync, EqualsTheBlockingOne) {
  for (const int size : kWorlds)
    run_ranks(size, [](World world) {
      std::vector<torch::Tensor> tensors;
      std::vector<torch::Tensor> wanted;
      std::vector<Pending> pending;
      for (const ReduceOp op : kOps)
        for (const auto dtype : kTypes)
          for (const auto& sizes : kShapes)
            if (has_meaning(dtype, op)) {
              tensors.push_back(held_by(world.rank(), sizes, dtype));
              wanted.push_back(expected(world.world_size(), sizes, dtype, op));
              pending.push_back(world.all_reduce_async(tensors.back(), op));
            }
      // In another order than started; waiting twice is harmless.
      for (auto it = pending.rbegin(); it != pending.rend(); ++it) it->wait();
      for (size_t i = 0; i < tensors.size(); ++i) {
        pending[i].wait();
        EXPECT_TRUE(pending[i].done());
        // Half precision is summed as it is: these small whole numbers are exact all the same.
        EXPECT_TRUE(torch::allclose(tensors[i].to(torch::kDouble), wanted[i].to(torch::kDouble),
                                    1e-2, 1e-2));
      }
    });
}

TEST(AllReduceAsync, WorksOnTheTensorItself) {
  run_ranks(2, [](World world) {
    auto parameter = torch::full({3}, world.rank() + 1.0).requires_grad_();
    const void* memory = parameter.data_ptr();
    world.all_reduce_async(parameter, ReduceOp::mean).wait();
    EXPECT_EQ(parameter.data_ptr(), memory);
    EXPECT_TRUE(parameter.detach().equal(torch::full({3}, 1.5)));
    EXPECT_ERROR(world.all_reduce_async(torch::ones({2, 3}).t(), ReduceOp::sum),
                 std::invalid_argument, "not contiguous; allowed: a contiguous one");
    EXPECT_ERROR(world.all_reduce_async(torch::ones({2}, torch::kInt), ReduceOp::mean),
                 std::invalid_argument, "the mean of int32 is not defined");
  });
}

TEST(Reduce, GivesTheRootTheResultAndTheOthersTheirOwn) {
  for (const int size : kWorlds)
    run_ranks(size, [](World world) {
      for (int root = 0; root < world.world_size(); ++root)
        for (const ReduceOp op : kOps) {
          const auto mine = held_by(world.rank(), {5, 3}, torch::kFloat);
          const auto got = reduce(world, mine, root, op);
          expect_same(got, world.rank() == root
                               ? expected(world.world_size(), {5, 3}, torch::kFloat, op)
                               : mine);
        }
      EXPECT_ERROR(reduce(world, torch::ones({}), world.world_size()), std::invalid_argument,
                   "; allowed: 0 to ");
    });
}

TEST(ReduceScatter, LeavesEachRankItsPart) {
  for (const int size : kWorlds)
    run_ranks(size, [size](World world) {
      for (const ReduceOp op : kOps)
        for (const auto dtype : kTypes) {
          if (!has_meaning(dtype, op)) continue;
          const std::vector<std::vector<int64_t>> shapes = {{2 * size, 3}, {0, 2}, {size}};
          std::vector<torch::Tensor> mine;
          for (const auto& sizes : shapes) mine.push_back(held_by(world.rank(), sizes, dtype));
          const auto got = reduce_scatter(world, mine, op);
          for (size_t i = 0; i < shapes.size(); ++i)
            expect_same(got[i], expected(size, shapes[i], dtype, op)
                                    .chunk(size)[shapes[i][0] == 0 ? 0 : world.rank()]);
        }
    });
}

TEST(ReduceScatter, RefusesRowsThatCannotBeDivided) {
  run_ranks(2, [](World world) {
    EXPECT_ERROR(reduce_scatter(world, torch::ones({3, 2})), std::invalid_argument,
                 "reduce_scatter of a tensor of shape [3, 2] over 2 ranks; allowed: a dim 0 that "
                 "is a multiple of 2; pad it");
    EXPECT_ERROR(reduce_scatter(world, torch::ones({})), std::invalid_argument, "of shape []");
  });
}

}  // namespace
}  // namespace drivetrain
