// SPDX-License-Identifier: Apache-2.0
// Fused optimizer steps over the state of torch::optim's own classes, so that a prepared optimizer
// can be saved, loaded and handed back. One kernel call for each group, dtype and device: the
// hardware room's where it has one, else LibTorch's.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/TensorOptions.h>
#include <drivetrain/backends.h>
#include <drivetrain/optimizer.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <map>
#include <optional>
#include <tuple>
#include <unordered_set>

namespace drivetrain::detail {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

bool can_fuse(const at::Tensor& parameter, const at::Tensor& grad) {
  return grad.layout() == at::kStrided && at::isFloatingType(parameter.scalar_type()) &&
         grad.scalar_type() == parameter.scalar_type() && grad.device() == parameter.device() &&
         grad.sizes() == parameter.sizes() && parameter.is_non_overlapping_and_dense();
}

bool can_fuse(Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params()) {
      const at::Tensor& grad = parameter.grad();
      if (grad.defined() && !can_fuse(parameter, grad)) return false;
    }
  return true;
}

// The kernels walk raw memory, so every operand has the parameter's strides.
at::Tensor in_layout_of(const at::Tensor& parameter, const at::Tensor& tensor) {
  if (tensor.strides() == parameter.strides() && tensor.device() == parameter.device())
    return tensor;
  at::Tensor copy = at::empty_like(parameter, tensor.scalar_type());
  copy.copy_(tensor);
  return copy;
}

// What one kernel call takes: lists of equal length, all of one dtype and device.
struct Operands {
  std::vector<at::Tensor> parameters, grads, first, second, third, steps;
  std::vector<int64_t> ages;  // what `steps` holds, for kernels that take numbers
};

// The calls of one group. Two parameters share a call only if dtype, device and `kind` are equal.
using Calls = std::map<std::tuple<at::ScalarType, c10::DeviceType, int, bool>, Operands>;

Operands& call_for(Calls& calls, const at::Tensor& parameter, bool kind) {
  const at::Device device = parameter.device();
  Operands& operands =
      calls[{parameter.scalar_type(), device.type(), static_cast<int>(device.index()), kind}];
  operands.parameters.push_back(parameter);
  operands.grads.push_back(in_layout_of(parameter, parameter.grad()));
  return operands;
}

// Step counts as the kernels want them. Parameters of the same age share one tensor.
class StepTensors {
 public:
  const at::Tensor& get(int64_t step, at::Device device) {
    at::Tensor& tensor = tensors_[{step, device.str()}];
    if (!tensor.defined())
      tensor = at::full({}, static_cast<double>(step),
                        at::TensorOptions().dtype(at::kFloat).device(device));
    return tensor;
  }

 private:
  std::map<std::pair<int64_t, std::string>, at::Tensor> tensors_;
};

template <class State>
State& state_of(Optimizer& optimizer, const at::Tensor& parameter) {
  auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (!slot) slot = std::make_unique<State>();
  return static_cast<State&>(*slot);
}

// A state tensor in the parameter's layout; zeros where there is none yet.
template <class Accessor>
at::Tensor ready(const at::Tensor& parameter, Accessor access) {
  at::Tensor& tensor = access();
  tensor = tensor.defined() ? in_layout_of(parameter, tensor) : at::zeros_like(parameter);
  return tensor;
}

// One step by the hardware room's kernel for the device, if there is one. Its moments are float32,
// the class's are of the parameter's type, so it serves float32 parameters.
template <class Options>
bool step_by_own_kernel(at::ScalarType type, c10::DeviceType device, Operands& o,
                        const Options& options, bool decoupled) {
  using namespace kernels;  // NOLINT(google-build-using-namespace)
  const std::string backend = c10::DeviceTypeName(device, /*lower_case=*/true);
  if (type != at::kFloat || !kernel_registry().has("adam", backend)) return false;
  const AdamTensors tensors = {.parameters = std::move(o.parameters),
                               .grads = std::move(o.grads),
                               .exp_avgs = std::move(o.first),
                               .exp_avg_sqs = std::move(o.second),
                               .max_exp_avg_sqs = std::move(o.third),
                               .copies = {},
                               .steps = std::move(o.ages)};
  kernel_registry().load<AdamKernel>("adam", backend)(tensors,
                                                      {.lr = options.lr(),
                                                       .beta1 = std::get<0>(options.betas()),
                                                       .beta2 = std::get<1>(options.betas()),
                                                       .eps = options.eps(),
                                                       .weight_decay = options.weight_decay(),
                                                       .decoupled = decoupled,
                                                       .amsgrad = options.amsgrad()});
  return true;
}

// Adam and AdamW differ in how weights decay, so in LibTorch's kernel.
template <class State, class Options, class Kernel>
void adam_group(Optimizer& optimizer, OptimizerParamGroup& group, bool decoupled, Kernel kernel) {
  const auto& options = static_cast<const Options&>(group.options());
  Calls calls;
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    auto& state = state_of<State>(optimizer, parameter);
    Operands& operands = call_for(calls, parameter, false);
    operands.first.push_back(ready(parameter, [&]() -> auto& { return state.exp_avg(); }));
    operands.second.push_back(ready(parameter, [&]() -> auto& { return state.exp_avg_sq(); }));
    if (options.amsgrad())
      operands.third.push_back(ready(parameter, [&]() -> auto& { return state.max_exp_avg_sq(); }));
    state.step(state.step() + 1);
    operands.ages.push_back(state.step());
  }
  StepTensors steps;
  for (auto& [key, o] : calls) {
    if (step_by_own_kernel(std::get<0>(key), std::get<1>(key), o, options, decoupled)) continue;
    for (size_t i = 0; i < o.ages.size(); ++i)
      o.steps.push_back(steps.get(o.ages[i], o.parameters[i].device()));
    kernel(o.parameters, o.grads, o.first, o.second, o.third, o.steps, options.lr(),
           std::get<0>(options.betas()), std::get<1>(options.betas()), options.weight_decay(),
           options.eps(), options.amsgrad());
  }
}

void sgd_group(Optimizer& optimizer, OptimizerParamGroup& group) {
  using torch::optim::SGDOptions;
  using torch::optim::SGDParamState;
  const auto& options = static_cast<const SGDOptions&>(group.options());
  const bool with_momentum = options.momentum() != 0;
  Calls calls;
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    if (!with_momentum) {
      call_for(calls, parameter, false);
      continue;
    }
    auto& state = state_of<SGDParamState>(optimizer, parameter);
    const bool is_first = !state.momentum_buffer().defined();
    call_for(calls, parameter, is_first).first.push_back(ready(parameter, [&]() -> auto& {
      return state.momentum_buffer();
    }));
  }
  for (auto& [key, o] : calls)
    at::_fused_sgd_(o.parameters, o.grads, o.first, options.weight_decay(), options.momentum(),
                    options.lr(), options.dampening(), options.nesterov(), /*maximize=*/false,
                    /*is_first_step=*/std::get<3>(key));
}

// The CPU's kernel runs there: on the CPU, or because the device has none of its own.
bool takes_cpu_kernel(const at::Tensor& parameter) {
  static const auto fused_sgd =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_fused_sgd_", "");
  return parameter.is_cpu() ||
         !fused_sgd.hasKernelForDispatchKey(c10::computeDispatchKey(
             parameter.scalar_type(), parameter.layout(), parameter.device()));
}

// LibTorch 2.13's CPU kernel goes astray with momentum in bfloat16 and float16: ten times the error
// of the class against float32.
bool has_reduced_momentum(torch::optim::SGD& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    if (static_cast<const torch::optim::SGDOptions&>(group.options()).momentum() == 0) continue;
    for (const auto& parameter : group.params())
      if (at::isReducedFloatingType(parameter.scalar_type()) && takes_cpu_kernel(parameter))
        return true;
  }
  return false;
}

// Adagrad's constructor makes every state; a parameter without one is a user's error that
// Adagrad::step reports.
bool has_all_states(torch::optim::Adagrad& optimizer) {
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params())
      if (optimizer.state().find(parameter.unsafeGetTensorImpl()) == optimizer.state().end())
        return false;
  return true;
}

void adagrad_group(Optimizer& optimizer, OptimizerParamGroup& group) {
  using torch::optim::AdagradOptions;
  using torch::optim::AdagradParamState;
  const auto& options = static_cast<const AdagradOptions&>(group.options());
  Calls calls;
  StepTensors steps;
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    auto& state = state_of<AdagradParamState>(optimizer, parameter);
    Operands& operands = call_for(calls, parameter, false);
    operands.first.push_back(ready(parameter, [&]() -> auto& { return state.sum(); }));
    state.step(state.step() + 1);
    operands.steps.push_back(steps.get(state.step(), parameter.device()));
  }
  for (auto& [key, o] : calls)
    at::_fused_adagrad_(o.parameters, o.grads, o.first, o.steps, options.lr(), options.lr_decay(),
                        options.weight_decay(), options.eps(), /*maximize=*/false);
}

template <class Group>
bool step_groups(Optimizer& optimizer, Group step_group) {
  if (!can_fuse(optimizer)) return false;
  at::NoGradGuard no_grad;
  for (auto& group : optimizer.param_groups()) step_group(optimizer, group);
  return true;
}

}  // namespace

bool fused_step(torch::optim::Adam& optimizer) {
  using torch::optim::AdamOptions;
  using torch::optim::AdamParamState;
  const auto kernel = [](auto&&... operands) { at::_fused_adam_(operands..., /*maximize=*/false); };
  return step_groups(optimizer, [&](Optimizer& self, OptimizerParamGroup& group) {
    adam_group<AdamParamState, AdamOptions>(self, group, /*decoupled=*/false, kernel);
  });
}

bool fused_step(torch::optim::AdamW& optimizer) {
  using torch::optim::AdamWOptions;
  using torch::optim::AdamWParamState;
  const auto kernel = [](auto&&... operands) {
    at::_fused_adamw_(operands..., /*maximize=*/false);
  };
  return step_groups(optimizer, [&](Optimizer& self, OptimizerParamGroup& group) {
    adam_group<AdamWParamState, AdamWOptions>(self, group, /*decoupled=*/true, kernel);
  });
}

bool fused_step(torch::optim::SGD& optimizer) {
  return !has_reduced_momentum(optimizer) && step_groups(optimizer, sgd_group);
}

bool fused_step(torch::optim::Adagrad& optimizer) {
  return has_all_states(optimizer) && step_groups(optimizer, adagrad_group);
}

void drop_repeated_parameters(std::vector<OptimizerParamGroup>& groups) {
  std::unordered_set<const void*> seen;
  for (auto& group : groups)
    std::erase_if(group.params(), [&seen](const at::Tensor& parameter) {
      return !seen.insert(parameter.unsafeGetTensorImpl()).second;
    });
}

void zero_grad(std::vector<OptimizerParamGroup>& groups, bool set_to_none) {
  at::NoGradGuard no_grad;
  for (auto& group : groups)
    for (at::Tensor& parameter : group.params()) {
      at::Tensor& grad = parameter.mutable_grad();
      if (!grad.defined()) continue;
      // A gradient with a history (create_graph) must not be written through.
      if (set_to_none || grad.grad_fn())
        grad.reset();
      else
        grad.zero_();
    }
}

}  // namespace drivetrain::detail
