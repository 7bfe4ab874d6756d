// SPDX-License-Identifier: Apache-2.0
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <drivetrain/activation_checkpoint.h>
#include <drivetrain/hardware.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <deque>
#include <mutex>

#include "training/refuse.h"

namespace drivetrain::detail {
namespace {

using Tensors = std::vector<at::Tensor>;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// The accelerators of the tensors, and the CPU.
std::vector<at::Device> devices_of(const Tensors& tensors) {
  std::vector<at::Device> devices = {at::Device(at::kCPU)};
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined() && std::ranges::count(devices, tensor.device()) == 0)
      devices.push_back(tensor.device());
  return devices;
}

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

// The default generators of some devices as they are now.
class RandomStates {
 public:
  explicit RandomStates(const std::vector<at::Device>& devices) {
    for (const at::Device device : devices) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      at::Tensor state = state_of(generator);
      states_.emplace_back(std::move(generator), std::move(state));
    }
  }
  void restore() const {
    for (const auto& [generator, state] : states_) set_state(generator, state);
  }

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

// Brings the generators back at the end of a scope to where they were at its beginning.
class RandomScope {
 public:
  RandomScope(const std::vector<at::Device>& devices, const RandomStates& inside)
      : outside_(devices) {
    inside.restore();
  }
  ~RandomScope() { outside_.restore(); }
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  RandomStates outside_;
};

// Autocast of one device type in the calling thread.
struct CastState {
  c10::DeviceType type;
  bool enabled;
  at::ScalarType dtype;
  bool cache_enabled;
};

std::vector<CastState> cast_states(const std::vector<at::Device>& devices) {
  std::vector<CastState> states;
  for (const at::Device device : devices)
    states.push_back({device.type(), at::autocast::is_autocast_enabled(device.type()),
                      at::autocast::get_autocast_dtype(device.type()),
                      at::autocast::is_autocast_cache_enabled()});
  return states;
}

// The step of backward that runs the function again and goes back through it.
class Recompute final : public torch::autograd::Node {
 public:
  Recompute(TensorFunction function, const Tensors& inputs,
            const ActivationCheckpointOptions& options)
      : function_(std::move(function)),
        devices_(devices_of(inputs)),
        casts_(cast_states(devices_)) {
    for (const at::Tensor& input : inputs) inputs_.emplace_back(input, /*is_output=*/false);
    if (options.preserve_rng_state) random_.emplace(devices_);
  }

  // To the inputs, and to the anchor, so that something follows this node in every graph: what
  // waits for the end of the outer backward is hung on what follows.
  void connect(const Tensors& inputs) {
    auto edges = torch::autograd::collect_next_edges(inputs);
    edges.push_back(torch::autograd::impl::gradient_edge(anchor_));
    set_next_edges(std::move(edges));
  }

  std::string name() const override { return "ActivationCheckpoint"; }

  variable_list apply(variable_list&& gradients) override {
    if (at::GradMode::is_enabled())
      training::refuse(
          "backward with create_graph through activation_checkpoint, whose second derivatives "
          "nothing keeps; allowed: backward without; leave the checkpoint out");
    Tensors inputs = unpack();
    Tensors outputs = run_again(inputs);
    go_back(outputs, gradients);
    variable_list results;
    for (const at::Tensor& input : inputs)
      results.push_back(input.defined() ? input.grad() : at::Tensor());
    results.emplace_back();  // for the anchor
    return results;
  }

  void release_variables() override {
    for (SavedVariable& input : inputs_) input.reset_data();
    function_ = nullptr;
  }

 private:
  // As leaves of a graph of their own.
  Tensors unpack() {
    if (!function_)
      training::refuse(
          "a second backward through activation_checkpoint, which the first one has freed; "
          "allowed: backward with retain_graph before");
    Tensors inputs;
    for (const SavedVariable& saved : inputs_) {
      const at::Tensor input = saved.unpack();
      inputs.push_back(input.defined() ? input.detach().requires_grad_(input.requires_grad())
                                       : at::Tensor());
    }
    return inputs;
  }

  Tensors run_again(const Tensors& inputs) const {
    std::optional<RandomScope> random;
    if (random_) random.emplace(devices_, *random_);
    std::deque<Autocast> casts;
    for (const CastState& cast : casts_)
      casts.emplace_back(cast.type, cast.enabled, cast.dtype, cast.cache_enabled);
    const at::AutoGradMode with_grad(true);
    Tensors outputs = function_(inputs);
    while (!casts.empty()) casts.pop_back();  // The last one first.
    return outputs;
  }

  static void go_back(const Tensors& outputs, const variable_list& gradients) {
    variable_list roots, starts;
    for (size_t i = 0; i < outputs.size(); ++i)
      if (gradients[i].defined() && outputs[i].defined() && outputs[i].requires_grad()) {
        roots.push_back(outputs[i]);
        starts.push_back(gradients[i]);
      }
    if (!roots.empty()) torch::autograd::backward(roots, starts);
  }

  at::Tensor anchor_ = at::empty({0}).requires_grad_();
  TensorFunction function_;
  std::vector<SavedVariable> inputs_;
  std::vector<at::Device> devices_;
  std::vector<CastState> casts_;
  std::optional<RandomStates> random_;
};

// LibTorch's owner of a node: a shared_ptr up to some version, an intrusive_ptr from there on.
using NodePointer = std::remove_cvref_t<decltype(std::declval<at::Tensor>().grad_fn())>;

template <class Node, class... Args>
NodePointer make_node(const Args&... args) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>)
    return std::make_shared<Node>(args...);
  else
    return c10::make_intrusive<Node>(args...);
}

}  // namespace

Tensors activation_checkpoint(const TensorFunction& function, const Tensors& inputs,
                              const ActivationCheckpointOptions& options) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  const NodePointer node = make_node<Recompute>(function, inputs, options);
  static_cast<Recompute&>(*node).connect(inputs);
  Tensors outputs;
  {
    const at::NoGradGuard no_grad;
    outputs = function(inputs);
    // An output that is an input, or a parameter, must not get a history of its own.
    for (at::Tensor& output : outputs)
      if (output.defined()) output = output.detach();
  }
  for (const at::Tensor& output : outputs)
    if (output.defined() && (output.is_floating_point() || output.is_complex()))
      torch::autograd::set_history(output, node);
    else
      node->add_input_metadata(torch::autograd::Node::undefined_input());
  return outputs;
}

}  // namespace drivetrain::detail
