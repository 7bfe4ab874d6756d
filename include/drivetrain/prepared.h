// SPDX-License-Identifier: Apache-2.0
// The stand-in for a model: the user's own module class, whose forward runs through the library.
//
// C++ modules have no forward hooks, so the stand-in derives from the user's class, as a shallow
// copy that shares every parameter, buffer and submodule, and hides `forward`:
// `model->forward(x)` cannot bypass the library, and every other member stays reachable.
#pragma once

#include <ATen/core/Tensor.h>
#include <drivetrain/hardware.h>
#include <drivetrain/nested.h>
#include <drivetrain/schedule.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace c10 {
struct IValue;
}

namespace drivetrain {

namespace parallel {
class GradientSync;
}
namespace training {
struct ModelState;
}

namespace detail {

// The precision that a prepared forward runs in.
struct ForwardCast {
  c10::DeviceType device = c10::DeviceType::CPU;
  std::optional<at::ScalarType> autocast = std::nullopt;
  bool cache_enabled = true;
  std::optional<at::ScalarType> inputs = std::nullopt;   // what floating-point ones become
  std::optional<at::ScalarType> outputs = std::nullopt;  // likewise; if not,
  bool float32_outputs = true;                           // those of 16 bits become float32
};

template <class T>
concept MayHoldTensors =
    std::copy_constructible<T> &&
    (TensorLeaf<T> || HasFields<T> || DataAndTarget<T> || DataOnly<T> || is_optional<T> ||
     MapLike<T> || OrderedDictLike<T> || SequenceLike<T> || TupleLike<T> || Struct<T>);

// An argument of a forward, converted: a copy of what may hold tensors, the argument itself if not.
template <class Arg>
using Converted =
    std::conditional_t<MayHoldTensors<std::remove_cvref_t<Arg>>, std::remove_cvref_t<Arg>, Arg&&>;

// What surrounds a prepared forward. Shared by all copies of one stand-in.
class ForwardScope {
 public:
  ForwardScope(std::shared_ptr<training::ModelState> model, std::optional<ForwardCast> cast)
      : model_(std::move(model)), cast_(cast) {}

  // Runs `forward`, with autocast and conversion of its outputs as the cast says. Collective where
  // buffers are broadcast.
  template <class Forward>
  decltype(auto) run(bool is_training, Forward&& forward) const {
    before(is_training);
    using Result = std::invoke_result_t<Forward>;
    if (!cast_) return std::forward<Forward>(forward)();
    std::optional<Autocast> scope;
    if (cast_->autocast) scope.emplace(cast_->device, true, cast_->autocast, cast_->cache_enabled);
    if constexpr (std::is_void_v<Result> || std::is_reference_v<Result>)
      return std::forward<Forward>(forward)();
    else if constexpr (std::is_same_v<Result, c10::IValue>)
      return output(std::forward<Forward>(forward)());
    else
      return Result(map_tensors(std::forward<Forward>(forward)(),
                                [this](const at::Tensor& tensor) { return output(tensor); }));
  }

  // Whether inputs are to be converted before forward.
  bool converts_inputs() const noexcept { return cast_ && cast_->inputs; }
  template <class Arg>
  Converted<Arg> input(Arg& arg) const {
    if constexpr (MayHoldTensors<std::remove_cvref_t<Arg>>)
      return map_tensors(std::remove_cvref_t<Arg>(arg),
                         [this](const at::Tensor& tensor) { return input_tensor(tensor); });
    else
      return static_cast<Converted<Arg>>(arg);
  }
  c10::IValue input(const c10::IValue& value) const;

  const std::shared_ptr<training::ModelState>& model() const noexcept { return model_; }
  // Null in a world of one.
  std::shared_ptr<parallel::GradientSync> sync() const;

 private:
  void before(bool is_training) const;
  at::Tensor input_tensor(const at::Tensor& tensor) const;
  at::Tensor output(const at::Tensor& tensor) const;
  c10::IValue output(const c10::IValue& value) const;

  std::shared_ptr<training::ModelState> model_;
  std::optional<ForwardCast> cast_;
};

}  // namespace detail

// While it lives, backward passes of one model add up gradients on this rank alone.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::shared_ptr<parallel::GradientSync> sync);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<parallel::GradientSync> sync_;
  bool was_syncing_;
};

// A module class with its forward surrounded. Code that holds it as an `Impl` sees an ordinary
// Impl.
template <class Impl>
class PreparedModule : public Impl {
  static_assert(std::is_copy_constructible_v<Impl>,
                "a prepared module class must be copyable: hold submodules and tensors by value or "
                "by shared_ptr");

 public:
  PreparedModule(const Impl& module, detail::ForwardScope scope)
      : Impl(module), scope_(std::move(scope)) {}

  template <class... Args>
  decltype(auto) forward(Args&&... args) {
    const auto run = [this]<class... Given>(Given&&... given) -> decltype(auto) {
      return scope_.run(this->is_training(), [&]() -> decltype(auto) {
        return Impl::forward(std::forward<Given>(given)...);
      });
    };
    if (!scope_.converts_inputs()) return run(std::forward<Args>(args)...);
    std::tuple<detail::Converted<Args>...> inputs(scope_.template input<Args>(args)...);
    return std::apply(
        [&run](auto&... input) -> decltype(auto) { return run(static_cast<Args&&>(input)...); },
        inputs);
  }

  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  const detail::ForwardScope& scope() const noexcept { return scope_; }

 private:
  detail::ForwardScope scope_;
};

// A holder (TORCH_MODULE), nn::Sequential included.
template <class M>
concept ModuleHolder = requires { typename M::ContainedType; } &&
                       std::derived_from<M, torch::nn::ModuleHolder<typename M::ContainedType>>;

// What Accelerator::prepare(model) returns for a holder: used like the holder.
template <ModuleHolder M>
class Prepared {
 public:
  using Impl = typename M::ContainedType;

  Prepared(M original, detail::ForwardScope scope)
      : original_(std::move(original)),
        module_(std::make_shared<PreparedModule<Impl>>(*original_, std::move(scope))) {}

  PreparedModule<Impl>* operator->() const noexcept { return module_.get(); }
  PreparedModule<Impl>& operator*() const noexcept { return *module_; }
  const std::shared_ptr<PreparedModule<Impl>>& ptr() const noexcept { return module_; }

  template <class... Args>
  decltype(auto) operator()(Args&&... args) const {
    return module_->forward(std::forward<Args>(args)...);
  }

  // The model as it was handed over, sharing every parameter with the stand-in; its training mode
  // is the stand-in's.
  M unwrap() const {
    M original = original_;
    original->train(module_->is_training());
    return original;
  }

  // Forgets the model; using the stand-in afterwards is an error.
  void reset() noexcept {
    original_ = M(nullptr);
    module_.reset();
  }

  // torch::save and torch::load see the module, as they do for the holder.
  template <class Archive>
    requires requires(Archive& archive, const M& holder) { archive << holder; }
  friend Archive& operator<<(Archive& archive, const Prepared& model) {
    return archive << model.original_;
  }
  template <class Archive>
    requires requires(Archive& archive, M& holder) { archive >> holder; }
  friend Archive& operator>>(Archive& archive, Prepared& model) {
    return archive >> model.original_;
  }

 private:
  M original_;
  std::shared_ptr<PreparedModule<Impl>> module_;
};

// What Accelerator::prepare(model) returns for a torch::jit::Module: the module, its forward
// surrounded. (A template, so that only programs that use TorchScript include its headers.)
template <class S>
class PreparedScript : public S {
 public:
  PreparedScript(const S& module, detail::ForwardScope scope)
      : S(module), scope_(std::move(scope)) {}

  auto forward(std::vector<c10::IValue> inputs,
               std::unordered_map<std::string, c10::IValue> kwargs = {}) {
    if (scope_.converts_inputs()) {
      for (auto& value : inputs) value = scope_.input(std::as_const(value));
      for (auto& [name, value] : kwargs) value = scope_.input(std::as_const(value));
    }
    return scope_.run(this->is_training(), [&] { return S::forward(std::move(inputs), kwargs); });
  }

  const detail::ForwardScope& scope() const noexcept { return scope_; }
  S unwrap() const { return *this; }

 private:
  detail::ForwardScope scope_;
};

// What Accelerator::prepare(schedule) returns: a schedule that goes with the updates of its
// optimizer, so that step() may follow every optimizer.step(), whatever came of it. The schedule
// itself is behind -> and *, to be stepped by epochs, say.
template <SchedulerType S>
class PreparedScheduler {
 public:
  // steps: of the schedule for one update. always: a step is one whatever the optimizer did.
  PreparedScheduler(S schedule, int steps, bool always)
      : schedule_(std::move(schedule)), steps_(steps), always_(always) {}

  // After an update, steps. Throws what S::step throws.
  template <class... Metric>
  void step(const Metric&... metric) {
    if (!always_ && schedule_.outcome().value_or(StepOutcome::stepped) != StepOutcome::stepped)
      return;
    for (int i = 0; i < (always_ ? 1 : steps_); ++i) schedule_.step(metric...);
  }

  const std::vector<double>& get_last_lr() const noexcept { return schedule_.get_last_lr(); }
  ScheduleState state_dict() const { return schedule_.state_dict(); }
  void load_state_dict(const ScheduleState& state) { schedule_.load_state_dict(state); }
  S* operator->() noexcept { return &schedule_; }
  S& operator*() noexcept { return schedule_; }

 private:
  S schedule_;
  int steps_;
  bool always_;
};

}  // namespace drivetrain
