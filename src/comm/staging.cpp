// SPDX-License-Identifier: Apache-2.0
#include "comm/staging.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <drivetrain/hardware.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

namespace drivetrain::comm {
namespace {

// One for each device, for the whole process: streams are never given back.
c10::Stream copy_stream(const BaseAccelerator& accelerator, c10::Device device) {
  static std::mutex mutex;
  static auto* const streams = new std::map<std::pair<c10::DeviceType, int>, c10::Stream>;
  std::lock_guard lock(mutex);
  const std::pair key(device.type(), static_cast<int>(device.index()));
  const auto found = streams->find(key);
  if (found != streams->end()) return found->second;
  return streams->emplace(key, accelerator.Stream(device)).first->second;
}

}  // namespace

at::Device device_among(c10::ArrayRef<at::Tensor> tensors) {
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined() && !tensor.is_cpu() && !tensor.is_meta()) return tensor.device();
  return at::kCPU;
}

at::Tensor host_buffer(c10::IntArrayRef sizes, at::ScalarType dtype, at::Device device) {
  const bool pin = !device.is_cpu() && accelerator_of(device.type())->capabilities().pinned_memory;
  return at::empty(sizes, at::TensorOptions(dtype).pinned_memory(pin));
}

void finish_copies_from(c10::ArrayRef<at::Tensor> tensors) {
  std::set<int> done;
  for (const at::Tensor& tensor : tensors) {
    if (device_among(tensor).is_cpu() || !done.insert(tensor.device().index()).second) continue;
    const auto accelerator = accelerator_of(tensor.device().type());
    if (accelerator->capabilities().streams)
      accelerator->current_stream(tensor.device()).synchronize();
    else
      accelerator->synchronize(tensor.device());
  }
}

at::Tensor host_buffer_for(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return host_buffer(tensor.sizes(), tensor.scalar_type(), tensor.device());
}

OnHost copy_to_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return {tensor, [] {}};
  const at::NoGradGuard no_grad;
  const auto accelerator = accelerator_of(tensor.device().type());
  const Capabilities can = accelerator->capabilities();
  at::Tensor host = host_buffer(tensor.sizes(), tensor.scalar_type(), tensor.device());
  if (!can.streams || !can.events) {
    host.copy_(tensor.detach());
    return {host, [] {}};
  }
  const c10::Stream beside = copy_stream(*accelerator, tensor.device());
  Event computed = accelerator->Event();
  computed.record(accelerator->current_stream(tensor.device()));
  auto copied = std::make_shared<Event>(accelerator->Event());
  {
    const StreamGuard guard = accelerator->stream(beside);
    computed.wait(beside);
    host.copy_(tensor.detach(), /*non_blocking=*/true);
    copied->record(beside);
  }
  return {host, [copied, tensor] { copied->synchronize(); }};
}

void copy_to_device(const at::Tensor& tensor, const at::Tensor& host) {
  if (tensor.is_same(host)) return;
  const at::NoGradGuard no_grad;
  tensor.detach().copy_(host);
}

}  // namespace drivetrain::comm
