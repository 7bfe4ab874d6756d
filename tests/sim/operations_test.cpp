// SPDX-License-Identifier: Apache-2.0
// Operations on a simulated device are those on the CPU: the same numbers, shapes and layouts.
#include <torch/torch.h>

#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "devices.h"
#include "expect_error.h"

namespace drivetrain::sim {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Operation = std::function<Tensors(const Tensors&)>;

struct Case {
  const char* name;
  Tensors inputs;
  Operation run;
};

bool same(const Tensor& there, const Tensor& here) {
  if (!there.defined() || !here.defined()) return there.defined() == here.defined();
  return there.device() == at(1) && there.dtype() == here.dtype() &&
         there.sizes() == here.sizes() && there.strides() == here.strides() &&
         torch::equal(there.cpu(), here);
}

void expect_same(const Case& each) {
  SCOPED_TRACE(each.name);
  Tensors there;
  for (const Tensor& input : each.inputs)
    there.push_back(input.detach().to(at(1)).requires_grad_(input.requires_grad()));
  const Tensors got = each.run(there), want = each.run(each.inputs);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same(got[i], want[i])) << "result " << i;
}

Tensor randn(at::IntArrayRef sizes) { return torch::randn(sizes); }

// The results of `f`, and the gradients of their sum.
Operation with_gradients(std::function<Tensor(const Tensors&)> f) {
  return [f = std::move(f)](const Tensors& given) -> Tensors {
    Tensors inputs;
    for (const Tensor& each : given)
      inputs.push_back(each.is_floating_point() ? each.detach().requires_grad_() : each);
    const Tensor y = f(inputs);
    (y * y).sum().backward();
    Tensors results = {y.detach()};
    for (const Tensor& each : inputs)
      if (each.requires_grad()) results.push_back(each.grad());
    return results;
  };
}

TEST(SimOperations, ArithmeticAndReductions) {
  torch::manual_seed(0);
  const Tensors two = {randn({3, 4}), randn({4})};
  for (const Case& each : std::vector<Case>{
           {"add", two, [](auto& t) { return Tensors{t[0] + t[1], t[0] - 2, 3 / t[0], t[0] > 0}; }},
           {"sums", two,
            [](auto& t) {
              return Tensors{t[0].sum(),        t[0].mean(0),   t[0].std(1),
                             t[0].prod(),       t[0].cumsum(1), t[0].norm(),
                             t[0].logsumexp(1), t[0].any(),     t[0].argmax(1)};
            }},
           {"several results", two,
            [](auto& t) {
              auto [value, at] = t[0].max(1);
              auto [sorted, order] = t[1].sort();
              auto [top, which] = t[1].topk(2);
              return Tensors{value, at, sorted, order, top, which};
            }},
           {"shapes from data",
            {torch::tensor({3, 1, 3, 0, 2, 1})},
            [](auto& t) {
              auto [unique, back, counts] = at::_unique2(t[0], true, true, true);
              return Tensors{unique,
                             back,
                             counts,
                             t[0].nonzero(),
                             t[0].masked_select(t[0] > 1),
                             torch::bincount(t[0])};
            }},
           {"products",
            {randn({3, 4}), randn({4, 5}), randn({2, 3, 4}), randn({2, 4, 5})},
            [](auto& t) {
              return Tensors{t[0].mm(t[1]), t[2].bmm(t[3]),
                             torch::einsum("ij,jk->ki", {t[0], t[1]}), t[0].matmul(t[1]),
                             t[2].matmul(t[1])};
            }},
           {"linear algebra", {randn({3, 3})}, [](auto& t) {
              return Tensors{torch::linalg_inv(t[0] + 5 * torch::eye(3, t[0].options())),
                             torch::linalg_det(t[0])};
            }}})
    expect_same(each);
}

TEST(SimOperations, InPlaceAndIntoGivenTensors) {
  for (const Case& each : std::vector<Case>{
           {"in place",
            {randn({3, 4}), randn({4})},
            [](auto& t) {
              Tensor x = t[0].clone();
              x.add_(t[1]).mul_(2).clamp_(-1, 1).masked_fill_(x > 0.5, 7);
              x.select(0, 1).zero_();
              x.t().slice(0, 0, 4, 2).fill_(3);
              return Tensors{x};
            }},
           {"into",
            {randn({3, 4}), randn({3, 4})},
            [](auto& t) {
              Tensor empty = torch::empty({0}, t[0].options()), right = torch::empty_like(t[0]);
              torch::add_out(empty, t[0], t[1]);
              torch::mul_out(right, t[0], t[1]);
              Tensor sorted = torch::empty({0}, t[0].options()),
                     order = torch::empty({0}, t[0].options().dtype(torch::kLong));
              torch::sort_out(sorted, order, t[0], 1);
              Tensor found = torch::empty({0}, order.options());
              torch::nonzero_out(found, t[0] > 0);
              return Tensors{empty, right, sorted, order, found};
            }},
           {"overlapping",
            {randn({6})},
            [](auto& t) {
              Tensor x = t[0].clone();
              x.slice(0, 0, 3).add_(x.slice(0, 3, 6));
              return Tensors{x, x + x};
            }},
           {"lists",
            {randn({3}), randn({2, 2})},
            [](auto& t) {
              Tensors a = {t[0].clone(), t[1].clone()};
              at::_foreach_mul_(a, 3);
              at::_foreach_add_(a, t, 2);
              return a;
            }},
           {"copies between types", {randn({3, 2})}, [](auto& t) {
              return Tensors{t[0].to(torch::kDouble), t[0].to(torch::kInt), t[0].t().contiguous(),
                             t[0].clone(), torch::zeros({2, 3, 2}, t[0].options()).copy_(t[0])};
            }}})
    expect_same(each);
  const auto x = torch::ones({4}, torch::device(at(1)));
  EXPECT_ERROR(x.slice(0, 0, 3).add_(x.slice(0, 1, 4)), c10::Error, "overlap");
}

TEST(SimOperations, ViewsShareMemory) {
  expect_same({"views", {torch::arange(24).to(torch::kFloat)}, [](auto& t) {
                 const Tensor x = t[0].clone().view({2, 3, 4});
                 Tensors all = {
                     x.transpose(0, 2),   x.permute({1, 0, 2}), x.select(1, 1),
                     x.narrow(2, 1, 2),   x.unsqueeze(1),       x.expand({5, 2, 3, 4}),
                     x.diagonal(0, 0, 1), x.unfold(2, 2, 1),    x.view({6, 4}),
                     x.flatten(),         x.reshape({4, 6}),    x.as_strided({2, 2}, {5, 1}, 3),
                     x.view(torch::kInt), x.squeeze(),          x.movedim(0, 2)};
                 for (const Tensor& each : x.unbind(1)) all.push_back(each);
                 for (const Tensor& each : x.split(2, 2)) all.push_back(each);
                 for (const Tensor& each : all) EXPECT_TRUE(each.is_alias_of(x));
                 x.add_(100);
                 return all;
               }});
  expect_same({"complex views", {randn({3, 2})}, [](auto& t) {
                 const Tensor z = torch::view_as_complex(t[0].contiguous());
                 return Tensors{torch::view_as_real(z), z, torch::real(z).clone(),
                                (z.conj() * z).resolve_conj(), torch::imag(z.conj()).clone()};
               }});
}

TEST(SimOperations, IndexingAndGathering) {
  expect_same({"indexing",
               {randn({4, 5}), torch::tensor({3, 0, 3}), torch::tensor({1, 4, 2})},
               [](auto& t) {
                 Tensor x = t[0].clone();
                 x.index_put_({t[1], t[2]}, torch::ones({3}, x.options()), /*accumulate=*/true);
                 x.index_put_({t[1]}, torch::tensor(2.0f));
                 x.index_add_(0, t[1], torch::ones({3, 5}, x.options()));
                 x.scatter_(1, t[1].view({1, 3}), 9.0);
                 return Tensors{x,
                                x.index({t[1]}),
                                x.index({x > 0}),
                                x.index_select(1, t[2]),
                                x.gather(1, t[2].view({1, 3})),
                                x.take(t[1]),
                                torch::where(x > 0, x, -x),
                                torch::one_hot(t[2], 5),
                                x.flip({0}),
                                x.roll(2, 1),
                                x.tril(),
                                torch::cat({x, x}, 1),
                                torch::stack({x, x}),
                                x.repeat({2, 1}),
                                x.nonzero()};
               }});
}

TEST(SimOperations, NothingAndSingleNumbers) {
  expect_same({"zero-size", {torch::empty({0, 3}), torch::empty({0}), randn({3, 2})}, [](auto& t) {
                 return Tensors{t[0] + 1,
                                t[0].mm(t[2]),
                                t[0].sum(),
                                t[0].sum(0),
                                t[1].nonzero(),
                                torch::cat({t[0], t[0]}),
                                t[0].t().contiguous(),
                                t[0].clone(),
                                torch::relu(t[0]),
                                t[1].fill_(3),
                                t[1].cumsum(0)};
               }});
  expect_same({"0-dim", {randn({}), torch::tensor(3)}, [](auto& t) {
                 return Tensors{t[0] * t[1],
                                t[0] + 1,
                                t[0].view({1, 1}),
                                t[0].expand({3}),
                                t[1] / 2,
                                t[0].clone().fill_(t[0]),
                                torch::stack({t[0], t[0]})};
               }});
  EXPECT_EQ(torch::tensor(4, torch::device(at(1))).item<int>(), 4);
  EXPECT_TRUE(torch::ones({2}, torch::device(at(1))).all().item<bool>());
}

TEST(SimOperations, FactoriesMakeWhatTheyShould) {
  const auto there = torch::device(at(1));
  EXPECT_TRUE(torch::equal(torch::arange(5, there).cpu(), torch::arange(5)));
  EXPECT_TRUE(torch::equal(torch::linspace(0, 1, 7, there).cpu(), torch::linspace(0, 1, 7)));
  EXPECT_TRUE(torch::equal(torch::eye(3, 4, there).cpu(), torch::eye(3, 4)));
  EXPECT_TRUE(torch::equal(torch::full({2}, 3.5, there).cpu(), torch::full({2}, 3.5)));
  EXPECT_TRUE(torch::equal(torch::tril_indices(3, 3, 0, there.dtype(torch::kLong)).cpu(),
                           torch::tril_indices(3, 3)));
  EXPECT_TRUE(torch::equal(torch::tensor({1, 2}, there).cpu(), torch::tensor({1, 2})));
  auto resized = torch::arange(6, there);
  resized.resize_({2, 2});
  EXPECT_TRUE(torch::equal(resized.cpu(), torch::tensor({0, 1, 2, 3}).view({2, 2})));
  resized.resize_({10});
  EXPECT_TRUE(torch::equal(resized.slice(0, 0, 6).cpu(), torch::arange(6))) << "what was there";
  auto other = torch::empty({0}, there.dtype(torch::kLong));
  other.set_(resized);
  EXPECT_TRUE(other.is_alias_of(resized));
  other.set_();
  EXPECT_EQ(other.numel(), 0);
}

TEST(SimOperations, LayersAndTheirGradients) {
  torch::manual_seed(1);
  namespace F = torch::nn::functional;
  const Tensor images = randn({2, 3, 8, 8});
  for (const Case& each : std::vector<Case>{
           {"conv2d", {images, randn({4, 3, 3, 3}), randn({4})}, with_gradients([](auto& t) {
              return torch::conv2d(t[0], t[1], t[2], 2, 1);
            })},
           {"conv1d, dilated, grouped",
            {randn({2, 4, 9}), randn({6, 2, 3})},
            with_gradients([](auto& t) { return torch::conv1d(t[0], t[1], {}, 1, 2, 2, 2); })},
           {"conv3d",
            {randn({1, 2, 4, 4, 4}), randn({2, 2, 2, 2, 2}), randn({2})},
            with_gradients([](auto& t) { return torch::conv3d(t[0], t[1], t[2]); })},
           {"conv_transpose2d",
            {images, randn({3, 2, 3, 3}), randn({2})},
            with_gradients(
                [](auto& t) { return torch::conv_transpose2d(t[0], t[1], t[2], 2, 1, 1); })},
           {"channels last",
            {images.contiguous(at::MemoryFormat::ChannelsLast), randn({4, 3, 3, 3})},
            with_gradients([](auto& t) { return torch::conv2d(t[0], t[1]); })},
           {"batch_norm",
            {images, randn({3}), randn({3}), torch::zeros({3}), torch::ones({3})},
            [](auto& t) {
              Tensor mean = t[3].clone(), var = t[4].clone();
              const Tensor x = t[0].detach().requires_grad_();
              const Tensor y = torch::batch_norm(x, t[1], t[2], mean, var, true, 0.1, 1e-5, false);
              y.pow(3).sum().backward();
              return Tensors{
                  y.detach(), mean, var, x.grad(),
                  torch::batch_norm(t[0], t[1], t[2], mean, var, false, 0.1, 1e-5, false)};
            }},
           {"layer_norm", {randn({3, 5}), randn({5}), randn({5})}, with_gradients([](auto& t) {
              return torch::layer_norm(t[0], {5}, t[1], t[2]);
            })},
           {"group_norm", {images, randn({3}), randn({3})}, with_gradients([](auto& t) {
              return torch::group_norm(t[0], 3, t[1], t[2]);
            })},
           {"pools", {images}, with_gradients([](auto& t) {
              return torch::max_pool2d(t[0], 2) + torch::avg_pool2d(t[0], 2) +
                     torch::adaptive_avg_pool2d(t[0], {4, 4});
            })},
           {"embedding", {randn({7, 3}), torch::tensor({1, 1, 6, 0})}, with_gradients([](auto& t) {
              return torch::embedding(t[0], t[1], /*padding=*/0);
            })},
           {"losses", {randn({4, 5}), torch::tensor({1, 0, 4, 2})}, with_gradients([](auto& t) {
              return F::cross_entropy(t[0], t[1]) + F::nll_loss(torch::log_softmax(t[0], 1), t[1]) +
                     F::binary_cross_entropy(torch::sigmoid(t[0]), torch::sigmoid(t[0]).detach()) +
                     F::smooth_l1_loss(t[0], torch::zeros_like(t[0])) +
                     F::mse_loss(t[0], torch::ones_like(t[0]));
            })},
           {"activations", {randn({4, 5})}, with_gradients([](auto& t) {
              return torch::gelu(t[0]) + torch::silu(t[0]) + torch::elu(t[0]) +
                     torch::leaky_relu(t[0]) + torch::softmax(t[0], 0) + torch::tanh(t[0]) +
                     torch::log_sigmoid(t[0]) + torch::hardtanh(t[0]);
            })},
           {"interpolation", {images}, with_gradients([](auto& t) {
              return torch::upsample_bilinear2d(t[0], {5, 5}, false);
            })},
           {"padding", {images}, with_gradients([](auto& t) {
              return torch::constant_pad_nd(t[0], {1, 2}) +
                     torch::replication_pad2d(t[0], {1, 2, 0, 0});
            })}})
    expect_same(each);
}

// Cells and attention take other kernels on accelerators than on the CPU: close, not equal.
void expect_close(const Case& each) {
  SCOPED_TRACE(each.name);
  Tensors there;
  for (const Tensor& input : each.inputs) there.push_back(input.to(at(1)));
  const Tensors got = each.run(there), want = each.run(each.inputs);
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_TRUE(torch::allclose(got[i].cpu(), want[i], 1e-4, 1e-5)) << "result " << i;
}

TEST(SimOperations, RecurrentCells) {
  torch::manual_seed(2);
  const int64_t in = 3, hidden = 4;
  for (const int64_t gates : {4, 3}) {
    const Tensors inputs = {
        randn({5, 2, in}),           randn({1, 2, hidden}),           randn({1, 2, hidden}),
        randn({gates * hidden, in}), randn({gates * hidden, hidden}), randn({gates * hidden}),
        randn({gates * hidden})};
    for (const bool biased : {true, false})
      expect_close({gates == 4 ? "lstm" : "gru", inputs, with_gradients([=](auto& t) {
                      Tensors weights = {t[3], t[4]};
                      if (biased) weights.insert(weights.end(), {t[5], t[6]});
                      Tensor unused = t[5].sum() + t[6].sum() + t[2].sum();
                      if (gates == 3)
                        return std::get<0>(torch::gru(t[0], t[1], weights, biased, 1, 0, true,
                                                      false, false)) +
                               unused;
                      auto [y, h, c] = torch::lstm(t[0], {t[1], t[2]}, weights, biased, 1, 0, true,
                                                   false, false);
                      return y + h + c + unused;
                    })});
  }
}

TEST(SimOperations, Attention) {
  torch::manual_seed(3);
  const Tensors inputs = {randn({2, 2, 5, 4}), randn({2, 2, 5, 4}), randn({2, 2, 5, 4})};
  expect_close({"attention", inputs, with_gradients([](auto& t) {
                  return at::scaled_dot_product_attention(t[0], t[1], t[2]);
                })});
  expect_close({"causal", inputs, with_gradients([](auto& t) {
                  return at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0.0, true);
                })});
}

TEST(SimOperations, PackedSequences) {
  const auto x = torch::randn({3, 4, 2}), lengths = torch::tensor({4, 2, 1});
  const auto packed = at::_pack_padded_sequence(x.to(at(1)), lengths, true);
  EXPECT_TRUE(torch::equal(std::get<0>(packed).cpu(),
                           std::get<0>(at::_pack_padded_sequence(x, lengths, true))));
}

}  // namespace
}  // namespace drivetrain::sim
