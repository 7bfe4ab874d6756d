// SPDX-License-Identifier: Apache-2.0
#include "parallel/backward_hooks.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace drivetrain::parallel {
namespace {

using torch::autograd::Engine;
using torch::autograd::variable_list;

// An accumulation node is also reached without a gradient, where a function returns none.
class CallAfter : public torch::autograd::FunctionPostHook {
 public:
  explicit CallAfter(std::function<void(bool)> call) : call_(std::move(call)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    call_(!inputs.empty() && inputs[0].defined());
    return outputs;
  }

 private:
  std::function<void(bool)> call_;
};

// Calls made after the next run of a node. A node has at most one, as leaves live on.
class CallOnce : public torch::autograd::FunctionPostHook {
 public:
  static CallOnce& of(torch::autograd::Node& node) {
    for (const auto& hook : node.post_hooks())
      if (auto* once = dynamic_cast<CallOnce*>(hook.get())) return *once;
    auto hook = std::make_unique<CallOnce>();
    CallOnce& once = *hook;
    node.add_post_hook(std::move(hook));
    return once;
  }

  void add(std::function<void()> call) { calls_.push_back(std::move(call)); }

  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    for (const auto& call : std::exchange(calls_, {})) call();
    return outputs;
  }

 private:
  std::vector<std::function<void()>> calls_;
};

// A hook on a node, which it keeps alive: a parameter alone does not.
class NodeHook : public AccumulationHook {
 public:
  NodeHook(const at::Tensor& parameter, std::function<void(bool)> after)
      : parameter_(parameter),
        node_(torch::autograd::impl::grad_accumulator(parameter)),
        key_(node_->add_post_hook(std::make_unique<CallAfter>(std::move(after)))) {}
  ~NodeHook() override { node_->del_post_hook(key_); }
  NodeHook(const NodeHook&) = delete;
  NodeHook& operator=(const NodeHook&) = delete;

  bool is_attached() const override {
    return torch::autograd::impl::try_get_grad_accumulator(parameter_) == node_;
  }

 private:
  at::Tensor parameter_;
  decltype(torch::autograd::impl::grad_accumulator(at::Tensor())) node_;
  uintptr_t key_;
};

// Owned by the callbacks of a backward alone, so it dies with it.
class Ending : public std::enable_shared_from_this<Ending> {
 public:
  Ending(std::function<void()> at_end, std::function<void()> failed)
      : at_end_(std::move(at_end)), failed_(std::move(failed)) {}
  ~Ending() {
    if (!has_ended_) failed_();
  }
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;

  void wait_for_end() {
    Engine::get_default_engine().queue_callback([self = shared_from_this()] { self->end(); });
  }

 private:
  void end() {
    if (const auto outer = torch::autograd::get_current_node()) return end_after(*outer);
    has_ended_ = true;
    at_end_();
  }

  // The node runs already, so it would not see a new hook of its own; those that follow it do.
  void end_after(const torch::autograd::Node& node) {
    const auto once = std::make_shared<std::shared_ptr<Ending>>(shared_from_this());
    for (const torch::autograd::Edge& edge : node.next_edges()) {
      if (!edge.function) continue;
      CallOnce::of(*edge.function).add([once] {
        if (const auto ending = std::exchange(*once, nullptr)) ending->wait_for_end();
      });
    }
  }

  std::function<void()> at_end_;
  std::function<void()> failed_;
  bool has_ended_ = false;
};

}  // namespace

std::unique_ptr<AccumulationHook> after_accumulation(const at::Tensor& parameter,
                                                     std::function<void(bool)> after) {
  return std::make_unique<NodeHook>(parameter, std::move(after));
}

void call_at_end_of_backward(std::function<void()> at_end, std::function<void()> failed) {
  std::make_shared<Ending>(std::move(at_end), std::move(failed))->wait_for_end();
}

bool is_in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

}  // namespace drivetrain::parallel
