// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/adam.h"

#include <drivetrain/error.h>

#include <cmath>
#include <string>

#include "core/text.h"
#include "hardware/kernels/blocks.h"
#include "hardware/kernels/memory.h"

namespace drivetrain::kernels {

namespace {

[[noreturn]] void refuse(const std::string& what, const char* allowed) {
  throw HardwareError(core::str("adam: ", what, "; allowed: ", allowed));
}

// Written so that NaN is refused too. A learning rate below 0 ascends, as with the classes.
void check_options(const AdamStep& step) {
  if (!std::isfinite(step.lr)) refuse(core::str("lr is ", step.lr), "a finite number");
  if (!(step.beta1 >= 0 && step.beta1 < 1))
    refuse(core::str("beta1 is ", step.beta1), "0 to below 1");
  if (!(step.beta2 >= 0 && step.beta2 < 1))
    refuse(core::str("beta2 is ", step.beta2), "0 to below 1");
  if (!(step.eps >= 0)) refuse(core::str("eps is ", step.eps), "0 or more");
  if (!(step.weight_decay >= 0))
    refuse(core::str("weight_decay is ", step.weight_decay), "0 or more");
  if (!(step.div_scale > 0) || std::isinf(step.div_scale))
    refuse(core::str("div_scale is ", step.div_scale), "a number above 0");
}

void check_length(const char* list, size_t length, size_t expected) {
  if (length != expected)
    refuse(core::str("there are ", length, " ", list, " for ", expected, " parameters"),
           expected == 0 ? "none" : "as many as parameters");
}

void check_lengths(const AdamTensors& t, bool amsgrad) {
  const size_t count = t.parameters.size();
  check_length("gradients", t.grads.size(), count);
  check_length("exp_avgs", t.exp_avgs.size(), count);
  check_length("exp_avg_sqs", t.exp_avg_sqs.size(), count);
  check_length("steps", t.steps.size(), count);
  if (!t.copies.empty()) check_length("copies", t.copies.size(), count);
  if (amsgrad)
    check_length("max_exp_avg_sqs", t.max_exp_avg_sqs.size(), count);
  else if (!t.max_exp_avg_sqs.empty())
    refuse(core::str("there are ", t.max_exp_avg_sqs.size(), " max_exp_avg_sqs without amsgrad"),
           "an empty list, or amsgrad = true");
}

void check_layout(const char* what, size_t i, const at::Tensor& tensor,
                  const at::Tensor& parameter) {
  if (!is_plain_memory(tensor))
    refuse(core::str(
               "the ", what, " of parameter ", i, " is ",
               tensor.defined() ? core::str("on ", tensor.device(), " or has gaps") : "undefined"),
           "a tensor in host memory, its elements without gaps or overlap");
  if (tensor.sizes() != parameter.sizes() || tensor.strides() != parameter.strides())
    refuse(core::str("the ", what, " of parameter ", i, " has the shape ", tensor.sizes(),
                     " and the strides ", tensor.strides(), ", the parameter ", parameter.sizes(),
                     " and ", parameter.strides()),
           "the parameter's shape and strides");
}

void check_moment(const char* what, size_t i, const at::Tensor& tensor,
                  const at::Tensor& parameter) {
  check_layout(what, i, tensor, parameter);
  if (tensor.scalar_type() != at::kFloat)
    refuse(core::str("the ", what, " of parameter ", i, " is ", tensor.scalar_type()), "Float");
}

AdamTypes types_of(const AdamTensors& t, size_t i, bool amsgrad) {
  const Element copy = t.copies.empty() ? Element::none : element_of(t.copies[i].scalar_type());
  return {element_of(t.parameters[i].scalar_type()), element_of(t.grads[i].scalar_type()), copy,
          amsgrad};
}

// **Throws HardwareError if** the i-th tensors do not fit together.
AdamLoop checked_loop(const Loops& loops, const AdamTensors& t, size_t i, bool amsgrad) {
  const at::Tensor& parameter = t.parameters[i];
  check_layout("value", i, parameter, parameter);
  check_layout("gradient", i, t.grads[i], parameter);
  check_moment("exp_avg", i, t.exp_avgs[i], parameter);
  check_moment("exp_avg_sq", i, t.exp_avg_sqs[i], parameter);
  if (amsgrad) check_moment("max_exp_avg_sq", i, t.max_exp_avg_sqs[i], parameter);
  if (!t.copies.empty()) check_layout("copy", i, t.copies[i], parameter);
  if (t.steps[i] < 1) refuse(core::str("step ", i, " is ", t.steps[i]), "1 or more");
  const AdamTypes types = types_of(t, i, amsgrad);
  const AdamLoop loop =
      !t.copies.empty() && types.copy == Element::none ? nullptr : loops.adam(types);
  if (loop == nullptr)
    refuse(
        core::str("parameter ", i, " is ", parameter.scalar_type(), " with a gradient of ",
                  t.grads[i].scalar_type(),
                  t.copies.empty() ? "" : core::str(" and a copy of ", t.copies[i].scalar_type())),
        "Float with Float, Half or BFloat16 and a copy of Half, BFloat16 or none; Half or "
        "BFloat16 with itself or Float and no copy");
  return loop;
}

// The numbers of a step, those that count steps for the `step`-th.
AdamRange constants_of(const AdamStep& o, int64_t step) {
  const auto age = static_cast<double>(step);
  const double rest1 = o.bias_correction ? 1 - std::pow(o.beta1, age) : 1;
  const double rest2 = o.bias_correction ? 1 - std::pow(o.beta2, age) : 1;
  AdamRange range;
  range.grad_factor = static_cast<float>(1 / o.div_scale);
  range.l2 = static_cast<float>(o.decoupled ? 0 : o.weight_decay);
  range.keep = static_cast<float>(o.decoupled ? 1 - o.lr * o.weight_decay : 1);
  range.beta1 = static_cast<float>(o.beta1);
  range.beta1_rest = static_cast<float>(1 - o.beta1);
  range.beta2 = static_cast<float>(o.beta2);
  range.beta2_rest = static_cast<float>(1 - o.beta2);
  range.root_factor = static_cast<float>(1 / std::sqrt(rest2));
  range.eps = static_cast<float>(o.eps);
  range.step_size = static_cast<float>(o.lr / rest1);
  return range;
}

// One tensor's loop, with its pointers at the first element.
struct Work {
  AdamLoop loop = nullptr;
  AdamRange whole;
  int64_t parameter_bytes = 0, grad_bytes = 0, copy_bytes = 0;  // an element

  void run(int64_t begin, int64_t count) const {
    AdamRange piece = whole;
    piece.parameter = static_cast<char*>(whole.parameter) + begin * parameter_bytes;
    piece.grad = static_cast<const char*>(whole.grad) + begin * grad_bytes;
    piece.exp_avg += begin;
    piece.exp_avg_sq += begin;
    if (piece.max_exp_avg_sq != nullptr) piece.max_exp_avg_sq += begin;
    if (piece.copy != nullptr) piece.copy = static_cast<char*>(whole.copy) + begin * copy_bytes;
    piece.count = count;
    loop(piece);
  }
};

void set_pointers(Work& work, const AdamTensors& t, size_t i) {
  AdamRange& whole = work.whole;
  whole.parameter = t.parameters[i].mutable_data_ptr();
  whole.grad = t.grads[i].const_data_ptr();
  whole.exp_avg = t.exp_avgs[i].mutable_data_ptr<float>();
  whole.exp_avg_sq = t.exp_avg_sqs[i].mutable_data_ptr<float>();
  work.parameter_bytes = static_cast<int64_t>(t.parameters[i].element_size());
  work.grad_bytes = static_cast<int64_t>(t.grads[i].element_size());
  if (!t.max_exp_avg_sqs.empty())
    whole.max_exp_avg_sq = t.max_exp_avg_sqs[i].mutable_data_ptr<float>();
  if (t.copies.empty()) return;
  whole.copy = t.copies[i].mutable_data_ptr();
  work.copy_bytes = static_cast<int64_t>(t.copies[i].element_size());
}

std::vector<Work> checked_work(const Loops& loops, const AdamTensors& t, const AdamStep& step) {
  check_options(step);
  check_lengths(t, step.amsgrad);
  std::vector<Work> work(t.parameters.size());
  int64_t last_step = 0;
  AdamRange constants;
  for (size_t i = 0; i < work.size(); ++i) {
    work[i].loop = checked_loop(loops, t, i, step.amsgrad);
    if (t.steps[i] != last_step) constants = constants_of(step, last_step = t.steps[i]);
    work[i].whole = constants;
    set_pointers(work[i], t, i);
  }
  return work;
}

void run(const Loops& loops, const AdamTensors& t, const AdamStep& step) {
  const std::vector<Work> work = checked_work(loops, t, step);
  std::vector<int64_t> sizes;
  sizes.reserve(work.size());
  for (const at::Tensor& parameter : t.parameters) sizes.push_back(parameter.numel());
  const Blocks blocks(std::move(sizes));
  run_blocks(blocks.count(), [&](int64_t block) {
    blocks.for_pieces(block,
                      [&](size_t i, int64_t begin, int64_t count) { work[i].run(begin, count); });
  });
  for (const auto* list :
       {&t.parameters, &t.exp_avgs, &t.exp_avg_sqs, &t.max_exp_avg_sqs, &t.copies})
    for (const at::Tensor& tensor : *list) mark_written(tensor);
}

}  // namespace

AdamKernel cpu_adam(const Loops& loops) {
  return [&loops](const AdamTensors& tensors, const AdamStep& step) { run(loops, tensors, step); };
}

}  // namespace drivetrain::kernels
