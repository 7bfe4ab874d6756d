// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/cat.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <drivetrain/accelerator.h>
#include <drivetrain/error.h>
#include <drivetrain/hardware.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "core/text.h"
#include "parallel/gradient_sync.h"
#include "parallel/replicas.h"
#include "precision/policy.h"
#include "training/forward_cast.h"
#include "training/master_weights.h"
#include "training/refuse.h"
#include "training/step_control.h"

namespace drivetrain {

using training::refuse;

namespace {

std::shared_ptr<BaseAccelerator> choose_hardware(const Config& config) {
  if (config.cpu) {
    if (config.accelerator != "auto" && config.accelerator != "cpu")
      throw ConfigError(core::str("cpu is set and accelerator is \"", config.accelerator,
                                  "\"; allowed: one of them; unset DRIVETRAIN_CPU or ",
                                  "DRIVETRAIN_ACCELERATOR"));
    return make_accelerator("cpu");
  }
  if (config.accelerator == "auto") return get_accelerator();
  auto hardware = make_accelerator(config.accelerator);
  if (const std::string reason = hardware->why_unavailable(); !reason.empty())
    throw HardwareError(
        core::str("accelerator \"", config.accelerator, "\" cannot be used: ", reason,
                  "; allowed here: what `auto` finds; unset ", "DRIVETRAIN_ACCELERATOR"));
  return hardware;
}

// The device of the local rank; the only one is shared by all.
at::Device claim_device(BaseAccelerator& hardware, const World& world) {
  const int count = hardware.device_count();
  if (hardware.support_set_device() && count > 1) {
    if (world.local_rank() >= count)
      refuse(core::str("local rank ", world.local_rank(), " has no device of its own among ", count,
                       " of ", hardware.name(), "; allowed: at most ", count,
                       " processes a machine; start fewer, or set DRIVETRAIN_ACCELERATOR=cpu"));
    hardware.set_device(world.local_rank());
  }
  return hardware.get_current_device();
}

MixedPrecision choose_precision(const AcceleratorOptions& options) {
  return options.mixed_precision.value_or(options.config.mixed_precision);
}

std::shared_ptr<LossScaler> choose_scaler(const AcceleratorOptions& options,
                                          MixedPrecision precision) {
  if (precision == MixedPrecision::fp16 || options.mixed_precision_policy.param_dtype == at::kHalf)
    return options.scaler ? options.scaler : std::make_shared<GradScaler>();
  if (options.scaler)
    refuse(
        "a loss scaler without fp16, whose small gradients it is for; allowed: with "
        "mixed_precision = MixedPrecision::fp16 or a policy with param_dtype Half; set one, or "
        "leave the scaler out");
  return nullptr;
}

const MixedPrecisionPolicy& checked_policy(const AcceleratorOptions& options) {
  precision::check(options.mixed_precision_policy, choose_precision(options));
  return options.mixed_precision_policy;
}

// Gradients travel in the policy's type by the hooks that convert them.
DistributedDataParallelOptions ddp_of(const AcceleratorOptions& options) {
  DistributedDataParallelOptions ddp = options.ddp;
  const auto reduce = options.mixed_precision_policy.reduce_dtype;
  if (!reduce || !at::isReducedFloatingType(*reduce)) return ddp;
  if (ddp.custom_hook || ddp.comm_hook != CommHookKind::none)
    refuse(
        "the policy has a reduce_dtype and ddp a communication hook, which says itself how "
        "gradients "
        "travel; allowed: one of the two; leave reduce_dtype out, or comm_hook at none");
  ddp.comm_hook = reduce == at::kHalf ? CommHookKind::fp16 : CommHookKind::bf16;
  return ddp;
}

GradientAccumulationOptions accumulation_of(const AcceleratorOptions& options) {
  GradientAccumulationOptions accumulation = options.gradient_accumulation;
  if (!accumulation.steps) accumulation.steps = options.config.gradient_accumulation_steps;
  return accumulation;
}

// Every named tensor that exists. A tied one comes under each of its names.
template <class Dict>
std::vector<std::pair<std::string, at::Tensor>> defined(const Dict& named) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& item : named)
    if (item.value().defined()) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

// What a refusal to move them calls them.
auto for_refusals(const std::vector<std::pair<std::string, at::Tensor>>& parameters,
                  const std::vector<std::pair<std::string, at::Tensor>>& buffers) {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (const auto& [name, tensor] : parameters) named.emplace_back("parameter " + name, tensor);
  for (const auto& [name, tensor] : buffers) named.emplace_back("buffer " + name, tensor);
  return named;
}

}  // namespace

NoSync::NoSync(std::shared_ptr<parallel::GradientSync> sync)
    : sync_(std::move(sync)), was_syncing_(sync_ && sync_->is_syncing()) {
  if (sync_) sync_->set_sync(false);
}

NoSync::~NoSync() {
  if (sync_) sync_->set_sync(was_syncing_);
}

Accelerator::Accelerator(AcceleratorOptions options)
    : world_(options.world ? *options.world : World::from_environment(options.config)),
      hardware_(choose_hardware(options.config)),
      device_(claim_device(*hardware_, world_)),
      ddp_(ddp_of(options)),
      mixed_precision_(choose_precision(options)),
      policy_(checked_policy(options)),
      cast_(training::cast_for(mixed_precision_, policy_, device_.type(), options.float32_outputs)),
      control_(std::make_shared<training::StepControl>(world_, accumulation_of(options),
                                                       choose_scaler(options, mixed_precision_))),
      schedule_steps_(options.scale_schedule_by_processes ? world_.world_size() : 1),
      step_scheduler_with_optimizer_(options.step_scheduler_with_optimizer) {
  if (options.scale_schedule_by_processes && !options.step_scheduler_with_optimizer)
    refuse(
        "scale_schedule_by_processes without step_scheduler_with_optimizer, whose steps it "
        "multiplies; allowed: both, or neither");
  if (LossScaler* scaler = control_->scaler())
    scaler->set_names([control = std::weak_ptr(control_)](const at::Tensor& parameter) {
      const auto known = control.lock();
      return known ? known->name_of(parameter) : "";
    });
}

Accelerator::~Accelerator() = default;

detail::ForwardScope Accelerator::adopt(torch::nn::Module& module) {
  return adopt(defined(module.named_parameters()), defined(module.named_buffers()));
}

detail::ForwardScope Accelerator::adopt(const Named& parameters, const Named& buffers) {
  refuse_second_preparation(parameters);
  move_tensors_(for_refusals(parameters, buffers), device_);
  move_optimizers();
  auto masters = precision::convert_(parameters, buffers, policy_);
  Sync sync;
  if (use_distributed()) {
    sync = std::make_shared<parallel::GradientSync>(world_, parameters, buffers, ddp_,
                                                    /*float32_gradients=*/!masters.empty());
    // What rank 0's parameters are rounded from.
    Named values;
    if (policy_.master_weights)
      for (const auto& master : masters) values.emplace_back(master.name, master.value);
    parallel::replicate(world_, values, 0);
  }
  std::shared_ptr<training::MasterWeights> weights;
  if (!masters.empty())
    weights = std::make_shared<training::MasterWeights>(std::move(masters), policy_);
  return {control_->add_model(parameters, std::move(sync), std::move(weights)), cast_};
}

Accelerator::Named Accelerator::master_weights_of(const training::ModelState& model) {
  return model.masters ? model.masters->values() : Named();
}

void Accelerator::move_optimizers() {
  std::erase_if(optimizers_, [](const auto& place) { return place.expired(); });
  for (const auto& weak : optimizers_)
    if (const auto place = weak.lock()) detail::move_state(**place);
}

void Accelerator::refuse_second_preparation(const Named& parameters) const {
  for (const auto& model : control_->models())
    for (const auto& [name, parameter] : parameters)
      if (model->owns(parameter))
        throw ConfigError(core::str("parameter ", name, " belongs to a model that is prepared ",
                                    "already, so its gradient would be averaged twice; allowed: ",
                                    "one prepare() a model; use the stand-in that it returned"));
}

void Accelerator::join(const std::function<void()>& body, const JoinOptions& options,
                       const States& models) const {
  std::vector<parallel::GradientSync*> syncs;
  for (const auto& model : models)
    if (model->sync) syncs.push_back(model->sync.get());
  parallel::join_uneven_inputs(world_, syncs, options, body);
  // It ends with the parameters of one rank, of which others have no float32 values.
  for (const auto& model : models)
    if (model->masters) model->masters->take_over_parameters();
}

void Accelerator::watch(const std::shared_ptr<const DataLoaderStatus>& loader) {
  std::erase_if(loaders_, [](const auto& other) { return other.expired(); });
  loaders_.push_back(loader);
}

std::optional<DataLoaderStatus> Accelerator::innermost_loader() const {
  std::optional<DataLoaderStatus> innermost;
  for (const auto& weak : loaders_) {
    const auto loader = weak.lock();
    if (loader && loader->active && (!innermost || loader->started > innermost->started))
      innermost = *loader;
  }
  return innermost;
}

int64_t Accelerator::rows_of_batch() const {
  const auto innermost = innermost_loader();
  if (!innermost || innermost->real_size < 0)
    refuse(
        "gather_for_metrics was called outside a loop over a prepared loader, so it cannot know "
        "which rows are padding; call it in the loop, or gather()");
  return innermost->real_size;
}

at::Tensor Accelerator::keep_real_rows(const at::Tensor& rows, int64_t real_size) {
  if (rows.dim() == 0)
    refuse(
        "gather_for_metrics got a 0-dim tensor, which has no row to leave out; allowed: one row "
        "a sample; average with mean_over_samples(value, loader.real_size())");
  if (rows.size(0) < real_size)
    refuse(core::str("gather_for_metrics got a tensor of shape ", rows.sizes(), " in a batch of ",
                     real_size, " samples; allowed: one row a sample; use gather()"));
  return rows.slice(0, 0, real_size);
}

at::Tensor Accelerator::mean_over_samples(const at::Tensor& mean, int64_t num_samples) const {
  if (mean.numel() != 1)
    refuse(core::str("mean_over_samples takes one number; got ", mean.sizes()));
  if (num_samples < 0) refuse(core::str("num_samples is ", num_samples, "; allowed: 0 or more"));
  const double count = static_cast<double>(num_samples);
  // A mean over no sample is NaN, and must not spoil the sum.
  const double sum = num_samples == 0 ? 0 : mean.item<double>() * count;
  const at::Tensor total = all_reduce(world_, at::tensor({sum, count}, at::kDouble));
  const double samples = total[1].item<double>();
  return at::scalar_tensor(samples == 0 ? 0 : total[0].item<double>() / samples,
                           mean.options().requires_grad(false));
}

Accelerator::Share Accelerator::share_of(int64_t length, bool apply_padding) const {
  const int64_t parts = num_processes(), index = process_index();
  const int64_t each = length / parts, longer = length % parts;
  const int64_t begin = index * each + std::min(index, longer);
  const int64_t mine = each + (index < longer ? 1 : 0);
  const int64_t widest = each + (longer > 0 ? 1 : 0);
  return {begin, begin + mine, apply_padding ? widest - mine : 0};
}

at::Tensor Accelerator::split_between_processes(const at::Tensor& inputs,
                                                bool apply_padding) const {
  if (inputs.dim() == 0) refuse("a 0-dim tensor cannot be split; allowed: 1 dimension or more");
  const Share share = share_of(inputs.size(0), apply_padding);
  at::Tensor mine = inputs.slice(0, share.begin, share.end);
  if (share.padding == 0) return mine;
  auto sizes = inputs.sizes().vec();
  sizes[0] = share.padding;
  return at::cat({mine, inputs.slice(0, share.end - 1, share.end).expand(sizes)});
}

void Accelerator::check_equal_lengths(int64_t first, int64_t other) {
  if (first != other)
    refuse(core::str("the values of a map to split have ", first, " and ", other,
                     " elements; allowed: one length for all"));
}

bool Accelerator::check_trigger() {
  const at::Tensor mine = at::scalar_tensor(is_triggered_ ? 1 : 0, at::kInt);
  is_triggered_ = false;
  return all_reduce(world_, mine, ReduceOp::max).item<int>() != 0;
}

void Accelerator::empty_cache() const { hardware_->empty_cache(); }

}  // namespace drivetrain
