// SPDX-License-Identifier: Apache-2.0
// The devices that tensors live on: one contract for the CPU and for every accelerator.
//
//   auto accelerator = drivetrain::get_accelerator();      // the best device of this machine
//   accelerator->set_device();                             // the one of this process's local rank
//   accelerator->set_to_device(*model);
//   { auto scope = accelerator->autocast(); loss = model->forward(x); }
//
// Five groups of calls: device, random numbers, memory, streams and events, autocast. All of them
// exist for every backend; capabilities() says which of them a backend can do, and any other one
// throws HardwareError with the backend, the call and the reason. Sizes are in bytes, times in
// milliseconds. Everything here may be called from any thread; the current device, the current
// stream and autocast belong to the calling thread. Nothing touches a device before it is asked to.
// Method names and their defaults follow ColossalAI's accelerator module.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace at {
struct Generator;
}
namespace torch::nn {
class Module;
}

namespace drivetrain {

class BaseAccelerator;

// What a backend can do.
struct Capabilities {
  bool set_device = true;   // has several devices, one of them current
  bool properties = false;  // get_device_name, get_device_properties, _capability
  bool utilization = false;
  bool random_numbers = true;  // a generator for each device
  bool memory_stats = true;    // memory_stats, memory_allocated, memory_reserved
  bool memory_peaks = true;    // max_memory_allocated, _reserved and the resets of peaks
  bool memory_info = true;     // total_memory, available_memory
  bool memory_snapshot = false;
  bool memory_fraction = false;  // set_per_process_memory_fraction
  bool pinned_memory = true;     // pin_memory gives page-locked memory
  bool streams = true;
  bool events = true;
  bool blocking_events = false;      // Event(..., blocking = true)
  bool interprocess_events = false;  // Event(..., interprocess = true)
  bool autocast = true;
  bool synchronous = false;  // work is done when the call returns
};

// Which device of a backend: its index, a device of the backend's own type, or, by default, the
// calling thread's current one (set_device: the one of the local rank).
class DeviceArg {
 public:
  DeviceArg() = default;
  DeviceArg(int index) : index_(index) {}  // NOLINT: implicit
  DeviceArg(c10::Device device) : index_(device.index()), type_(device.type()) {}  // NOLINT

  std::optional<int> index() const;  // none: the current one
  std::optional<c10::DeviceType> type() const { return type_; }

 private:
  std::optional<int> index_;
  std::optional<c10::DeviceType> type_;
};

struct DeviceCapability {
  int major = 0, minor = 0;  // compute capability on cuda; 0, 0 where there is no such number
  std::string level;  // "9.0" on cuda; the instruction set LibTorch runs with on cpu: "AVX512"
};

struct DeviceProperties {
  std::string name;
  DeviceCapability capability;
  int64_t total_memory = 0;       // bytes
  int multi_processor_count = 0;  // multiprocessors, 0 if not known; on cpu the cores it may use
  std::vector<std::string> features;  // "avx2", "amx_bf16", ...; empty where not known
};

struct MemoryCounter {
  int64_t current = 0, peak = 0;
  int64_t allocated = 0, freed = 0;  // sums since the start
};

// One device's allocator, as LibTorch counts. On cpu allocated_bytes are the bytes of LibTorch's
// own CPU storages allocated since the first memory call of this process (what was allocated
// before is not known), and reserved_bytes is the resident set of the process. A counter that a
// backend does not keep is 0: sums of a kept one are never below its current value.
struct MemoryStats {
  MemoryCounter allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes,
      requested_bytes;
  MemoryCounter allocations, active_allocations, segments, inactive_splits;  // counts
  int64_t num_alloc_retries = 0, num_ooms = 0;
  int64_t num_device_allocs = 0, num_device_frees = 0;  // calls of the device's own allocator
};

struct MemoryBlock {
  uint64_t address = 0;
  int64_t bytes = 0;
};

namespace detail {
struct EventState;
}

// A point in a stream's work. Movable; use one from one thread at a time.
class Event {
 public:
  explicit Event(std::unique_ptr<detail::EventState> state);
  Event(Event&&) noexcept;
  Event& operator=(Event&&) noexcept;
  ~Event();

  // Marks the end of the work now in `stream` (default: the current one of the current device).
  void record(std::optional<c10::Stream> stream = std::nullopt);
  // Makes `stream` (default as above) wait for the event, without blocking the caller.
  void wait(std::optional<c10::Stream> stream = std::nullopt) const;
  bool query() const;        // true if never recorded, or reached
  void synchronize() const;  // **Blocks.** until reached
  // Milliseconds from this event to `end`. **Throws HardwareError if** either has no timing or is
  // not yet recorded and reached.
  double elapsed_time(const Event& end) const;

 private:
  std::unique_ptr<detail::EventState> state_;
};

// `stream` is the current one of its device, and that device the current one, until the end of the
// scope. No stream: nothing changes. Destroy it on the thread that made it.
class StreamGuard {
 public:
  StreamGuard(const BaseAccelerator& accelerator, std::optional<c10::Stream> stream);
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

 private:
  const BaseAccelerator& accelerator_;
  std::shared_ptr<const BaseAccelerator> keep_alive_;
  std::optional<c10::Stream> previous_;
  int previous_device_ = 0;
};

// Operations run in `dtype` where that is safe until the end of the scope, on this thread (threads
// started inside do not inherit it). The casts of weights that it caches are dropped at the end of
// every enabled scope, so a weight changed between two scopes is seen. Scopes nest, and an
// exception leaves them as a return does. Destroy it on the thread that made it.
class Autocast {
 public:
  // dtype: float16 or bfloat16; by default LibTorch's for the type (bfloat16 on cpu, float16 on
  // cuda). **Throws HardwareError if** the dtype is another one or the type has no autocast.
  explicit Autocast(c10::DeviceType type, bool enabled = true,
                    std::optional<at::ScalarType> dtype = std::nullopt, bool cache_enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType type_;
  bool enabled_;
  bool previous_enabled_;
  at::ScalarType previous_dtype_;
  bool previous_cache_;
};

// What is known of a backend before any of its devices is touched: a row of the registry's table.
struct AcceleratorFacts {
  std::string name;  // "npu"
  c10::DeviceType type = c10::DeviceType::PrivateUse1;
  std::string communication_backend;  // what c10d calls it: "nccl", "hccl", "gloo"
  std::string visible_devices;        // the variable that hides devices; "" if there is none
  int priority = 500;                 // auto-detection asks in ascending order; cpu is 1000
  std::string plugin;       // the PrivateUse1 name its plugin registers; "" for LibTorch's own
  std::string driver_path;  // exists where the driver is loaded; "" if not known
  Capabilities capabilities = {};
};

// The contract. Instances come from the registry below, or are a user's own.
class BaseAccelerator : public std::enable_shared_from_this<BaseAccelerator> {
 public:
  explicit BaseAccelerator(AcceleratorFacts facts);
  virtual ~BaseAccelerator();
  BaseAccelerator(const BaseAccelerator&) = delete;
  BaseAccelerator& operator=(const BaseAccelerator&) = delete;

  const std::string& name() const { return facts_.name; }
  c10::DeviceType device_type() const { return facts_.type; }
  const std::string& communication_backend() const { return facts_.communication_backend; }
  const AcceleratorFacts& facts() const { return facts_; }
  bool is_synchronous() const { return facts_.capabilities.synchronous; }
  bool support_set_device() const { return facts_.capabilities.set_device; }
  virtual Capabilities capabilities() const { return facts_.capabilities; }
  // "cuda (communication nccl, 4 devices)".
  std::string repr() const;

  // --- device
  // Why no device of this backend can be used; "" if one can. Never throws, initialises nothing.
  virtual std::string why_unavailable() const { return ""; }
  bool is_available() const { return why_unavailable().empty(); }
  virtual int device_count() const = 0;                   // 0 if unavailable
  virtual std::string get_version() const { return ""; }  // of the backend's runtime; "" on cpu
  virtual int current_device() const { return 0; }
  virtual c10::Device get_current_device() const;  // with its index; "cpu" has none
  // Default: this process's local rank (LOCAL_RANK or what MPI and Slurm set; 0 without), or the
  // only device if just one is visible. **Throws HardwareError if** there is no such device.
  void set_device(DeviceArg device = {});
  std::string get_device_name(DeviceArg device = {}) const;
  DeviceCapability get_device_capability(DeviceArg device = {}) const;
  DeviceProperties get_device_properties(DeviceArg device = {}) const;
  // Percent of the time that the device was busy, lately. On cpu: of the cores that this process
  // may use, since the last call; **Blocks.** 50 ms if there was none, or just now.
  double utilization(DeviceArg device = {}) const;
  void synchronize(DeviceArg device = {}) const;  // **Blocks.** until the device's work is done
  // Moves parameters, buffers and gradients to get_current_device(), as move_module_ does.
  void set_to_device(torch::nn::Module& module) const;
  void set_to_device(const std::vector<std::shared_ptr<torch::nn::Module>>& modules) const;
  // A page-locked copy; the tensor itself where there is no such memory, or none is left.
  at::Tensor pin_memory(const at::Tensor& tensor) const;

  // --- random numbers (the default generator of each device)
  at::Tensor get_rng_state(DeviceArg device = {}) const;  // bytes, on the cpu
  void set_rng_state(const at::Tensor& state, DeviceArg device = {}) const;
  std::vector<at::Tensor> get_rng_state_all() const;  // one for each device
  // **Throws HardwareError if** their number differs from device_count(); then nothing is set.
  void set_rng_state_all(const std::vector<at::Tensor>& states) const;
  void manual_seed(uint64_t seed) const;  // the current device
  void manual_seed_all(uint64_t seed) const;
  uint64_t seed() const;      // seeds with a random number, and returns it
  uint64_t seed_all() const;  // the same one on every device
  uint64_t initial_seed() const;

  // --- memory (bytes)
  void empty_cache() const;  // gives back what is cached and unused; on cpu to the system
  MemoryStats memory_stats(DeviceArg device = {}) const;
  // A table: a line for each counter with its current, peak, allocated and freed value, "-" where
  // the backend keeps none. Abbreviated: allocated, reserved and allocations only.
  std::string memory_summary(DeviceArg device = {}, bool abbreviated = false) const;
  std::vector<MemoryBlock> memory_snapshot(DeviceArg device = {}) const;  // live blocks
  int64_t memory_allocated(DeviceArg device = {}) const;
  int64_t max_memory_allocated(DeviceArg device = {}) const;
  int64_t memory_reserved(DeviceArg device = {}) const;
  int64_t max_memory_reserved(DeviceArg device = {}) const;
  // The three reset every peak to the current value, as LibTorch's do.
  void reset_max_memory_allocated(DeviceArg device = {}) const;
  void reset_max_memory_cached(DeviceArg device = {}) const;
  void reset_peak_memory_stats(DeviceArg device = {}) const;
  // Above total_memory() * fraction of allocated bytes, c10::OutOfMemoryError. 0 <= fraction <= 1.
  void set_per_process_memory_fraction(double fraction, DeviceArg device = {}) const;
  // On cpu: of the machine or of the tightest control group (cgroup v1 or v2) around this process.
  int64_t total_memory(DeviceArg device = {}) const;
  int64_t available_memory(DeviceArg device = {}) const;

  // --- streams and events (on cpu, where work is done in order and at once, they do that too)
  c10::Stream Stream(DeviceArg device = {}, int priority = 0) const;  // a new one; lower is sooner
  drivetrain::Event Event(bool enable_timing = false, bool blocking = false,
                          bool interprocess = false) const;
  c10::Stream current_stream(DeviceArg device = {}) const;
  c10::Stream default_stream(DeviceArg device = {}) const;
  void set_stream(c10::Stream stream) const;  // of its device; the current device stays
  StreamGuard stream(std::optional<c10::Stream> stream) const;

  // --- autocast
  Autocast autocast(bool enabled = true, std::optional<at::ScalarType> dtype = std::nullopt,
                    bool cache_enabled = true) const;

 protected:
  friend class StreamGuard;
  // What a backend implements. Indices are valid ones; each default throws unsupported().
  virtual void do_set_device(int index) const;
  virtual DeviceProperties do_properties(int index) const;
  virtual double do_utilization(int index) const;
  virtual void do_synchronize(int index) const;
  virtual at::Tensor do_pin_memory(const at::Tensor& tensor) const { return tensor; }
  virtual at::Generator do_generator(int index) const;
  virtual void do_empty_cache() const;
  virtual MemoryStats do_memory_stats(int index) const;
  virtual void do_reset_peaks(int index) const;
  virtual std::vector<MemoryBlock> do_memory_snapshot(int index) const;
  virtual void do_set_memory_fraction(double fraction, int index) const;
  virtual std::pair<int64_t, int64_t> do_memory_info(int index) const;  // available, total
  virtual c10::Stream do_new_stream(int index, int priority) const;
  virtual c10::Stream do_current_stream(int index) const;
  virtual c10::Stream do_default_stream(int index) const;
  virtual void do_set_stream(c10::Stream stream) const;
  virtual std::unique_ptr<detail::EventState> do_new_event(bool timing) const;

  // The typed error: "npu: utilization is not supported: reason; ask capabilities() first".
  [[noreturn]] void unsupported(const char* call, const std::string& reason) const;
  // The index that `device` means. **Throws HardwareError if** there is no such device here.
  int resolve(const char* call, const DeviceArg& device) const;

 private:
  const AcceleratorFacts facts_;
};

// --- the registry

using AcceleratorFactory = std::function<std::shared_ptr<BaseAccelerator>(const AcceleratorFacts&)>;

// Adds a backend; without a factory it is a DeviceAccelerator (backends.h) with these facts.
// Auto-detection meets it from its next run on. **Throws HardwareError if** the name is taken.
void register_accelerator(AcceleratorFacts facts, AcceleratorFactory make = {});

// The names, in the order in which auto-detection asks.
std::vector<std::string> registered_accelerators();

// A new instance by name, available or not. **Throws HardwareError if** the name is not registered.
std::shared_ptr<BaseAccelerator> make_accelerator(const std::string& name);

// The accelerator in force: the innermost ScopedAccelerator, else what was set, else detected (the
// first call detects). Never null. Detection logs one warning in a process where it passes over a
// backend whose driver or devices are there, unless the user has hidden them all.
std::shared_ptr<BaseAccelerator> get_accelerator();

// The accelerator that owns tensors of this type: the one in force if it is of the type, else a
// registered and available one. **Throws HardwareError if** there is none.
std::shared_ptr<BaseAccelerator> accelerator_of(c10::DeviceType type);

// An explicit choice for the whole process. **Throws HardwareError if** the name is not registered
// or no device of it is available; the message says what was found. Nothing changes then.
void set_accelerator(const std::string& name);
void set_accelerator(std::shared_ptr<BaseAccelerator> accelerator);

// Detects again and returns the accelerator in force. Takes what DRIVETRAIN_ACCELERATOR names, else
// the first available one. An explicit choice is kept: clear_accelerator() first to drop it.
// **Throws ConfigError if** the variable holds an unknown name, HardwareError if an unavailable
// one.
std::shared_ptr<BaseAccelerator> auto_set_accelerator();

// Forgets what was set or detected.
void clear_accelerator();

struct ProbeResult {
  std::string name;
  bool chosen = false;
  std::string reason;  // why it was chosen or not
};

// What the last detection found, one for each registered backend in its order; detects if none was.
std::vector<ProbeResult> probe_report();

// An accelerator in force for the whole process until the end of the scope. Scopes nest; of several
// threads' scopes the one begun last is in force.
class ScopedAccelerator {
 public:
  explicit ScopedAccelerator(const std::string& name);
  explicit ScopedAccelerator(std::shared_ptr<BaseAccelerator> accelerator);
  ~ScopedAccelerator();
  ScopedAccelerator(const ScopedAccelerator&) = delete;
  ScopedAccelerator& operator=(const ScopedAccelerator&) = delete;

 private:
  uint64_t id_;
};

// Moves every parameter, its gradient and every buffer of `module` and its children to `device` in
// place: the tensor objects stay, so optimizers made before keep working; tensors registered twice
// or sharing storage still do. **Throws HardwareError if** a tensor has no data (meta), or is to
// change to or from a plugin's (PrivateUse1) or the meta device while a graph holds it, naming it,
// and c10::OutOfMemoryError if there is no room for all; nothing has been moved then.
void move_module_(torch::nn::Module& module, c10::Device device);

// The same for tensors that belong together, as a TorchScript module's. `named` says what each is
// called in a refusal ("parameter fc.weight"); gradients of leaves come along.
void move_tensors_(const std::vector<std::pair<std::string, at::Tensor>>& named,
                   c10::Device device);

// The cores that this process may use: its affinity, cut by a cgroup quota; at least 1.
int num_cores();

}  // namespace drivetrain
