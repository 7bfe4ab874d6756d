// SPDX-License-Identifier: Apache-2.0
// Where a device's memory goes: what is allocated now as a document, and over the steps of a
// training run, by category, as a picture.
//
//   drivetrain::MemoryTimeline timeline;       // of the accelerator in force
//   timeline.track(*model, "model");
//   timeline.track(optimizer, "optimizer");
//   for (auto& batch : loader) {
//     ...
//     timeline.step();                         // at the end of each step
//   }
//   timeline.write_html("memory.html");        // or write_svg, write_json; summary() is text
//
// docs/memory.md shows a picture and the formats of the documents.
#pragma once

#include <ATen/core/Tensor.h>
#include <drivetrain/hardware.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace drivetrain {

// A JSON document: device, time, every counter, and the live blocks with address and bytes where
// the backend lists them (null, with the reason, where not). **Throws HardwareError if** there is
// no such device, or its backend counts no memory.
std::string memory_snapshot_json(const BaseAccelerator& accelerator, DeviceArg device = {});

// The same to a file, which is replaced whole or not at all. **Throws HardwareError if** the file
// cannot be written; the message has its path and the reason.
void write_memory_snapshot(const BaseAccelerator& accelerator, const std::filesystem::path& path,
                           DeviceArg device = {});

// In the order in which they are stacked.
enum class MemoryCategory { parameters, buffers, gradients, optimizer, other, activations };
inline constexpr int kNumMemoryCategories = 6;

// "parameters", ..., "activations".
const char* name_of(MemoryCategory category);

// Bytes in one step, or the largest of each figure in several neighbouring ones.
struct MemoryPoint {
  int64_t first_step = 0, last_step = 0;  // counted from 0
  std::array<int64_t, kNumMemoryCategories> bytes{};
  int64_t allocated = 0;                 // at the step's end
  int64_t peak = 0;                      // the most that was allocated at once
  std::map<std::string, int64_t> marks;  // allocated when mark() was called

  int64_t operator[](MemoryCategory category) const { return bytes[static_cast<size_t>(category)]; }
};

struct MemoryTimelineOptions {
  DeviceArg device = {};    // of the accelerator; by default its current one
  int max_points = 1000;    // kept at most; at least 2
  int64_t limit_bytes = 0;  // a line in the pictures; 0: the device's total memory
  std::string title = "Memory by category";
};

// Watches one device while a program trains.
//
// Of a step it keeps what is there at its end (parameters, buffers, gradients, optimizer state,
// and as `other` whatever else is allocated) and, as `activations`, by how much the step's peak
// stood above that. So the categories of a step add up to its peak. Activations are a lower bound
// of what came and went: what is there at the end but was not yet at the peak (gradients that
// zero_grad() had dropped, the optimizer's state in the first step) hides as much of them.
// Gradients that are dropped before step() is called are part of them.
//
// Each storage is counted once, whole, however many tensors view it, for the first category that
// claims it; tied parameters and gradients that are windows of a chunk come out right. What the
// allocator adds by rounding sizes up is part of `other`. Only storages on the watched device
// count; summary() tells of those elsewhere. The peak is the backend's own, which every step()
// resets: max_memory_allocated() then tells of the time since. Where a backend keeps no peaks it is
// the largest value that step() and mark() have seen, and the outputs say so. On cpu the counters
// are those of the whole process, and memory that the library had not counted from its allocation
// on is added if it belongs to what is tracked.
//
// A step costs one reading and one reset of the counters and a walk over the tracked tensors (on
// cpu 50 us and 0.8 us a parameter tensor, with AdamW); the device is not waited for. Memory is
// bounded: beyond max_points neighbours are merged, two and two, keeping the larger figure of each
// kind.
//
// Not for several threads at once. Modules and optimizers must live as long as step() is called;
// a module in a shared pointer (every holder's) may go earlier, and counts nothing then.
class MemoryTimeline {
 public:
  // **Throws HardwareError if** the accelerator is null, its backend counts no memory, there is no
  // such device, or an option is out of range.
  explicit MemoryTimeline(std::shared_ptr<const BaseAccelerator> accelerator = get_accelerator(),
                          MemoryTimelineOptions options = {});
  ~MemoryTimeline();
  MemoryTimeline(MemoryTimeline&&) noexcept;
  MemoryTimeline& operator=(MemoryTimeline&&) noexcept;

  // Parameters, buffers and gradients of the module and its children.
  void track(const torch::nn::Module& module, std::string name);
  // Its state: of Adam, AdamW, SGD, Adagrad, RMSprop and LBFGS and what derives from them. That of
  // another class stays in `other`, which summary() says.
  void track(const torch::optim::Optimizer& optimizer, std::string name = "optimizer");
  // What `tensors` returns at each step: a TorchScript module's parameters, the state of an
  // optimizer of one's own. **Throws HardwareError if** the category is other or activations, which
  // are what remains.
  void track(MemoryCategory category, std::function<std::vector<at::Tensor>()> tensors,
             std::string name);

  // Notes what is allocated now under a label, as "forward". Called again within a step, the
  // largest value counts. **Throws HardwareError if** it would be the 17th label.
  void mark(const std::string& label);

  // Ends a step, and returns its figures.
  MemoryPoint step();

  int64_t steps() const;  // ended so far
  const std::vector<MemoryPoint>& points() const;

  // A table: each category's last and largest value with its step, the marks, and what is not
  // counted as it could be expected.
  std::string summary() const;

  // Each replaces the file whole or not at all. **Throws HardwareError if** it cannot be written;
  // the message has its path and the reason. With no step yet they hold no points.
  void write_svg(const std::filesystem::path& path) const;   // a picture
  void write_html(const std::filesystem::path& path) const;  // with values under the pointer
  void write_json(const std::filesystem::path& path) const;  // the points

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace drivetrain
