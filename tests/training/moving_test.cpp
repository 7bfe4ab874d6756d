// SPDX-License-Identifier: Apache-2.0
// prepare() moves models that exist already, and what their optimizers have gathered. On the CPU
// nothing moves, and all must go on as before.
#include <torch/script.h>
#include <torch/torch.h>

#include <drivetrain/drivetrain.h>
#include <gtest/gtest.h>

#include <sstream>

#include "expect_error.h"
#include "small_net.h"
#include "test_device.h"

namespace drivetrain {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;
namespace optim = torch::optim;

void append(Tensors& all, const auto& state) {
  if constexpr (requires { state.exp_avg(); })
    for (const Tensor& t : {state.exp_avg(), state.exp_avg_sq(), state.max_exp_avg_sq()})
      all.push_back(t);
  if constexpr (requires { state.sum(); }) all.push_back(state.sum());
  if constexpr (requires { state.momentum_buffer(); }) all.push_back(state.momentum_buffer());
  if constexpr (requires { state.square_avg(); }) {
    all.push_back(state.square_avg());
    all.push_back(state.grad_avg());
  }
  if constexpr (requires { state.old_dirs(); }) {
    for (const Tensor& t : {state.d(), state.H_diag(), state.prev_flat_grad()}) all.push_back(t);
    for (const auto& list : {state.old_dirs(), state.old_stps(), state.ro()})
      all.insert(all.end(), list.begin(), list.end());
    if (state.al())
      for (const Tensor& t : *state.al())
        if (t.defined()) all.push_back(t);
  }
}

template <class State>
Tensors state_tensors(const optim::Optimizer& optimizer) {
  Tensors all;
  for (const auto& group : optimizer.param_groups())
    for (const Tensor& parameter : group.params()) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found != optimizer.state().end()) append(all, static_cast<const State&>(*found->second));
    }
  return all;
}

// Those that are defined are on this rank's device, and some are.
void expect_here(const Tensors& tensors) {
  size_t count = 0;
  for (const Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    EXPECT_EQ(tensor.device(), here::device());
    ++count;
  }
  EXPECT_GT(count, 0);
}

Tensor loss_of(auto& model, int step) {
  const auto device = model->parameters()[0].device();
  const auto x = torch::linspace(-1, 1, 12).reshape({4, 3}) * (step + 1);
  return model->forward(x.to(device)).pow(2).mean();
}

void train(auto& model, auto& optimizer, int begin, int end) {
  for (int step = begin; step < end; ++step)
    optimizer.step([&, step] {
      optimizer.zero_grad();
      const auto loss = loss_of(model, step);
      loss.backward();
      return loss;
    });
}

torch::nn::Linear linear() {
  torch::nn::Linear model(3, 2);
  const torch::NoGradGuard no_grad;
  for (const Tensor& p : model->parameters())
    p.copy_(torch::linspace(0.5, 1, p.numel()).reshape(p.sizes()));
  return model;
}

enum class Order { model_first, optimizer_first, at_once, prepared_before_steps };

// Steps on the CPU, then prepare() in that order, then more steps.
template <class State, class O, class Options>
void expect_state_follows(const Options& options, Order order, double tolerance) {
  torch::nn::Linear plain = linear(), model = linear();
  O plain_optimizer(plain->parameters(), options), optimizer(model->parameters(), options);
  train(plain, plain_optimizer, 0, 6);
  Accelerator accelerator;
  std::optional<PreparedOptimizer<O>> moved;
  std::optional<Prepared<torch::nn::Linear>> stand_in;
  if (order == Order::prepared_before_steps) {
    moved.emplace(accelerator.prepare(std::move(optimizer)));
    train(model, *moved, 0, 3);
  } else {
    train(model, optimizer, 0, 3);
  }
  if (order == Order::at_once) {
    auto [m, o] = accelerator.prepare(model, std::move(optimizer));
    stand_in.emplace(std::move(m));
    moved.emplace(std::move(o));
  }
  if (order == Order::optimizer_first) moved.emplace(accelerator.prepare(std::move(optimizer)));
  if (!stand_in) stand_in.emplace(accelerator.prepare(model));
  if (!moved) moved.emplace(accelerator.prepare(std::move(optimizer)));
  const Tensors state = state_tensors<State>(*moved);
  expect_here(state);
  train(*stand_in, *moved, 3, 6);
  for (size_t i = 0; i < 2; ++i)
    EXPECT_TRUE(torch::allclose((*stand_in)->parameters()[i].cpu(), plain->parameters()[i],
                                tolerance, tolerance));
}

template <class State, class O, class Options>
void expect_state_follows(const Options& options, double tolerance = 0) {
  for (const Order order :
       {Order::model_first, Order::optimizer_first, Order::at_once, Order::prepared_before_steps}) {
    SCOPED_TRACE(static_cast<int>(order));
    expect_state_follows<State, O>(options, order, tolerance);
  }
}

TEST(StateFollows, OfAdam) {
  expect_state_follows<optim::AdamParamState, optim::Adam>(optim::AdamOptions(0.1).amsgrad(true),
                                                           1e-6);
  expect_state_follows<optim::AdamWParamState, optim::AdamW>(optim::AdamWOptions(0.1), 1e-6);
}
TEST(StateFollows, OfSgd) {
  expect_state_follows<optim::SGDParamState, optim::SGD>(optim::SGDOptions(0.1).momentum(0.9),
                                                         1e-6);
}
TEST(StateFollows, OfAdagrad) {
  expect_state_follows<optim::AdagradParamState, optim::Adagrad>(optim::AdagradOptions(0.1), 1e-6);
}
TEST(StateFollows, OfRmsprop) {
  expect_state_follows<optim::RMSpropParamState, optim::RMSprop>(
      optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
}
TEST(StateFollows, OfLbfgs) {
  expect_state_follows<optim::LBFGSParamState, optim::LBFGS>(
      optim::LBFGSOptions(0.1).max_iter(3).line_search_fn("strong_wolfe"), 1e-6);
}

// A class of the user's on Adam's state, moved about before the model is prepared.
struct OwnAdam : optim::Adam {
  using optim::Adam::Adam;
};

TEST(StateFollows, WhereverTheOptimizerHasGone) {
  auto model = linear();
  Accelerator accelerator;
  auto first = accelerator.prepare(OwnAdam(model->parameters(), 0.1));
  train(model, first, 0, 1);
  std::vector<PreparedOptimizer<OwnAdam>> kept;
  kept.push_back(std::move(first));
  auto gone = std::make_unique<PreparedOptimizer<OwnAdam>>(
      accelerator.prepare(OwnAdam(model->parameters(), 0.1)));
  gone.reset();  // no longer to be reached
  kept.push_back(accelerator.prepare(OwnAdam(linear()->parameters(), 0.1)));
  kept[1] = std::move(kept[0]);
  auto stand_in = accelerator.prepare(model);
  const Tensors state = state_tensors<optim::AdamParamState>(kept[1]);
  EXPECT_EQ(state.size(), 6);
  expect_here(state);
}

TEST(StateFollows, OutOfAFileOfTheCpu) {
  auto model = linear(), other = linear();
  optim::RMSprop optimizer(model->parameters(), 0.01);
  train(model, optimizer, 0, 2);
  std::stringstream file;
  torch::save(optimizer, file);
  Accelerator accelerator;
  auto stand_in = accelerator.prepare(other);
  auto prepared = accelerator.prepare(optim::RMSprop(other->parameters(), 0.01));
  torch::load(prepared, file);
  const Tensors state = state_tensors<optim::RMSpropParamState>(prepared);
  EXPECT_EQ(state.size(), 6);
  expect_here(state);
  train(stand_in, prepared, 2, 3);
}

struct TiedNetImpl : torch::nn::Module {
  TiedNetImpl() {
    in = register_parameter("in", torch::ones({3, 2}));
    out = register_parameter("out", in);
    rows = register_buffer("rows", in.detach().slice(0, 1, 3));
    parts = register_buffer("parts", torch::view_as_complex(in.detach()).conj());
  }
  Tensor forward(const Tensor& x) { return x.mm(in).mm(out.t()); }
  Tensor in, out, rows, parts;
};
TORCH_MODULE(TiedNet);

TEST(Moving, KeepsObjectsTiesViewsAndNames) {
  TiedNet net;
  const auto* object = net->in.unsafeGetTensorImpl();
  Accelerator accelerator;
  auto model = accelerator.prepare(net);
  auto optimizer = accelerator.prepare(optim::SGD(model->parameters(), 0.5));
  EXPECT_EQ(net->in.unsafeGetTensorImpl(), object);
  EXPECT_EQ(net->named_parameters().keys(), (std::vector<std::string>{"in", "out"}));
  EXPECT_TRUE(net->in.is_same(net->out));
  EXPECT_TRUE(net->in.is_leaf() && net->in.requires_grad());
  for (const Tensor& each : {net->in, net->rows, net->parts})
    EXPECT_EQ(each.device(), here::device());
  accelerator.backward(model->forward(here::ones({1, 3})).sum());
  optimizer.step();
  // Each of the 3 x 2 weights has the gradient 3 + 3.
  EXPECT_TRUE(torch::equal(net->in.cpu(), torch::full({3, 2}, -2.0)));
  EXPECT_TRUE(torch::equal(net->rows.cpu(), torch::full({2, 2}, -2.0))) << "no longer a view";
  EXPECT_TRUE(net->parts.is_conj());
  EXPECT_TRUE(
      torch::equal(net->parts.cpu().resolve_conj(), torch::full({3}, c10::complex<float>(-2, 2))))
      << "no longer a view";
}

TEST(Moving, ALiveGraphIsRefusedByName) {
  if (here::is_cpu()) GTEST_SKIP() << "nothing moves";
  auto net = torch::nn::Sequential(torch::nn::BatchNorm1d(2), torch::nn::Linear(2, 1));
  auto loss = net->forward(torch::ones({3, 2})).sum();
  Accelerator accelerator;
  EXPECT_ERROR(accelerator.prepare(net), HardwareError,
               "parameter 0.weight of shape [2] cannot change from cpu to sim:0: a graph still "
               "holds it; allowed: moving before the forward pass; let its loss and outputs go");
  for (const Tensor& each : net->parameters()) EXPECT_TRUE(each.is_cpu());
  for (const Tensor& each : net->buffers()) EXPECT_TRUE(each.is_cpu());
  loss.backward();
  loss.reset();
  auto model = accelerator.prepare(net);
  for (const Tensor& each : net->parameters()) {
    EXPECT_EQ(each.device(), here::device());
    EXPECT_EQ(each.grad().device(), here::device());
  }
}

TEST(Moving, ATorchScriptModuleKeepsItsObjectsAndTies) {
  torch::jit::Module inner("inner"), script("outer");
  inner.register_parameter("weight", torch::full({2}, 3.0), /*is_buffer=*/false);
  inner.register_buffer("first", inner.attr("weight").toTensor().detach().slice(0, 0, 1));
  inner.define("def forward(self, x):\n  return x * self.weight + self.first\n");
  script.register_module("inner", inner);
  script.define("def forward(self, x):\n  return self.inner.forward(x)\n");
  const Tensor weight = inner.attr("weight").toTensor().requires_grad_();
  Accelerator accelerator;
  auto model = accelerator.prepare(script);
  auto optimizer = accelerator.prepare(optim::SGD({weight}, 1.0));
  EXPECT_EQ(weight.device(), here::device());
  const Tensor y = model.forward({here::ones({2})}).toTensor();
  EXPECT_TRUE(torch::equal(y.cpu(), torch::full({2}, 6.0)));
  accelerator.backward(y.sum());
  optimizer.step();
  EXPECT_TRUE(torch::equal(inner.attr("first").toTensor().cpu(), torch::full({1}, 2.0)));
}

}  // namespace
}  // namespace drivetrain
