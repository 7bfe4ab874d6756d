// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/grad_norm.h"

#include <drivetrain/error.h>

#include <utility>

#include "core/text.h"
#include "hardware/kernels/blocks.h"
#include "hardware/kernels/memory.h"

namespace drivetrain::kernels {

namespace {

// What a block found.
struct Found {
  double sum = 0;
  int64_t first_nonfinite = -1;

  void add(size_t tensor, double squares) {
    sum += squares;
    if (!std::isfinite(squares) && first_nonfinite < 0)
      first_nonfinite = static_cast<int64_t>(tensor);
  }
};

void check(const std::vector<at::Tensor>& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (is_served_by_grad_norm(tensors[i]) && tensors[i].is_cpu()) continue;
    const std::string what =
        tensors[i].defined()
            ? core::str(tensors[i].scalar_type(), " of shape ", tensors[i].sizes(), " on ",
                        tensors[i].device(), tensors[i].is_cpu() ? "" : ", not host memory")
            : "undefined";
    throw HardwareError(core::str("grad_norm: tensor ", i, " is ", what,
                                  "; allowed: Float, Half or BFloat16 in host memory, the elements "
                                  "without gaps or overlap"));
  }
}

// Pointers are taken before the threads start: LibTorch may have to copy a shared storage first.
struct Work {
  SquaresLoop squares = nullptr;
  ScaleLoop scale = nullptr;
  const char* read = nullptr;
  char* write = nullptr;  // where there is a factor
  int64_t bytes = 0;      // an element

  double run(int64_t begin, int64_t count, float factor) const {
    return write == nullptr ? squares(read + begin * bytes, count)
                            : scale(write + begin * bytes, count, factor);
  }
};

std::vector<Work> work_on(const Loops& loops, const std::vector<at::Tensor>& tensors,
                          bool with_factor) {
  std::vector<Work> work(tensors.size());
  for (size_t i = 0; i < work.size(); ++i) {
    const Element element = element_of(tensors[i].scalar_type());
    work[i].bytes = static_cast<int64_t>(tensors[i].element_size());
    if (with_factor) {
      work[i].scale = loops.scale(element);
      work[i].write = static_cast<char*>(tensors[i].mutable_data_ptr());
    } else {
      work[i].squares = loops.squares(element);
      work[i].read = static_cast<const char*>(tensors[i].const_data_ptr());
    }
  }
  return work;
}

GradNorm total(const std::vector<Found>& found) {
  GradNorm all;
  for (const Found& block : found) {
    all.sum_of_squares += block.sum;
    if (all.first_nonfinite < 0) all.first_nonfinite = block.first_nonfinite;
  }
  all.found_inf = all.first_nonfinite >= 0;
  return all;
}

GradNorm run(const Loops& loops, const std::vector<at::Tensor>& tensors,
             std::optional<double> factor) {
  check(tensors);
  const std::vector<Work> work = work_on(loops, tensors, factor.has_value());
  std::vector<int64_t> sizes;
  sizes.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) sizes.push_back(tensor.numel());
  const Blocks blocks(std::move(sizes));
  std::vector<Found> found(blocks.count());
  const auto times = static_cast<float>(factor.value_or(1));
  run_blocks(blocks.count(), [&](int64_t block) {
    blocks.for_pieces(block, [&](size_t i, int64_t begin, int64_t count) {
      found[block].add(i, work[i].run(begin, count, times));
    });
  });
  if (factor)
    for (const at::Tensor& tensor : tensors) mark_written(tensor);
  return total(found);
}

}  // namespace

bool is_served_by_grad_norm(const at::Tensor& tensor) {
  return is_dense(tensor) && element_of(tensor.scalar_type()) != Element::none;
}

GradNormKernel cpu_grad_norm(const Loops& loops) {
  return [&loops](const std::vector<at::Tensor>& tensors, std::optional<double> factor) {
    return run(loops, tensors, factor);
  };
}

}  // namespace drivetrain::kernels
