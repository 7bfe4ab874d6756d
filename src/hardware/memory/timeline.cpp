// SPDX-License-Identifier: Apache-2.0
#include <c10/util/intrusive_ptr.h>
#include <drivetrain/error.h>
#include <drivetrain/memory.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "core/sizes.h"
#include "core/text.h"
#include "hardware/memory/record.h"
#include "hardware/memory/tally.h"
#include "hardware/optimizer_state.h"

namespace drivetrain {

using core::str;

namespace {

// Those that are tracked; the other two are what remains.
constexpr size_t kNumTracked = 4;
constexpr size_t kMaxLabels = 16;

using Tensors = std::array<std::vector<at::Tensor>, kNumTracked>;

std::vector<at::Tensor>& of(Tensors& tensors, MemoryCategory category) {
  return tensors[static_cast<size_t>(category)];
}

size_t size_of(const Tensors& tensors) {
  size_t size = 0;
  for (const auto& list : tensors) size += list.size();
  return size;
}

// Something tracked: adds its tensors; returns a note or "".
struct Source {
  std::string name;
  std::function<std::string(Tensors&)> collect;
  std::string note = "";
  int64_t elsewhere = 0;
};

void collect_module(const torch::nn::Module& module, Tensors& tensors) {
  for (at::Tensor& parameter : module.parameters()) {
    // Asking another tensor for its gradient makes LibTorch warn.
    if (parameter.is_leaf())
      if (const at::Tensor& gradient = parameter.grad(); gradient.defined())
        of(tensors, MemoryCategory::gradients).push_back(gradient);
    of(tensors, MemoryCategory::parameters).push_back(std::move(parameter));
  }
  for (at::Tensor& buffer : module.buffers())
    of(tensors, MemoryCategory::buffers).push_back(std::move(buffer));
}

HardwareError wrong(const std::string& what, const std::string& allowed) {
  return HardwareError(str("MemoryTimeline was given ", what, "; allowed: ", allowed));
}

}  // namespace

struct MemoryTimeline::State {
  std::shared_ptr<const BaseAccelerator> accelerator;
  c10::Device device{c10::kCPU};
  hardware::Record record;
  std::vector<Source> sources;
  bool has_peaks = false;
  // Storages of what is tracked that the backend's counters do not know.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> uncounted;
  std::map<std::string, int64_t> marks;  // of the step that is going on
  std::unordered_set<std::string> labels;
  int64_t sampled_peak = 0;

  MemoryCounter read() const { return accelerator->memory_stats(record.device).allocated_bytes; }
  void begin_step(int64_t allocated);
  void add(Source source);
  void note_uncounted(const Source& source);
  int64_t uncounted_bytes();
  void tally(MemoryPoint& point);
  hardware::Record for_output() const;
};

void MemoryTimeline::State::begin_step(int64_t allocated) {
  marks.clear();
  sampled_peak = allocated;
  if (has_peaks) accelerator->reset_peak_memory_stats(record.device);
}

void MemoryTimeline::State::add(Source source) {
  note_uncounted(source);
  sources.push_back(std::move(source));
}

// Memory from before the counting began, or that another library owns, is missing in the counters.
// Only the list of live blocks tells.
void MemoryTimeline::State::note_uncounted(const Source& source) {
  if (!accelerator->capabilities().memory_snapshot) return;
  Tensors tensors;
  source.collect(tensors);
  hardware::Tally tally(device, size_of(tensors));
  tally.keep_storages();
  for (const auto& list : tensors)
    for (const at::Tensor& tensor : list) tally.add(tensor);
  std::unordered_set<uint64_t> known;
  for (const MemoryBlock& block : accelerator->memory_snapshot(record.device))
    known.insert(block.address);
  const auto is_noted = [this](const c10::Storage& storage) {
    return std::any_of(uncounted.begin(), uncounted.end(), [&](const auto& noted) {
      return noted._unsafe_get_target() == storage.unsafeGetStorageImpl();
    });
  };
  for (const c10::Storage& storage : tally.storages())
    if (storage.nbytes() > 0 && !is_noted(storage) &&
        !known.contains(reinterpret_cast<uintptr_t>(storage.data_ptr().get())))
      uncounted.push_back(storage.getWeakStorageImpl());
}

int64_t MemoryTimeline::State::uncounted_bytes() {
  std::erase_if(uncounted, [](const auto& storage) { return storage.expired(); });
  int64_t bytes = 0;
  for (const auto& storage : uncounted)
    if (const auto alive = storage.lock()) bytes += static_cast<int64_t>(alive->nbytes());
  return bytes;
}

void MemoryTimeline::State::tally(MemoryPoint& point) {
  std::vector<Tensors> tensors(sources.size());
  size_t count = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    sources[i].note = sources[i].collect(tensors[i]);
    sources[i].elsewhere = 0;
    count += size_of(tensors[i]);
  }
  hardware::Tally tally(device, count);
  for (size_t category = 0; category < kNumTracked; ++category)
    for (size_t i = 0; i < sources.size(); ++i) {
      const int64_t before = tally.elsewhere();
      for (const at::Tensor& tensor : tensors[i][category])
        point.bytes[category] += tally.add(tensor);
      sources[i].elsewhere += tally.elsewhere() - before;
    }
}

hardware::Record MemoryTimeline::State::for_output() const {
  hardware::Record output = record;
  if (!has_peaks)
    output.notes.push_back(str("the peaks are the largest values at mark() and step(): ",
                               record.backend, " records none"));
  for (const Source& source : sources) {
    if (!source.note.empty()) output.notes.push_back(source.note);
    if (source.elsewhere > 0)
      output.notes.push_back(str(source.name, ": ", core::format_bytes(source.elsewhere),
                                 " on other devices are not counted"));
  }
  return output;
}

MemoryTimeline::MemoryTimeline(std::shared_ptr<const BaseAccelerator> accelerator,
                               MemoryTimelineOptions options)
    : state_(std::make_unique<State>()) {
  if (accelerator == nullptr) throw wrong("no accelerator", "one; pass get_accelerator()");
  if (options.max_points < 2)
    throw wrong(str("max_points ", options.max_points), "2 and more; 1000 fill a picture");
  if (options.limit_bytes < 0)
    throw wrong(str("limit_bytes ", options.limit_bytes), "bytes, or 0 for the total memory");
  State& state = *state_;
  const MemoryCounter now = accelerator->memory_stats(options.device).allocated_bytes;
  const Capabilities can = accelerator->capabilities();
  const int index = options.device.index().value_or(accelerator->current_device());
  state.accelerator = std::move(accelerator);
  state.device = {state.accelerator->device_type(), static_cast<c10::DeviceIndex>(index)};
  state.has_peaks = can.memory_peaks;
  hardware::Record& record = state.record;
  record.title = std::move(options.title);
  record.backend = state.accelerator->name();
  record.device = index;
  record.has_limit = options.limit_bytes > 0;
  record.capacity_bytes = options.limit_bytes;
  if (!record.has_limit && can.memory_info)
    record.capacity_bytes = state.accelerator->total_memory(index);
  record.peaks_are_sampled = !can.memory_peaks;
  record.history = hardware::History(options.max_points);
  state.begin_step(now.current);
}

MemoryTimeline::~MemoryTimeline() = default;
MemoryTimeline::MemoryTimeline(MemoryTimeline&&) noexcept = default;
MemoryTimeline& MemoryTimeline::operator=(MemoryTimeline&&) noexcept = default;

void MemoryTimeline::track(const torch::nn::Module& module, std::string name) {
  const auto weak = module.weak_from_this();
  // A module outside a shared pointer has no such way to tell that it is gone.
  const torch::nn::Module* bare = weak.lock() == nullptr ? &module : nullptr;
  state_->add({std::move(name), [weak, bare](Tensors& tensors) {
                 const auto held = weak.lock();
                 if (const auto* alive = bare == nullptr ? held.get() : bare)
                   collect_module(*alive, tensors);
                 return std::string();
               }});
}

void MemoryTimeline::track(const torch::optim::Optimizer& optimizer, std::string name) {
  state_->add({name, [&optimizer, name = std::move(name)](Tensors& tensors) {
                 auto& states = of(tensors, MemoryCategory::optimizer);
                 const std::string unknown = hardware::visit_optimizer_state(
                     optimizer, [&states](const at::Tensor& tensor) {
                       if (tensor.defined()) states.push_back(tensor);
                     });
                 return unknown.empty() ? unknown
                                        : str(name, ": state of the class ", unknown,
                                              " is not known and counted as other");
               }});
}

void MemoryTimeline::track(MemoryCategory category,
                           std::function<std::vector<at::Tensor>()> tensors, std::string name) {
  if (static_cast<size_t>(category) >= kNumTracked)
    throw wrong(str("tensors to track as ", name_of(category)),
                "parameters, buffers, gradients and optimizer; the rest is what remains");
  state_->add({std::move(name), [category, tensors = std::move(tensors)](Tensors& all) {
                 for (at::Tensor& tensor : tensors())
                   of(all, category).push_back(std::move(tensor));
                 return std::string();
               }});
}

void MemoryTimeline::mark(const std::string& label) {
  State& state = *state_;
  if (!state.labels.contains(label)) {
    if (state.labels.size() == kMaxLabels)
      throw wrong(str("the label \"", label, "\" to mark after ", kMaxLabels, " others"),
                  str(kMaxLabels, " labels; use the same ones in each step"));
    state.labels.insert(label);
  }
  const int64_t now = state.read().current + state.uncounted_bytes();
  int64_t& largest = state.marks[label];
  largest = std::max(largest, now);
  state.sampled_peak = std::max(state.sampled_peak, now);
}

MemoryPoint MemoryTimeline::step() {
  State& state = *state_;
  MemoryPoint point;
  const MemoryCounter counter = state.read();
  state.tally(point);
  const int64_t uncounted = state.uncounted_bytes();
  point.allocated = counter.current + uncounted;
  point.peak =
      std::max(point.allocated, state.has_peaks ? counter.peak + uncounted : state.sampled_peak);
  int64_t tracked = 0;
  for (size_t i = 0; i < kNumTracked; ++i) tracked += point.bytes[i];
  point.bytes[static_cast<size_t>(MemoryCategory::other)] =
      std::max<int64_t>(point.allocated - tracked, 0);
  point.bytes[static_cast<size_t>(MemoryCategory::activations)] = point.peak - point.allocated;
  point.marks = state.marks;
  point.first_step = point.last_step = state.record.history.steps();
  state.begin_step(point.allocated);
  state.record.history.add(point);
  return point;
}

int64_t MemoryTimeline::steps() const { return state_->record.history.steps(); }

const std::vector<MemoryPoint>& MemoryTimeline::points() const {
  return state_->record.history.points();
}

std::string MemoryTimeline::summary() const { return summary_of(state_->for_output()); }

void MemoryTimeline::write_svg(const std::filesystem::path& path) const {
  hardware::write_or_throw("write_svg", path, svg_of(state_->for_output()));
}

void MemoryTimeline::write_html(const std::filesystem::path& path) const {
  hardware::write_or_throw("write_html", path, html_of(state_->for_output()));
}

void MemoryTimeline::write_json(const std::filesystem::path& path) const {
  hardware::write_or_throw("write_json", path, hardware::dump(json_of(state_->for_output())));
}

}  // namespace drivetrain
