// SPDX-License-Identifier: Apache-2.0
// Copies between host and device, within a device and between two, and numbers read by the host.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/item.h>
#include <c10/core/DeviceGuard.h>

#include <functional>
#include <utility>

#include "sim/alias.h"
#include "sim/device.h"
#include "sim/memory.h"
#include "sim/tensors.h"

namespace drivetrain::sim {

using at::Tensor;

namespace {

constexpr const char* kCopy = "aten::copy_";

bool is_pinned_tensor(const Tensor& tensor) {
  return tensor.has_storage() && is_pinned(tensor.storage().data());
}

// From or to page-locked memory the host need not wait. Other host memory may be freed or changed
// as soon as the call returns.
void between_host_and_device(const Tensor& from, const Tensor& to, bool non_blocking) {
  const bool out = is_sim(from);
  const Tensor &host = out ? to : from, &there = out ? from : to;
  TORCH_CHECK(host.is_cpu(), "copy_ between ", from.device(), " and ", to.device(),
              " is not possible; copy by way of the cpu");
  SimDevice& device = sim::device(there.device().index());
  Queue& queue = current_queue(there.device().index());
  CpuAliases aliases;
  const auto bytes = static_cast<int64_t>(from.nbytes());
  const auto way = out ? SimDevice::Way::out : SimDevice::Way::in;
  auto copy = [&device, &queue, bytes, way, from = aliases.of(from), to = aliases.of(to)] {
    const auto start = Clock::now();
    to.copy_(from);
    device.transfer(queue, way, bytes, start);
  };
  if (non_blocking && is_pinned_tensor(host))
    queue.enqueue(kCopy, std::move(copy));
  else
    queue.run(kCopy, std::move(copy));
}

void within_device(const Tensor& from, const Tensor& to) {
  CpuAliases aliases;
  current_queue(to.device().index()).enqueue(kCopy, [from = aliases.of(from), to = aliases.of(to)] {
    to.copy_(from);
  });
}

// On the source's current stream, after and before the work of the target's.
void between_devices(const Tensor& from, const Tensor& to) {
  SimDevice &source = device(from.device().index()), &target = device(to.device().index());
  Queue &queue = current_queue(from.device().index()), &other = current_queue(to.device().index());
  queue.await(other.mark());
  CpuAliases aliases;
  const auto bytes = static_cast<int64_t>(from.nbytes());
  queue.enqueue(kCopy,
                [&source, &target, &queue, bytes, from = aliases.of(from), to = aliases.of(to)] {
                  const auto start = Clock::now();
                  to.copy_(from);
                  source.transfer(queue, SimDevice::Way::out, bytes, start);
                  target.transfer(queue, SimDevice::Way::in, bytes, start);
                });
  other.await(queue.mark());
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  check_driver();
  if (to.numel() == 0) return to;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!is_sim(from) || !is_sim(to))
    between_host_and_device(from, to, non_blocking);
  else if (from.device() == to.device())
    within_device(from, to);
  else
    between_devices(from, to);
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (is_sim(to))
    fit_to(to, from);
  else
    to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const Tensor& self) {
  check_driver();
  CpuAliases aliases;
  at::Scalar value;
  current_queue(self.device().index())
      .run("aten::_local_scalar_dense", [&value, from = aliases.of(self)] { value = from.item(); });
  return value;
}

}  // namespace

void register_copies(torch::Library& aten) {
  aten.impl("_copy_from", copy_from);
  aten.impl("_copy_from_and_resize", copy_from_and_resize);
  aten.impl("_local_scalar_dense", local_scalar);
}

}  // namespace drivetrain::sim
