// SPDX-License-Identifier: Apache-2.0
#include "parallel/replicas.h"

#include <c10/core/GradMode.h>
#include <drivetrain/error.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/text.h"

namespace drivetrain::parallel {
namespace {

constexpr size_t kMessageBytes = size_t{256} << 20;

std::string describe(const std::pair<std::string, at::Tensor>& named) {
  const auto& [name, tensor] = named;
  std::string text = core::str("\"", name, "\" ", tensor.scalar_type(), " ", tensor.sizes());
  // Slots follow strides, so they matter where memory is dense but not row-major.
  if (!tensor.is_contiguous()) text += core::str(" strides ", tensor.strides());
  if (tensor.requires_grad()) text += " requires_grad";
  return text;
}

// What differs first, or "".
std::string difference(std::string_view what, const std::vector<std::string>& mine,
                       const std::vector<std::string>& root) {
  const auto [here, there] = std::mismatch(mine.begin(), mine.end(), root.begin(), root.end());
  if (here == mine.end() && there == root.end()) return "";
  const auto show = [](auto position, auto end) {
    return position == end ? std::string("absent") : *position;
  };
  return core::str(what, " ", here - mine.begin(), " is ", show(here, mine.end()),
                   ", on rank 0 it is ", show(there, root.end()));
}

}  // namespace

NamedTensors distinct(const NamedTensors& tensors) {
  NamedTensors kept;
  std::set<const void*> seen;
  for (const auto& named : tensors)
    if (named.second.defined() && seen.insert(named.second.unsafeGetTensorImpl()).second)
      kept.push_back(named);
  return kept;
}

void check_same_everywhere(const World& world, const NamedTensors& tensors, std::string_view what) {
  std::vector<std::string> mine;
  for (const auto& named : tensors) mine.push_back(describe(named));
  const std::vector<std::string> root = broadcast_object(world, mine);
  const std::vector<std::string> differences = gather_object(world, difference(what, mine, root));
  for (size_t rank = 0; rank < differences.size(); ++rank)
    if (!differences[rank].empty())
      throw ConfigError("parallel",
                        core::str("the model of rank ", rank, " is another: ", differences[rank],
                                  "; allowed: the same model on every rank; build it alike and "
                                  "freeze the same parameters everywhere"));
}

void replicate(const World& world, const NamedTensors& tensors, int root) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> message;
  size_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    if (!message.empty() && bytes + tensor.nbytes() > kMessageBytes) {
      world.broadcast_(std::exchange(message, {}), root);
      bytes = 0;
    }
    message.push_back(tensor.detach());
    bytes += tensor.nbytes();
  }
  if (!message.empty()) world.broadcast_(message, root);
}

}  // namespace drivetrain::parallel
