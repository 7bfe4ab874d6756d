// SPDX-License-Identifier: Apache-2.0
// The backends behind hardware.h: the CPU, and one implementation over LibTorch's device-generic
// interfaces for everything else; and the kernels that serve them. Most programs need only
// get_accelerator().
#pragma once

#include <drivetrain/hardware.h>

#include <any>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace drivetrain {

// Complete: every call of the contract works, with one device, index 0.
//
// Streams run their work at once, in the caller's order; events record the time of the call.
// memory_allocated counts the bytes of LibTorch CPU storages from the first memory call on: that
// call puts a counting layer over LibTorch's CPU allocator (about 0.1 us an allocation); programs
// that ask for no memory figure pay nothing. memory_reserved is the resident set of the process,
// and a peak of it that the kernel lets no one reset is taken from samples at each call instead.
class CpuAccelerator final : public BaseAccelerator {
 public:
  CpuAccelerator();
  explicit CpuAccelerator(AcceleratorFacts facts);

  int device_count() const override { return 1; }
  c10::Device get_current_device() const override;

 protected:
  void do_set_device(int index) const override;
  DeviceProperties do_properties(int index) const override;
  double do_utilization(int index) const override;
  void do_synchronize(int index) const override;
  at::Generator do_generator(int index) const override;
  void do_empty_cache() const override;
  MemoryStats do_memory_stats(int index) const override;
  void do_reset_peaks(int index) const override;
  std::vector<MemoryBlock> do_memory_snapshot(int index) const override;
  void do_set_memory_fraction(double fraction, int index) const override;
  std::pair<int64_t, int64_t> do_memory_info(int index) const override;
  c10::Stream do_new_stream(int index, int priority) const override;
  c10::Stream do_current_stream(int index) const override;
  c10::Stream do_default_stream(int index) const override;
  void do_set_stream(c10::Stream stream) const override;
  std::unique_ptr<detail::EventState> do_new_event(bool timing) const override;
};

// Any device type that LibTorch knows as an accelerator, its own or a PrivateUse1 plugin's. What
// the device's library throws arrives as HardwareError with the backend, the call and the reason.
// Finding a device counts as its first use: a process forked from this one after that is told so by
// why_unavailable(), and by a HardwareError from every call.
class DeviceAccelerator : public BaseAccelerator {
 public:
  explicit DeviceAccelerator(AcceleratorFacts facts);

  Capabilities capabilities() const override;
  std::string why_unavailable() const override;
  int device_count() const override;
  int current_device() const override;

 protected:
  void do_set_device(int index) const override;
  void do_synchronize(int index) const override;
  at::Tensor do_pin_memory(const at::Tensor& tensor) const override;
  at::Generator do_generator(int index) const override;
  void do_empty_cache() const override;
  MemoryStats do_memory_stats(int index) const override;
  void do_reset_peaks(int index) const override;
  std::pair<int64_t, int64_t> do_memory_info(int index) const override;
  c10::Stream do_new_stream(int index, int priority) const override;
  c10::Stream do_current_stream(int index) const override;
  c10::Stream do_default_stream(int index) const override;
  void do_set_stream(c10::Stream stream) const override;
  std::unique_ptr<detail::EventState> do_new_event(bool timing) const override;
};

// Names, properties and utilization come from the driver's own libraries, loaded when first asked.
class CudaAccelerator : public DeviceAccelerator {
 public:
  CudaAccelerator();
  explicit CudaAccelerator(AcceleratorFacts facts);

  Capabilities capabilities() const override;
  std::string get_version() const override;  // of the CUDA runtime: "12.8"

 protected:
  DeviceProperties do_properties(int index) const override;
  double do_utilization(int index) const override;
  std::vector<MemoryBlock> do_memory_snapshot(int index) const override;
  void do_set_memory_fraction(double fraction, int index) const override;
};

class MpsAccelerator : public DeviceAccelerator {
 public:
  MpsAccelerator();
  explicit MpsAccelerator(AcceleratorFacts facts);

  Capabilities capabilities() const override { return facts().capabilities; }

 protected:
  void do_empty_cache() const override;
  MemoryStats do_memory_stats(int index) const override;
  void do_reset_peaks(int index) const override;
  void do_set_memory_fraction(double fraction, int index) const override;
  std::pair<int64_t, int64_t> do_memory_info(int index) const override;
};

// Names and utilization come from CANN, loaded when first asked.
class NpuAccelerator : public DeviceAccelerator {
 public:
  NpuAccelerator();
  explicit NpuAccelerator(AcceleratorFacts facts);

  Capabilities capabilities() const override;
  std::string get_version() const override;  // "CANN 8.0.RC3, torch_npu 2.7.1"

 protected:
  DeviceProperties do_properties(int index) const override;
  double do_utilization(int index) const override;
};

class XpuAccelerator : public DeviceAccelerator {
 public:
  XpuAccelerator();
};

// Kernels: several implementations of one operation, each for one accelerator, and the choice of
// the best that can be used here. Prepared optimizers and clipping take theirs from this registry,
// so that one added for a device is used there:
//
//   drivetrain::kernels::kernel_registry().add({.operation = "adam",
//                                               .name = "mine",
//                                               .backend = "cuda",
//                                               .run = drivetrain::kernels::AdamKernel(step)});
//
// The rules are those of ColossalAI's KernelLoader (available, compatible, highest priority),
// except that a kernel asked for by name is checked too, and that what was passed over is told.
// Nothing is compiled at run time.
namespace kernels {

struct Kernel {
  std::string operation;  // "adam"
  std::string name;       // "avx512"; once for each operation and backend
  std::string backend;    // the accelerator's name: "cpu", "cuda"
  int priority = 1;       // the highest is taken; of equals, the one added first
  // Whether this machine can run it; whether it may be used as things are set. Both return "" or
  // the reason, are asked at each choice, and may throw (which ends the choice). Empty: yes.
  std::function<std::string()> why_unavailable = {};
  std::function<std::string()> why_incompatible = {};
  std::any run = {};  // a function of the operation's type, AdamKernel for "adam"
};

// What became of one kernel in a choice.
struct KernelVerdict {
  std::string name;
  int priority = 1;
  bool usable = false;
  bool chosen = false;
  std::string reason;  // "highest priority", "not available: the processor lacks avx512f"
};

// "avx512 (priority 30): not available: the processor lacks avx512f".
std::string describe(const KernelVerdict& verdict);

// May be used from any thread.
class KernelRegistry {
 public:
  // **Throws HardwareError if** operation, name, backend or run is empty, or the three are there.
  void add(Kernel kernel);
  // **Throws HardwareError if** there is none such.
  void remove(const std::string& operation, const std::string& backend, const std::string& name);

  bool has(const std::string& operation, const std::string& backend) const;

  // Every kernel of an operation, the highest priority first, and which of them would be taken.
  // Empty if there is none.
  std::vector<KernelVerdict> report(const std::string& operation, const std::string& backend) const;

  // The best usable kernel, or the one called `name`. **Throws HardwareError if** there is none:
  // the message names every candidate and what is against it; or if it is not an F.
  template <class F>
  F load(const std::string& operation, const std::string& backend,
         const std::string& name = "") const {
    const auto kernel = choose(operation, backend, name);
    if (const F* function = std::any_cast<F>(&kernel->run)) return *function;
    throw_wrong_type(*kernel);
  }

 private:
  using Shared = std::shared_ptr<const Kernel>;

  Shared choose(const std::string& operation, const std::string& backend,
                const std::string& name) const;
  std::vector<Shared> candidates(const std::string& operation, const std::string& backend) const;
  [[noreturn]] void throw_unknown(const std::string& operation, const std::string& backend) const;
  [[noreturn]] static void throw_wrong_type(const Kernel& kernel);

  mutable std::mutex mutex_;     // never held while a kernel is asked something
  std::vector<Shared> kernels_;  // by priority
};

// The process's registry, with the built-in kernels in it.
KernelRegistry& kernel_registry();

// The operation "adam": one step of Adam or AdamW on a list of tensors.
struct AdamStep {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = true;  // AdamW's decay; false: Adam's, added to the gradient (L2)
  bool bias_correction = true;
  bool amsgrad = false;
  double div_scale = 1;  // gradients are divided by it before anything else
};

// Lists of one length, the i-th of each belonging together and of one shape and strides.
struct AdamTensors {
  std::vector<at::Tensor> parameters, grads;
  std::vector<at::Tensor> exp_avgs, exp_avg_sqs;
  std::vector<at::Tensor> max_exp_avg_sqs;  // with amsgrad; else empty
  // Empty, or float16 or bfloat16 tensors that receive the new parameters, rounded: the copy that
  // the forward pass uses, beside float32 masters.
  std::vector<at::Tensor> copies;
  std::vector<int64_t> steps;  // counted from 1, this one included
};

// Updates parameters, moments and copies in place; gradients are only read. Arithmetic and moments
// are float32. (parameter, gradient) are (float32, any of the three), or of float16 or bfloat16
// each with itself or float32; copies go with float32 parameters. The types may differ from tensor
// to tensor. The arithmetic is that of torch::optim::AdamW and Adam, equal to them within 1e-6.
//
// **Throws HardwareError if** lists or shapes do not match, a type, device or layout is not served,
// or an option is out of range. Nothing has been changed then.
using AdamKernel = std::function<void(const AdamTensors& tensors, const AdamStep& step)>;

// The operation "grad_norm": the norm of a list of gradients and whether all of them are finite, in
// one pass, which may scale them as well. For clipping, and for taking a loss scale off.
struct GradNorm {
  double sum_of_squares = 0;     // infinite or NaN where found_inf
  bool found_inf = false;        // an element is infinite or NaN
  int64_t first_nonfinite = -1;  // the first tensor of the list with such an element

  double norm() const { return std::sqrt(sum_of_squares); }
};

// With a factor, every element is multiplied by it first, rounded to the tensor's type, and the
// result is that of the new values: an element that overflows counts as not finite.
//
// **Throws HardwareError if** a type, device or layout is not served, before anything is changed.
using GradNormKernel =
    std::function<GradNorm(const std::vector<at::Tensor>& tensors, std::optional<double> factor)>;

}  // namespace kernels
}  // namespace drivetrain
