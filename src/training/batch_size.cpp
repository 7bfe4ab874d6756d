// SPDX-License-Identifier: Apache-2.0
// The largest batch that fits, found by trying.
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>
#include <drivetrain/accelerator.h>
#include <drivetrain/hardware.h>

#include <new>
#include <stdexcept>
#include <string_view>

#include "core/log.h"
#include "core/text.h"
#include "parallel/gradient_sync.h"
#include "training/refuse.h"
#include "training/step_control.h"

namespace drivetrain {
namespace {

// LibTorch has a type for accelerators, and only texts for its CPU allocator.
bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
      dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return true;
  const std::string_view text = error.what();
  return text.find("DefaultCPUAllocator: can't allocate memory") != std::string_view::npos ||
         text.find("DefaultCPUAllocator: not enough memory") != std::string_view::npos;
}

// Models exchange nothing, so that a rank which runs out of memory leaves no other waiting.
class WithoutSync {
 public:
  explicit WithoutSync(const training::Models& models) {
    for (const auto& model : models)
      if (model->sync) scopes_.push_back(std::make_unique<NoSync>(model->sync));
  }

 private:
  std::vector<std::unique_ptr<NoSync>> scopes_;
};

}  // namespace

bool Accelerator::fits(int64_t batch_size, const std::function<void(int64_t)>& attempt) const {
  try {
    const WithoutSync scope(control_->models());
    attempt(batch_size);
    return true;
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) {
      world_.fail(error.what());  // The others wait for this rank's answer.
      throw;
    }
  }
  empty_cache();
  return false;
}

int64_t Accelerator::find_executable_batch_size(const std::function<void(int64_t)>& attempt,
                                                const BatchSizeSearch& search) const {
  if (search.starting_batch_size < 1)
    training::refuse(core::str("a search for a batch size from ", search.starting_batch_size,
                               "; allowed: 1 or more"));
  for (int64_t size = search.starting_batch_size; size > 0;) {
    const at::Tensor failed = at::scalar_tensor(fits(size, attempt) ? 0 : 1, at::kInt);
    if (all_reduce(world_, failed, ReduceOp::max).item<int>() == 0) return size;
    const int64_t smaller =
        search.reduce ? search.reduce(size) : static_cast<int64_t>(static_cast<double>(size) * 0.9);
    if (smaller >= size)
      training::refuse(core::str("the batch size after ", size, " is ", smaller,
                                 "; allowed: less; correct BatchSizeSearch::reduce"));
    core::log_info(
        core::str("a batch of ", size, " does not fit into memory; ", smaller, " is next"));
    size = smaller;
  }
  throw std::runtime_error(
      "training: no batch size fits into memory, not even 1; use a smaller model, more memory, or "
      "activation_checkpoint");
}

}  // namespace drivetrain
