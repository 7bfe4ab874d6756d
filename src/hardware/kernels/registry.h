// SPDX-License-Identifier: Apache-2.0
// Kernels: several implementations of one operation, each for one accelerator, and the choice of
// the best that can be used here.
//
//   const auto adam = kernel_registry().load<AdamKernel>("adam", "cpu");
//   adam(tensors, options);
//
// The rules are those of ColossalAI's KernelLoader (available, compatible, highest priority),
// except that a kernel asked for by name is checked too, and that what was passed over is told.
// Nothing is compiled at run time.
#pragma once

#include <any>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace drivetrain::hardware::kernels {

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

}  // namespace drivetrain::hardware::kernels
