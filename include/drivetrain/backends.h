// SPDX-License-Identifier: Apache-2.0
// The backends behind hardware.h: the CPU, and one implementation over LibTorch's device-generic
// interfaces for everything else. Most programs need only get_accelerator().
#pragma once

#include <drivetrain/hardware.h>

#include <memory>
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

}  // namespace drivetrain
