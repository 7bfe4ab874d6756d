// SPDX-License-Identifier: Apache-2.0
#include "data/sample_scope.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <array>

#include "core/text.h"
#include "data/permutation.h"

namespace drivetrain {
namespace data {
namespace {

constexpr auto kKey = c10::DispatchKey::DeferredInit;

thread_local ReadState* read_state = nullptr;
thread_local uint64_t epoch_seed = 0;
thread_local SampleScope* innermost = nullptr;

bool is_generator(const c10::Argument& argument) {
  const auto optional = argument.type()->cast<c10::OptionalType>();
  return optional && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

// Whether the operation works on another device, whose generator this is not.
bool is_elsewhere(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() && !value.toTensor().is_cpu();
  return value.isDevice() && !value.toDevice().is_cpu();
}

void give_generator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t base = stack->size() - arguments.size();
  bool here = innermost != nullptr;
  for (size_t i = base; i < stack->size(); ++i) here = here && !is_elsewhere((*stack)[i]);
  for (size_t i = 0; here && i < arguments.size(); ++i)
    if (is_generator(arguments[i]) && (*stack)[base + i].isNone())
      (*stack)[base + i] = c10::IValue(sample_generator());
  const c10::DispatchKeySet after(c10::DispatchKeySet::FULL_AFTER, kKey);
  op.redispatchBoxed(keys & after, stack);
}

// Every operation of LibTorch that takes a generator; a test compares it with the registry.
constexpr std::array kRandomOperations = {"_fused_dropout",
                                          "_fused_dropout.out",
                                          "_sample_dirichlet",
                                          "_sample_dirichlet.out",
                                          "_standard_gamma",
                                          "_standard_gamma.out",
                                          "bernoulli",
                                          "bernoulli.Tensor",
                                          "bernoulli.Tensor_out",
                                          "bernoulli.float_out",
                                          "bernoulli.out",
                                          "bernoulli.p",
                                          "bernoulli_.Tensor",
                                          "bernoulli_.float",
                                          "binomial",
                                          "binomial.out",
                                          "cauchy",
                                          "cauchy.out",
                                          "cauchy_",
                                          "exponential",
                                          "exponential.out",
                                          "exponential_",
                                          "geometric",
                                          "geometric.out",
                                          "geometric_",
                                          "log_normal",
                                          "log_normal.out",
                                          "log_normal_",
                                          "multinomial",
                                          "multinomial.out",
                                          "normal.Tensor_Tensor",
                                          "normal.Tensor_Tensor_out",
                                          "normal.Tensor_float",
                                          "normal.Tensor_float_out",
                                          "normal.float_Tensor",
                                          "normal.float_Tensor_out",
                                          "normal.float_float",
                                          "normal.float_float_out",
                                          "normal.out",
                                          "normal_",
                                          "normal_functional",
                                          "poisson",
                                          "poisson.out",
                                          "rand.generator",
                                          "rand.generator_out",
                                          "rand_like.generator",
                                          "rand_like.generator_out",
                                          "randint.generator",
                                          "randint.generator_out",
                                          "randint.low_generator",
                                          "randint.low_generator_out",
                                          "randint_like.Tensor_generator",
                                          "randint_like.Tensor_generator_out",
                                          "randint_like.generator",
                                          "randint_like.generator_out",
                                          "randint_like.low_generator_dtype",
                                          "randint_like.low_generator_dtype_out",
                                          "randn.generator",
                                          "randn.generator_out",
                                          "randn_like.generator",
                                          "randn_like.generator_out",
                                          "random",
                                          "random.from",
                                          "random.from_out",
                                          "random.out",
                                          "random.to",
                                          "random.to_out",
                                          "random_",
                                          "random_.from",
                                          "random_.to",
                                          "randperm.generator",
                                          "randperm.generator_out",
                                          "rrelu",
                                          "rrelu_",
                                          "rrelu_with_noise",
                                          "rrelu_with_noise.out",
                                          "rrelu_with_noise_",
                                          "rrelu_with_noise_functional",
                                          "uniform",
                                          "uniform.out",
                                          "uniform_"};

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, DeferredInit, library) {
  for (const char* operation : kRandomOperations)
    library.impl(operation, torch::CppFunction::makeFromBoxedFunction<&give_generator>());
}

}  // namespace

ReadStateGuard::ReadStateGuard(ReadState& state) : outer_(read_state) { read_state = &state; }
ReadStateGuard::~ReadStateGuard() { read_state = outer_; }

EpochScope::EpochScope(uint64_t seed, uint64_t epoch) : outer_(epoch_seed) {
  epoch_seed = mix(seed, epoch);
}
EpochScope::~EpochScope() { epoch_seed = outer_; }

SampleScope::SampleScope(int64_t index, Purpose purpose)
    : index_(index), purpose_(purpose), outer_(innermost) {
  if (read_state != nullptr) {
    if (read_state->stopped != nullptr && *read_state->stopped) throw Stopped();
    read_state->index = index;
  }
  innermost = this;
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

SampleScope::~SampleScope() {
  innermost = outer_;
  if (outer_ == nullptr) c10::impl::tls_set_dispatch_key_included(kKey, false);
}

// A generator is kept for the next sample of the thread: making one costs as much as seeding it.
at::Generator SampleScope::generator() {
  static thread_local at::Generator kept;
  if (generator_.defined()) return generator_;
  const uint64_t seed =
      mix(epoch_seed, static_cast<uint64_t>(index_), purpose_ == Purpose::get ? 0 : 1);
  if (outer_ != nullptr) return generator_ = at::detail::createCPUGenerator(seed);
  if (!kept.defined()) kept = at::detail::createCPUGenerator(seed);
  kept.set_current_seed(seed);
  return generator_ = kept;
}

void throw_sample_error(int64_t index) {
  try {
    throw;
  } catch (const Stopped&) {
    throw;
  } catch (const SampleError&) {
    throw;
  } catch (const std::exception& error) {
    std::throw_with_nested(
        SampleError(index, core::str("sample ", index, " could not be read: ", error.what())));
  } catch (...) {
    std::throw_with_nested(SampleError(index, core::str("sample ", index,
                                                        " could not be read: the dataset threw "
                                                        "something that is no std::exception")));
  }
}

}  // namespace data

at::Generator sample_generator() {
  if (data::innermost == nullptr)
    throw Error("data",
                "sample_generator() was called where no sample is being read; allowed: in a "
                "dataset's get, get_batch or next and in a collate function; pass a generator of "
                "your own elsewhere");
  return data::innermost->generator();
}

}  // namespace drivetrain
