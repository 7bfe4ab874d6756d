// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/collate.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "data/datasets.h"
#include "expect_error.h"

namespace drivetrain {
namespace {

using ::testing::ElementsAre;

template <class S>
auto batch(std::vector<S> samples) {
  return collate(samples);
}

TEST(Collate, StacksTensorsOfAnyLayoutAndType) {
  const auto grid = torch::arange(12).view({3, 4});
  for (const auto type : {at::kLong, at::kFloat, at::kBFloat16, at::kBool, at::kComplexFloat}) {
    const auto a = grid.to(type);
    const auto b = (grid.t().contiguous().t() + 1).to(type);
    EXPECT_TRUE(torch::equal(batch<at::Tensor>({a, b}), torch::stack({a, b}))) << type;
  }
  const auto conj = torch::randn({3}, at::kComplexFloat).conj();
  EXPECT_TRUE(torch::equal(batch<at::Tensor>({conj, conj}), torch::stack({conj, conj})));
}

TEST(Collate, StacksZeroSizeAndZeroDimTensors) {
  EXPECT_EQ(batch<at::Tensor>({torch::ones({0, 3}), torch::ones({0, 3})}).sizes(),
            (std::vector<int64_t>{2, 0, 3}));
  EXPECT_THAT(values(batch<at::Tensor>({torch::tensor(4), torch::tensor(5)})), ElementsAre(4, 5));
}

TEST(Collate, CopiesSamples) {
  const auto sample = torch::ones(2);
  const auto stacked = batch<at::Tensor>({sample});
  sample.zero_();
  EXPECT_THAT(values(stacked), ElementsAre(1, 1));
}

TEST(Collate, KeepsGradients) {
  const auto leaf = torch::ones(2, torch::requires_grad());
  batch<at::Tensor>({leaf, leaf * 2}).sum().backward();
  EXPECT_THAT(values(leaf.grad()), ElementsAre(3, 3));
}

TEST(Collate, MakesTensorsOfNumbersInTheirOwnType) {
  EXPECT_EQ(batch<float>({1.5F}).scalar_type(), at::kFloat);
  EXPECT_EQ(batch<double>({1.5}).scalar_type(), at::kDouble);
  EXPECT_EQ(batch<int>({1, 2}).scalar_type(), at::kInt);
  EXPECT_EQ(batch<uint8_t>({1, 2}).scalar_type(), at::kByte);
  EXPECT_EQ(batch<bool>({true, false}).scalar_type(), at::kBool);
  EXPECT_THAT(values(batch<int64_t>({3, 1, 2})), ElementsAre(3, 1, 2));
  const auto rows = batch<std::vector<int64_t>>({{1, 2}, {3, 4}});
  EXPECT_EQ(rows.sizes(), (std::vector<int64_t>{2, 2}));
  EXPECT_THAT(values(batch<std::array<float, 2>>({{1, 2}, {3, 4}})), ElementsAre(1, 2, 3, 4));
}

struct Inputs {
  at::Tensor ids;
  std::vector<at::Tensor> layers;
};

TEST(Collate, GoesIntoNestedSamples) {
  using Sample = std::tuple<std::pair<at::Tensor, int64_t>, std::map<std::string, float>, Inputs,
                            std::optional<std::string>>;
  const Sample sample = {
      {torch::ones(2), 5}, {{"a", 1.F}}, {torch::ones(3), {torch::ones(1)}}, "hi"};
  const auto [pair, map, inputs, text] = batch<Sample>({sample, sample});
  EXPECT_EQ(pair.first.sizes(), (std::vector<int64_t>{2, 2}));
  EXPECT_THAT(values(pair.second), ElementsAre(5, 5));
  EXPECT_THAT(values(map.at("a")), ElementsAre(1, 1));
  EXPECT_EQ(inputs.ids.sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(inputs.layers[0].sizes(), (std::vector<int64_t>{2, 1}));
  EXPECT_THAT(*text, ElementsAre("hi", "hi"));
}

TEST(Collate, TakesExamplesOfNumbers) {
  using Sample = torch::data::Example<at::Tensor, int64_t>;
  const auto out = batch<Sample>({{torch::ones(2), 1}, {torch::ones(2), 2}});
  static_assert(std::is_same_v<decltype(out), const torch::data::Example<>>);
  EXPECT_THAT(values(out.target), ElementsAre(1, 2));
  const auto alone = batch<torch::data::TensorExample>({torch::ones(2), torch::ones(2)});
  EXPECT_EQ(alone.data.size(0), 2);
}

TEST(Collate, NamesTheFieldThatDoesNotFit) {
  using Pair = std::pair<at::Tensor, std::map<std::string, at::Tensor>>;
  const auto one = [](int64_t a, int64_t b) {
    return Pair{torch::ones(a), {{"ids", torch::ones(b)}}};
  };
  EXPECT_ERROR(batch<Pair>({one(1, 2), one(1, 2), one(1, 3)}), std::invalid_argument,
               "field [1].ids: sample 0 of the batch has shape [2] and sample 2 has [3]");
  EXPECT_ERROR(batch<at::Tensor>({torch::ones(1), torch::ones(1, at::kLong)}),
               std::invalid_argument,
               "sample 0 of the batch is Float on cpu and sample 1 is Long on cpu");
  EXPECT_ERROR(batch<at::Tensor>({torch::ones(1), at::Tensor()}), std::invalid_argument,
               "sample 1 of the batch is an undefined tensor");
  EXPECT_ERROR(batch<std::vector<at::Tensor>>({{torch::ones(1)}, {}}), std::invalid_argument,
               "sample 0 of the batch has 1 elements and sample 1 has 0");
  EXPECT_ERROR((batch<std::map<int, at::Tensor>>({{{1, torch::ones(1)}}, {{2, torch::ones(1)}}})),
               std::invalid_argument,
               "field [1]: sample 0 of the batch has 1 values and sample 1 has 0");
  EXPECT_ERROR(batch<std::optional<float>>({1.F, std::nullopt}), std::invalid_argument,
               "has 1 values and sample 1 has 0");
}

TEST(Collate, PadsToTheLargestSizeInEachDimension) {
  const std::vector<at::Tensor> samples = {torch::ones({1, 3}), torch::full({2, 1}, 2.0),
                                           at::ones({0, 0})};
  const auto padded = collate(samples, 9.0);
  EXPECT_EQ(padded.sizes(), (std::vector<int64_t>{3, 2, 3}));
  EXPECT_THAT(values(padded[0]), ElementsAre(1, 1, 1, 9, 9, 9));
  EXPECT_THAT(values(padded[1]), ElementsAre(2, 9, 9, 2, 9, 9));
  EXPECT_THAT(values(collate(std::vector<std::vector<int>>{{1}, {2, 3}}, 0.0)),
              ElementsAre(1, 0, 2, 3));
  EXPECT_ERROR(collate(std::vector<at::Tensor>{torch::ones(1), torch::ones({1, 1})}, 0.0),
               std::invalid_argument, "has 1 dimensions and sample 1 has 2");
}

struct Everything {
  at::Tensor tensor, undefined;
  std::string text;
  std::vector<std::pair<int, std::optional<double>>> list;
  std::map<std::string, std::vector<at::Tensor>> map;
  std::array<bool, 2> flags;
  torch::data::Example<> example;
};

TEST(Wire, BringsEveryPartAcross) {
  Everything sent{torch::arange(3),
                  {},
                  "text",
                  {{1, 2.5}, {3, std::nullopt}},
                  {{"k", {torch::ones(2)}}},
                  {true, false},
                  {torch::ones(1), torch::zeros(1)}};
  detail::Wire out;
  detail::transfer(out, sent);
  EXPECT_EQ(out.tensors.size(), 4U);
  detail::Wire in(out.bytes, out.tensors);
  Everything got;
  detail::transfer(in, got);
  EXPECT_TRUE(torch::equal(got.tensor, sent.tensor));
  EXPECT_FALSE(got.undefined.defined());
  EXPECT_EQ(got.text, "text");
  EXPECT_EQ(got.list, sent.list);
  EXPECT_TRUE(torch::equal(got.map.at("k").at(0), torch::ones(2)));
  EXPECT_EQ(got.flags, sent.flags);
  EXPECT_TRUE(torch::equal(got.example.target, torch::zeros(1)));
}

TEST(Wire, RefusesBytesThatEndTooEarly) {
  std::vector<std::string> sent = {"abc", "def"};
  detail::Wire out;
  detail::transfer(out, sent);
  for (size_t size = 0; size < out.bytes.size(); ++size) {
    detail::Wire in(out.bytes.substr(0, size), {});
    std::vector<std::string> got;
    EXPECT_ERROR(detail::transfer(in, got), std::invalid_argument, "too few bytes");
  }
}

TEST(Wire, KnowsWhatCannotBeSent) {
  static_assert(detail::is_sendable<Everything>());
  static_assert(!detail::is_sendable<std::vector<std::shared_ptr<int>>>());
  static_assert(!detail::is_sendable<int*>());
}

}  // namespace
}  // namespace drivetrain
