// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/nested.h>
#include <torch/torch.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "expect_error.h"

namespace drivetrain {
namespace {

torch::Tensor number(int value) { return torch::full({}, value); }

template <class T>
std::vector<int> numbers(const T& value) {
  std::vector<int> all;
  for (const auto& tensor : drivetrain::flatten(value)) all.push_back(tensor.template item<int>());
  return all;
}

using Numbers = std::vector<int>;

TEST(Nested, ATensorIsItself) {
  EXPECT_EQ(numbers(number(3)), Numbers{3});
  EXPECT_EQ(map_tensors(number(3), [](const torch::Tensor& t) { return t + 1; }).item<int>(), 4);
}

TEST(Nested, VisitsContainersInTheirOrder) {
  EXPECT_EQ(numbers(std::vector<torch::Tensor>{number(1), number(2)}), (Numbers{1, 2}));
  EXPECT_EQ(numbers(std::array<torch::Tensor, 2>{number(1), number(2)}), (Numbers{1, 2}));
  EXPECT_EQ(numbers(std::make_tuple(number(1), std::string("x"), number(2))), (Numbers{1, 2}));
  EXPECT_EQ(numbers(std::pair(number(1), number(2))), (Numbers{1, 2}));
  EXPECT_EQ(numbers(std::optional(number(1))), Numbers{1});
  EXPECT_EQ(numbers(std::optional<torch::Tensor>()), Numbers{});
  EXPECT_EQ(numbers(std::vector<std::vector<torch::Tensor>>{{number(1)}, {}, {number(2)}}),
            (Numbers{1, 2}));
}

TEST(Nested, VisitsMapsByKeyWhateverTheirHash) {
  EXPECT_EQ(numbers(std::map<std::string, torch::Tensor>{{"b", number(2)}, {"a", number(1)}}),
            (Numbers{1, 2}));
  std::unordered_map<int, torch::Tensor> hashed;
  for (int i = 20; i > 0; --i) hashed[i * 7919 % 23] = number(i * 7919 % 23);
  const auto all = numbers(hashed);
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
  EXPECT_EQ(all.size(), hashed.size());
}

struct Inner {
  std::vector<torch::Tensor> tensors;
  int id = 0;
};

struct Outer {
  torch::Tensor first;
  std::string name;
  Inner inner;
  std::optional<torch::Tensor> last;
  const char* note = "kept";
  std::vector<int64_t> sizes;
};

TEST(Nested, VisitsStructsMemberByMemberAndKeepsTheRest) {
  const Outer outer{number(1), "name", {{number(2), number(3)}, 7}, number(4), "note", {5, 6}};
  EXPECT_EQ(numbers(outer), (Numbers{1, 2, 3, 4}));
  const Outer doubled = map_tensors(outer, [](const torch::Tensor& t) { return t * 2; });
  EXPECT_EQ(numbers(doubled), (Numbers{2, 4, 6, 8}));
  EXPECT_EQ(doubled.name, "name");
  EXPECT_EQ(doubled.inner.id, 7);
  EXPECT_EQ(doubled.sizes, (std::vector<int64_t>{5, 6}));
  EXPECT_STREQ(doubled.note, "note");
  EXPECT_EQ(numbers(outer), (Numbers{1, 2, 3, 4})) << "the original is untouched";
}

struct Twelve {
  torch::Tensor a, b, c, d, e, f, g, h, i, j, k, l;
};

TEST(Nested, TakesStructsOfUpToTwelveMembers) {
  const Twelve all{number(1), number(2), number(3), number(4),  number(5),  number(6),
                   number(7), number(8), number(9), number(10), number(11), number(12)};
  EXPECT_EQ(numbers(all), (Numbers{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
}

class WithFields {
 public:
  WithFields(torch::Tensor a, torch::Tensor b) : a_(std::move(a)), b_(std::move(b)) {}
  auto fields() { return std::tie(b_, a_); }

 private:
  torch::Tensor a_;
  torch::Tensor b_;
};

TEST(Nested, AClassSaysItsPartsByFields) {
  EXPECT_EQ(numbers(WithFields(number(1), number(2))), (Numbers{2, 1}));
}

TEST(Nested, TakesLibTorchsOwnContainers) {
  EXPECT_EQ(numbers(torch::data::Example<>(number(1), number(2))), (Numbers{1, 2}));
  EXPECT_EQ(numbers(torch::data::TensorExample(number(3))), Numbers{3});
  torch::OrderedDict<std::string, torch::Tensor> dict;
  dict.insert("z", number(1));
  dict.insert("a", number(2));
  EXPECT_EQ(numbers(dict), (Numbers{1, 2})) << "in the order of insertion";
}

TEST(Nested, UnflattenPutsTensorsBackInOrder) {
  const Outer outer{number(1), "", {{number(2), number(3)}, 0}, std::nullopt, "", {}};
  const auto filled = drivetrain::unflatten(outer, {number(7), number(8), number(9)});
  EXPECT_EQ(numbers(filled), (Numbers{7, 8, 9}));
  EXPECT_ERROR(drivetrain::unflatten(outer, {number(7)}), std::invalid_argument, "too few tensors");
  EXPECT_ERROR(drivetrain::unflatten(outer, drivetrain::flatten(Twelve())), std::invalid_argument,
               "too many tensors");
}

TEST(Nested, CarriesPlainValuesAlong) {
  EXPECT_EQ(numbers(5), Numbers{});
  EXPECT_EQ(map_tensors(std::string("text"), [](const torch::Tensor& t) { return t; }), "text");
  const auto ids = std::make_tuple(std::vector<bool>{true, false}, 3.5);
  EXPECT_EQ(map_tensors(ids, [](const torch::Tensor& t) { return t; }), ids);
}

}  // namespace
}  // namespace drivetrain
