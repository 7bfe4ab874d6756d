// SPDX-License-Identifier: Apache-2.0
#include "sim/operation.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/copy.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <memory>
#include <set>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "sim/alias.h"
#include "sim/device.h"
#include "sim/generator.h"
#include "sim/memory.h"
#include "sim/shapes.h"
#include "sim/tensors.h"

namespace drivetrain::sim {

using at::Tensor;
using c10::IValue;

namespace {

// What is known of an operation from its schema.
struct Plan {
  std::string name;             // "aten::add.out"
  std::vector<bool> draws;      // which arguments are generators
  std::vector<int> written_by;  // for each result: the argument that it is, or -1
  std::vector<size_t> outs;     // arguments that may be resized
  bool is_view = false;
  bool fresh = false;         // has results that are no arguments
  bool only_tensors = false;  // and those are tensors
  bool has_meta = false;
  bool moves_host_tensors = false, takes_host_tensors = false;
};

// Where LibTorch's kernels for accelerators take host tensors too.
const std::set<std::string> kIndexing = {
    "aten::index",      "aten::index_put",     "aten::_index_put_impl_",
    "aten::index_put_", "aten::_unsafe_index", "aten::_unsafe_index_put"};
const std::set<std::string> kLengths = {"aten::_pack_padded_sequence"};

bool is_generator(const c10::TypePtr& type) {
  static const auto optional = c10::OptionalType::create(c10::GeneratorType::get());
  return type->isSubtypeOf(*optional) && type->kind() != c10::TypeKind::NoneType;
}

bool is_tensor_like(const c10::TypePtr& type) {
  return type->isSubtypeOf(*c10::TensorType::get()) ||
         type->isSubtypeOf(*c10::ListType::ofTensors());
}

int written_argument(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (result.alias_info() == nullptr || !result.alias_info()->isWrite()) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* info = schema.arguments()[i].alias_info();
    if (info != nullptr && info->beforeSets() == result.alias_info()->beforeSets())
      return static_cast<int>(i);
  }
  return -1;
}

Plan make_plan(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  Plan plan;
  plan.name = c10::toString(op.operator_name());
  plan.only_tensors = true;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (written && argument.kwarg_only()) plan.outs.push_back(i);
    plan.draws.push_back(is_generator(argument.type()));
  }
  for (const auto& result : schema.returns()) {
    const bool is_alias = result.alias_info() != nullptr;
    plan.is_view |= is_alias && !result.alias_info()->isWrite();
    plan.written_by.push_back(written_argument(schema, result));
    if (plan.written_by.back() >= 0) continue;
    plan.fresh = true;
    plan.only_tensors &= is_tensor_like(result.type());
  }
  // One of its own: the fallback for meta tensors only throws.
  plan.has_meta = op.hasKernelForDispatchKey(c10::DispatchKey::Meta);
  plan.moves_host_tensors = kIndexing.contains(schema.name());
  plan.takes_host_tensors = kLengths.contains(schema.name());
  return plan;
}

const Plan& plan_of(const c10::OperatorHandle& op) {
  static std::shared_mutex mutex;
  static auto* plans = new std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<Plan>>;
  const auto* key = &op.schema();
  {
    const std::shared_lock<std::shared_mutex> lock(mutex);
    if (const auto found = plans->find(key); found != plans->end()) return *found->second;
  }
  auto plan = std::make_unique<Plan>(make_plan(op));
  const std::unique_lock<std::shared_mutex> lock(mutex);
  return *plans->emplace(key, std::move(plan)).first->second;
}

// One call: its arguments, and where it runs.
struct Call {
  const c10::OperatorHandle& op;
  const Plan& plan;
  std::vector<IValue> arguments;
  int index = -1;  // of the device
};

void meet_device(Call& call, const c10::Device& device) {
  if (device.type() != kType) return;
  const int index = device.has_index() ? static_cast<int>(device.index()) : current_device();
  TORCH_CHECK(call.index < 0 || call.index == index, call.plan.name,
              " was given tensors on sim:", call.index, " and sim:", index,
              "; allowed: one device; move them with .to()");
  call.index = index;
}

void find_device(Call& call) {
  for (const IValue& value : call.arguments) {
    if (value.isDevice()) meet_device(call, value.toDevice());
    for_each_tensor(value, [&](const Tensor& tensor) {
      if (tensor.defined()) meet_device(call, tensor.device());
    });
  }
  if (call.index < 0) call.index = current_device();
}

// Host tensors of an operation on a device: numbers are taken as they are now, indices are moved,
// others refused.
Tensor admit(const Call& call, const Tensor& tensor) {
  if (!tensor.defined() || is_sim(tensor)) return tensor;
  if (call.plan.takes_host_tensors) return tensor;
  const c10::Device device(kType, static_cast<c10::DeviceIndex>(call.index));
  if (tensor.is_cpu() && call.plan.moves_host_tensors) return tensor.to(device);
  TORCH_CHECK(tensor.is_cpu() && tensor.dim() == 0, call.plan.name, " was given tensors on ",
              device, " and ", tensor.device(), "; allowed: one device; move them with .to()");
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  return tensor.detach().clone();
}

void admit_host_tensors(Call& call) {
  bool any = false;
  for (const IValue& value : call.arguments)
    for_each_tensor(value, [&](const Tensor& each) { any |= each.defined() && !is_sim(each); });
  if (!any) return;
  for (const size_t out : call.plan.outs)
    for_each_tensor(call.arguments[out], [&](const Tensor& each) {
      TORCH_CHECK(is_sim(each), call.plan.name, " was given tensors on sim:", call.index, " and ",
                  each.device(), " for its result; allowed: one device; move them with .to()");
    });
  for (IValue& value : call.arguments)
    value = with_each_tensor(value, [&](const Tensor& each) { return admit(call, each); });
}

IValue on(const IValue& value, c10::DeviceType type) {
  return value.isDevice() && value.toDevice().type() == kType ? IValue(c10::Device(type)) : value;
}

std::vector<IValue> for_cpu(const Call& call, CpuAliases& aliases) {
  std::vector<IValue> arguments;
  arguments.reserve(call.arguments.size());
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    const IValue& value = call.arguments[i];
    if (call.plan.draws[i])
      arguments.emplace_back(draw(call.index, value.toOptional<at::Generator>()));
    else
      arguments.push_back(
          on(with_each_tensor(value, [&](const Tensor& each) { return aliases.of(each); }),
             c10::kCPU));
  }
  return arguments;
}

void append_shapes(const IValue& result, std::vector<Shape>& shapes) {
  for_each_tensor(result, [&](const Tensor& each) { shapes.push_back(Shape::of(each)); });
}

std::vector<Tensor> tensors_in(const IValue& value) {
  std::vector<Tensor> tensors;
  for_each_tensor(value, [&](const Tensor& each) { tensors.push_back(each); });
  return tensors;
}

void resize_outs(const Call& call, const std::vector<IValue>& meta) {
  for (const size_t out : call.plan.outs) {
    const std::vector<Tensor> shaped = tensors_in(meta[out]);
    size_t next = 0;
    for_each_tensor(call.arguments[out],
                    [&](const Tensor& each) { fit_to(each, shaped.at(next++)); });
  }
}

// Outs are handed over empty, so that they get the size that they ought to have.
std::vector<IValue> for_meta(const Call& call) {
  MetaAliases aliases;
  std::vector<IValue> arguments;
  arguments.reserve(call.arguments.size());
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    const bool is_out =
        std::find(call.plan.outs.begin(), call.plan.outs.end(), i) != call.plan.outs.end();
    arguments.push_back(on(with_each_tensor(call.arguments[i],
                                            [&](const Tensor& each) {
                                              return is_out ? aliases.empty_of(each)
                                                            : aliases.of(each);
                                            }),
                           c10::kMeta));
  }
  return arguments;
}

// The results' shapes, after what is written into has been given its new size; none if only
// running the operation tells.
std::optional<std::vector<Shape>> shapes_of(const Call& call) {
  if (call.plan.fresh && !call.plan.only_tensors) return std::nullopt;
  if (auto known = known_shapes(call.plan.name, call.arguments)) return known;
  const bool in_place = !call.plan.fresh && call.plan.outs.empty();
  if (!call.plan.has_meta)
    return in_place ? std::make_optional<std::vector<Shape>>() : std::nullopt;
  torch::jit::Stack stack = for_meta(call);
  const std::vector<IValue> arguments = stack;
  try {
    call.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  } catch (const c10::Error&) {
    return std::nullopt;  // running it says what is wrong, in the words of the CPU's kernel
  }
  resize_outs(call, arguments);
  std::vector<Shape> shapes;
  for (size_t i = 0; i < stack.size(); ++i)
    if (call.plan.written_by[i] < 0) append_shapes(stack[i], shapes);
  return shapes;
}

Tensor empty_of(const Shape& shape, int index) {
  if (!shape.dtype) return {};
  return empty_on(index, shape.sizes, shape.strides, *shape.dtype);
}

// Copies what a kernel returned to where it was promised.
void deliver(const std::string& name, const std::vector<Tensor>& results,
             const std::vector<Tensor>& promised) {
  TORCH_CHECK(results.size() == promised.size(), name, " returned ", results.size(),
              " tensors where ", promised.size(), " were expected");
  for (size_t i = 0; i < results.size(); ++i) {
    if (!promised[i].defined()) continue;
    TORCH_CHECK(results[i].defined() && results[i].sizes() == promised[i].sizes(), name,
                " returned a tensor of another shape than expected");
    promised[i].copy_(results[i]);
  }
}

// Kernels may resize a result and size it back; then it lies in host memory. `homes` are where it
// belongs.
void bring_home(const std::vector<Tensor>& outs, const std::vector<Tensor>& homes) {
  for (size_t i = 0; i < outs.size(); ++i)
    if (outs[i].storage().data() != homes[i].storage().data()) homes[i].copy_(outs[i]);
}

std::vector<Tensor> outs_of(const Call& call, const std::vector<IValue>& arguments) {
  std::vector<Tensor> outs;
  for (const size_t out : call.plan.outs)
    for_each_tensor(arguments[out], [&](const Tensor& each) { outs.push_back(each); });
  return outs;
}

// Enqueues the call, with new tensors of `shapes` as its results.
std::vector<Tensor> start(const Call& call, const std::vector<Shape>& shapes) {
  std::vector<Tensor> results, promised;
  CpuAliases aliases;
  for (const Shape& shape : shapes) {
    results.push_back(empty_of(shape, call.index));
    promised.push_back(aliases.of(results.back()));
  }
  std::vector<IValue> arguments = for_cpu(call, aliases);
  std::vector<Tensor> outs = outs_of(call, arguments), homes = outs_of(call, call.arguments);
  CpuAliases of_homes;
  for (Tensor& home : homes) home = of_homes.of(home);
  current_queue(call.index)
      .enqueue(call.plan.name, [op = call.op, &plan = call.plan, stack = std::move(arguments),
                                promised = std::move(promised), outs = std::move(outs),
                                homes = std::move(homes)]() mutable {
        op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
        bring_home(outs, homes);
        if (promised.empty()) return;
        std::vector<Tensor> made;
        for (size_t i = 0; i < stack.size(); ++i)
          if (plan.written_by[i] < 0)
            for_each_tensor(stack[i], [&](const Tensor& each) { made.push_back(each); });
        deliver(plan.name, made, promised);
      });
  return results;
}

// The results as the schema has them: written arguments, and the new tensors in their order.
std::vector<IValue> assemble(const Call& call, const std::vector<Tensor>& made) {
  std::vector<IValue> results;
  size_t next = 0;
  for (size_t i = 0; i < call.plan.written_by.size(); ++i) {
    const int written = call.plan.written_by[i];
    const auto& type = call.op.schema().returns()[i].type();
    if (written >= 0)
      results.push_back(call.arguments[static_cast<size_t>(written)]);
    else if (type->isSubtypeOf(*c10::TensorType::get()))
      results.emplace_back(made.at(next++));
    else  // the only list of an operation is its only result
      results.emplace_back(
          std::vector<Tensor>(made.begin() + static_cast<int64_t>(next), made.end()));
  }
  return results;
}

// What a kernel made on the CPU, as tensors of the device.
Tensor brought(const Call& call, const CpuAliases& aliases, const Tensor& result) {
  if (!result.defined()) return result;
  if (Tensor view = aliases.view_on_device(result); view.defined()) return view;
  TORCH_CHECK(result.layout() == at::kStrided, call.plan.name, " gives a tensor of layout ",
              result.layout(), "; allowed on sim devices: strided; do it on the cpu");
  Tensor tensor = empty_of(Shape::of(result), call.index);
  CpuAliases of_result;
  current_queue(call.index).enqueue(call.plan.name, [to = of_result.of(tensor), result]() {
    to.copy_(result);
  });
  return tensor;
}

// Outs that a kernel has resized lie in host memory now.
void bring_outs(const Call& call, const std::vector<IValue>& arguments) {
  for (const size_t out : call.plan.outs) {
    const std::vector<Tensor> originals = tensors_in(call.arguments[out]);
    const std::vector<Tensor> made = tensors_in(arguments[out]);
    for (size_t i = 0; i < originals.size(); ++i) {
      const bool in_place = of_kernels(originals[i].storage().data()) == made[i].storage().data();
      if (in_place && originals[i].sizes() == made[i].sizes()) continue;
      fit_to(originals[i], made[i]);
      CpuAliases aliases;
      current_queue(call.index)
          .enqueue(call.plan.name,
                   [to = aliases.of(originals[i]), from = made[i]] { to.copy_(from); });
    }
  }
}

// **Blocks.** until it is done.
std::vector<IValue> run_and_wait(const Call& call) {
  CpuAliases aliases;
  const std::vector<IValue> arguments = for_cpu(call, aliases);
  torch::jit::Stack stack = arguments;
  current_queue(call.index).run(call.plan.name, [&] {
    call.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  });
  bring_outs(call, arguments);
  std::vector<IValue> results;
  for (size_t i = 0; i < stack.size(); ++i) {
    const int written = call.plan.written_by[i];
    results.push_back(written >= 0 ? call.arguments[static_cast<size_t>(written)]
                                   : with_each_tensor(stack[i], [&](const Tensor& each) {
                                       return brought(call, aliases, each);
                                     }));
  }
  return results;
}

// Views are metadata: no kernel runs.
std::vector<IValue> take_view(const Call& call) {
  CpuAliases aliases;
  torch::jit::Stack stack = for_cpu(call, aliases);
  call.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  for (IValue& value : stack)
    value = with_each_tensor(value, [&](const Tensor& each) {
      Tensor view = aliases.view_on_device(each);
      TORCH_CHECK(view.defined(), call.plan.name, " returned no view of its argument");
      return view;
    });
  return stack;
}

std::vector<IValue> perform(Call& call) {
  if (call.plan.is_view) return take_view(call);
  admit_host_tensors(call);
  if (const auto shapes = shapes_of(call)) return assemble(call, start(call, *shapes));
  return run_and_wait(call);
}

}  // namespace

Shape Shape::of(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec()};
}

Shape Shape::contiguous(at::ScalarType dtype, std::vector<int64_t> sizes, at::MemoryFormat format) {
  const bool last = format == at::MemoryFormat::ChannelsLast && sizes.size() == 4;
  const bool last_3d = format == at::MemoryFormat::ChannelsLast3d && sizes.size() == 5;
  auto strides = last      ? c10::get_channels_last_strides_2d(sizes)
                 : last_3d ? c10::get_channels_last_strides_3d(sizes)
                           : sim::contiguous_strides(sizes);
  return {dtype, std::move(sizes), std::move(strides)};
}

void run_operation(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  check_driver();
  const Plan& plan = plan_of(op);
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU), plan.name,
                              " has no kernel for the CPU, which runs those of sim devices");
  const auto count = static_cast<int64_t>(op.schema().arguments().size());
  Call call{op, plan, {stack->end() - count, stack->end()}};
  find_device(call);
  const c10::DeviceGuard guard({kType, static_cast<c10::DeviceIndex>(call.index)});
  std::vector<IValue> results = perform(call);
  stack->erase(stack->end() - count, stack->end());
  std::move(results.begin(), results.end(), std::back_inserter(*stack));
}

std::vector<Tensor> launch(const std::string& name, const std::vector<Tensor>& arguments,
                           const std::vector<Shape>& shapes, Kernel kernel) {
  check_driver();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::DeviceIndex index = -1;
  CpuAliases aliases;
  std::vector<Tensor> given, results, promised;
  for (const Tensor& tensor : arguments) {
    if (tensor.defined()) {
      TORCH_CHECK(is_sim(tensor) && (index < 0 || index == tensor.device().index()), name,
                  " was given tensors on ", arguments[0].device(), " and ", tensor.device(),
                  "; allowed: one device; move them with .to()");
      index = tensor.device().index();
    }
    given.push_back(aliases.of(tensor));
  }
  for (const Shape& shape : shapes) {
    results.push_back(empty_of(shape, index));
    promised.push_back(aliases.of(results.back()));
  }
  current_queue(index).enqueue(
      name, [name, given = std::move(given), promised = std::move(promised),
             kernel = std::move(kernel)] { deliver(name, kernel(given), promised); });
  return results;
}

}  // namespace drivetrain::sim
