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

class CallAfter : public torch::autograd::FunctionPostHook {
 public:
  explicit CallAfter(std::function<void()> call) : call_(std::move(call)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    call_();
    return outputs;
  }

 private:
  std::function<void()> call_;
};

// A hook on a node, which it keeps alive: a parameter alone does not.
class Attached {
 public:
  Attached(const at::Tensor& parameter, std::function<void()> after)
      : node_(torch::autograd::impl::grad_accumulator(parameter)),
        key_(node_->add_post_hook(std::make_unique<CallAfter>(std::move(after)))) {}
  ~Attached() { node_->del_post_hook(key_); }
  Attached(const Attached&) = delete;
  Attached& operator=(const Attached&) = delete;

 private:
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
    if (const auto outer = torch::autograd::get_current_node()) {
      outer->add_post_hook(std::make_unique<CallAfter>([self = shared_from_this()]() mutable {
        // Only once, though the node's graph may be kept and run again.
        if (const auto once = std::exchange(self, nullptr)) once->wait_for_end();
      }));
    } else {
      has_ended_ = true;
      at_end_();
    }
  }

  std::function<void()> at_end_;
  std::function<void()> failed_;
  bool has_ended_ = false;
};

}  // namespace

std::shared_ptr<void> after_accumulation(const at::Tensor& parameter, std::function<void()> after) {
  return std::make_shared<Attached>(parameter, std::move(after));
}

void call_at_end_of_backward(std::function<void()> at_end, std::function<void()> failed) {
  std::make_shared<Ending>(std::move(at_end), std::move(failed))->wait_for_end();
}

bool is_in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

}  // namespace drivetrain::parallel
