// SPDX-License-Identifier: Apache-2.0
// The tensors of samples into the tensor of a batch.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <drivetrain/collate.h>

#include <algorithm>
#include <cstring>

#include "core/invalid_argument.h"
#include "core/text.h"

namespace drivetrain::detail {
namespace {

std::string path_of(const Field& field) {
  std::string path = field.parent == nullptr ? "" : path_of(*field.parent);
  if (field.name != nullptr) path += core::str(path.empty() ? "" : ".", field.name);
  if (field.index >= 0) path += core::str("[", field.index, "]");
  return path;
}

// "collate: field data: ", or "collate: " where the sample is the tensor itself.
std::string where(const Field& field) {
  const std::string path = path_of(field);
  return path.empty() ? "collate: " : core::str("collate: field ", path, ": ");
}

bool plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.requires_grad() &&
         !tensor.is_quantized() && !tensor.is_conj() && !tensor.is_neg();
}

bool all_plain(const std::vector<const at::Tensor*>& samples) {
  return std::all_of(samples.begin(), samples.end(),
                     [](const at::Tensor* sample) { return plain(*sample); });
}

void require_defined_of_one_type(const std::vector<const at::Tensor*>& samples,
                                 const Field& field) {
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!samples[i]->defined())
      core::refuse("data", core::str(where(field), "sample ", i, " of the batch is an undefined ",
                                     "tensor; allowed: defined ones; return one from the dataset"));
    if (samples[i]->scalar_type() != samples[0]->scalar_type() ||
        samples[i]->device() != samples[0]->device())
      core::refuse("data",
                   core::str(where(field), "sample 0 of the batch is ", samples[0]->scalar_type(),
                             " on ", samples[0]->device(), " and sample ", i, " is ",
                             samples[i]->scalar_type(), " on ", samples[i]->device(),
                             "; allowed: one type and device; convert in the dataset"));
  }
}

// The index of the first sample whose shape differs from sample 0's, or 0.
size_t first_of_other_shape(const std::vector<const at::Tensor*>& samples) {
  for (size_t i = 1; i < samples.size(); ++i)
    if (samples[i]->sizes() != samples[0]->sizes()) return i;
  return 0;
}

std::vector<int64_t> batch_sizes(size_t count, at::IntArrayRef sizes) {
  std::vector<int64_t> out = {static_cast<int64_t>(count)};
  out.insert(out.end(), sizes.begin(), sizes.end());
  return out;
}

at::Tensor copy_together(const std::vector<const at::Tensor*>& samples) {
  const at::Tensor& first = *samples[0];
  at::Tensor batch = at::empty(batch_sizes(samples.size(), first.sizes()), first.options());
  const size_t bytes = first.nbytes();
  if (bytes == 0) return batch;
  char* out = static_cast<char*>(batch.mutable_data_ptr());
  for (const at::Tensor* sample : samples) {
    if (sample->is_contiguous())
      std::memcpy(out, sample->const_data_ptr(), bytes);
    else
      std::memcpy(out, sample->contiguous().const_data_ptr(), bytes);
    out += bytes;
  }
  return batch;
}

at::Tensor stack_op(const std::vector<const at::Tensor*>& samples) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor* sample : samples) tensors.push_back(*sample);
  return at::stack(tensors);
}

at::Tensor pad_together(const std::vector<const at::Tensor*>& samples, double padding,
                        const Field& field) {
  std::vector<int64_t> largest = samples[0]->sizes().vec();
  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i]->dim() != samples[0]->dim())
      core::refuse("data", core::str(where(field), "sample 0 of the batch has ", samples[0]->dim(),
                                     " dimensions and sample ", i, " has ", samples[i]->dim(),
                                     "; allowed: equal numbers; reshape"));
    for (int64_t d = 0; d < samples[i]->dim(); ++d)
      largest[d] = std::max(largest[d], samples[i]->size(d));
  }
  at::Tensor batch = at::full(batch_sizes(samples.size(), largest), padding, samples[0]->options());
  for (size_t i = 0; i < samples.size(); ++i) {
    at::Tensor place = batch.select(0, static_cast<int64_t>(i));
    for (int64_t d = 0; d < samples[i]->dim(); ++d) place = place.narrow(d, 0, samples[i]->size(d));
    place.copy_(*samples[i]);
  }
  return batch;
}

}  // namespace

at::Tensor stack_samples(const std::vector<const at::Tensor*>& samples,
                         const CollateContext& context, const Field& field) {
  require_defined_of_one_type(samples, field);
  if (const size_t other = first_of_other_shape(samples)) {
    if (context.padding) return pad_together(samples, *context.padding, field);
    core::refuse("data",
                 core::str(where(field), "sample 0 of the batch has shape ", samples[0]->sizes(),
                           " and sample ", other, " has ", samples[other]->sizes(),
                           "; allowed: equal shapes; pass PadCollate() or ListCollate(), or resize "
                           "in the dataset"));
  }
  return all_plain(samples) ? copy_together(samples) : stack_op(samples);
}

at::Tensor tensor_of_numbers(const void* data, int64_t count, at::ScalarType type) {
  at::Tensor out = at::empty({count}, type);
  if (count > 0) std::memcpy(out.mutable_data_ptr(), data, out.nbytes());
  return out;
}

at::Tensor stack_numbers(const std::vector<const void*>& data, const std::vector<int64_t>& sizes,
                         at::ScalarType type, const CollateContext& context, const Field& field) {
  std::vector<at::Tensor> rows;
  std::vector<const at::Tensor*> pointers;
  for (size_t i = 0; i < data.size(); ++i)
    rows.push_back(tensor_of_numbers(data[i], sizes[i], type));
  for (const at::Tensor& row : rows) pointers.push_back(&row);
  return stack_samples(pointers, context, field);
}

void fail_unequal(const char* what, int64_t first, int64_t sample, int64_t other,
                  const Field& field) {
  core::refuse("data",
               core::str(where(field), "sample 0 of the batch has ", first, " ", what,
                         " and sample ", sample, " has ", other,
                         "; allowed: equal numbers; pass ListCollate() or a collate function"));
}

}  // namespace drivetrain::detail
