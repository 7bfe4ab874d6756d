// SPDX-License-Identifier: Apache-2.0
#include "parallel/gradient_sync.h"

#include <ATen/ops/empty.h>
#include <drivetrain/error.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <optional>

#include "core/text.h"
#include "parallel/backward_hooks.h"
#include "parallel/comm_hooks.h"
#include "parallel/gradient_chunks.h"
#include "parallel/replicas.h"

namespace drivetrain::parallel {
namespace {

int64_t cap_bytes(const char* name, double mebibytes) {
  if (!(mebibytes > 0) || mebibytes > 1e9)
    throw ConfigError("parallel", core::str(name, " is ", mebibytes,
                                            "; allowed: above 0, in MiB; usual: 1 to 100"));
  return static_cast<int64_t>(std::ceil(mebibytes * 1024 * 1024));
}

void check_leaves(const NamedTensors& parameters) {
  for (const auto& [name, parameter] : parameters)
    if (!parameter.is_leaf())
      throw ConfigError("parallel",
                        core::str("parameter \"", name, "\" is the result of a computation (",
                                  parameter.grad_fn() ? "it has a grad_fn" : "not a leaf",
                                  "); allowed: leaves; register what it is computed from"));
}

}  // namespace

class GradientSync::State : public std::enable_shared_from_this<State> {
 public:
  State(const World& world, const NamedTensors& parameters, const NamedTensors& buffers,
        const DistributedDataParallelOptions& options, bool float32_gradients)
      : world_(world),
        is_single_(world.world_size() == 1),
        parameters_(distinct(parameters)),
        buffers_(distinct(buffers)),
        sends_buffers_(options.broadcast_buffers && !buffers_.empty()),
        hooks_(parameters_.size()),
        chunks_(world, parameters_,
                {.first_bytes = cap_bytes("first_bucket_mb", options.first_bucket_mb),
                 .bytes = cap_bytes("bucket_cap_mb", options.bucket_cap_mb)},
                make_comm_hook(options), float32_gradients) {}

  void start();
  void before_forward(bool training);
  void after_backward();
  void reduce_now();
  void answer(const Join::Announcement& announcement);
  void replicate_from(int root);

  bool is_single() const { return is_single_; }
  const GradientChunks& chunks() const { return chunks_; }
  const std::string& name(size_t parameter) const { return parameters_[parameter].first; }

  bool sync = true;
  Join* join = nullptr;
  size_t join_index = 0;

 private:
  std::vector<size_t> attach();
  void take_in_unfrozen();
  void on_reached(size_t parameter, bool has_gradient);
  void begin_backward();
  void finish_backward();
  void recover();
  void reorder(const std::vector<size_t>& arrivals);
  void hear(Join::Event event);
  bool overlaps() const { return join == nullptr || join->may_overlap(); }

  World world_;
  bool is_single_;
  NamedTensors parameters_;
  NamedTensors buffers_;
  bool sends_buffers_;
  // By parameter; null where it was frozen whenever it was looked at.
  std::vector<std::unique_ptr<AccumulationHook>> hooks_;
  GradientChunks chunks_;
  std::mutex mutex_;  // several devices' threads may take part in one backward
  bool is_in_backward_ = false;
  bool is_forward_unanswered_ = false;
  bool is_order_final_ = false;
  double scale_ = 1;
  int root_ = 0;  // whose buffers and order hold
  uint64_t backward_ = 0;
  std::atomic<uint64_t> failed_backward_ = 0;
};

void GradientSync::State::start() {
  check_leaves(parameters_);
  if (is_single_) return;
  check_same_everywhere(world_, parameters_, "parameter");
  check_same_everywhere(world_, buffers_, "buffer");
  replicate_from(0);
  attach();
  std::vector<size_t> order = reverse_order(parameters_.size());
  std::erase_if(order, [this](size_t parameter) { return !hooks_[parameter]; });
  chunks_.set_order(std::move(order));
}

// Hooks on the parameters that require gradients and have none; returns those that are new.
std::vector<size_t> GradientSync::State::attach() {
  std::vector<size_t> added;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].second;
    if (!parameter.requires_grad() || (hooks_[i] && hooks_[i]->is_attached())) continue;
    if (!hooks_[i]) added.push_back(i);
    // The hooks die with this object, so it may be captured as it is.
    hooks_[i] = after_accumulation(parameter,
                                   [this, i](bool has_gradient) { on_reached(i, has_gradient); });
  }
  return added;
}

void GradientSync::State::take_in_unfrozen() {
  const std::vector<size_t> unfrozen = attach();
  if (unfrozen.empty()) return;
  check_same_everywhere(world_, parameters_, "parameter");
  std::vector<size_t> order(unfrozen.rbegin(), unfrozen.rend());
  order.insert(order.end(), chunks_.order().begin(), chunks_.order().end());
  chunks_.set_order(std::move(order));
  is_order_final_ = false;
}

void GradientSync::State::before_forward(bool training) {
  // A backward that failed may not have been dropped by the engine yet.
  if (is_in_backward_ && !is_in_backward()) failed_backward_ = backward_;
  recover();
  chunks_.check_parameters();
  take_in_unfrozen();
  is_forward_unanswered_ = training;
  if (!training || !sync || !sends_buffers_) return;
  hear(Join::Event::forward);
  replicate(world_, buffers_, root_);
}

void GradientSync::State::after_backward() {
  if (!std::exchange(is_forward_unanswered_, false) || !sync || is_in_backward_) return;
  reduce_now();
}

void GradientSync::State::reduce_now() {
  if (overlaps()) hear(Join::Event::backward);
  is_in_backward_ = true;
  ++backward_;
  finish_backward();
}

void GradientSync::State::on_reached(size_t parameter, bool has_gradient) {
  const std::lock_guard lock(mutex_);
  if (!sync) return;
  recover();
  if (!is_in_backward_) begin_backward();
  if (has_gradient && overlaps()) chunks_.arrive(parameter, scale_);
}

void GradientSync::State::begin_backward() {
  is_in_backward_ = true;
  ++backward_;
  if (overlaps()) hear(Join::Event::backward);
  // The backward may outlive this object if it fails.
  call_at_end_of_backward(
      [this] {
        const std::lock_guard lock(mutex_);
        finish_backward();
      },
      [weak = weak_from_this(), backward = backward_] {
        if (const auto state = weak.lock()) state->failed_backward_ = backward;
      });
}

void GradientSync::State::finish_backward() {
  failed_backward_ = backward_;  // until it has succeeded
  if (!overlaps()) hear(Join::Event::backward);
  chunks_.launch_rest(scale_);
  const std::vector<size_t> arrivals = chunks_.arrivals();
  chunks_.finish();
  reorder(arrivals);
  is_in_backward_ = false;
  is_forward_unanswered_ = false;
}

void GradientSync::State::recover() {
  if (!is_in_backward_ || failed_backward_ != backward_) return;
  is_in_backward_ = false;
  chunks_.discard();
}

// After the first backward: chunks in the order in which gradients arrived on one rank.
void GradientSync::State::reorder(const std::vector<size_t>& arrivals) {
  if (std::exchange(is_order_final_, true) || chunks_.layouts().size() < 2) return;
  std::vector<size_t> order = order_of_arrival(arrivals, chunks_.order());
  const at::Tensor message = at::empty({static_cast<int64_t>(order.size())}, at::kLong);
  std::copy(order.begin(), order.end(), message.mutable_data_ptr<int64_t>());
  world_.broadcast_async(message, root_).wait();
  std::copy_n(message.const_data_ptr<int64_t>(), order.size(), order.begin());
  chunks_.set_order(std::move(order));
}

void GradientSync::State::hear(Join::Event event) {
  root_ = 0;
  scale_ = 1.0 / world_.world_size();
  if (join == nullptr) return;
  const Join::Announcement announcement = join->announce(join_index, event);
  root_ = announcement.active.front();
  scale_ = join->scale(announcement);
}

void GradientSync::State::answer(const Join::Announcement& announcement) {
  recover();
  root_ = announcement.active.front();
  if (announcement.event == Join::Event::forward) return replicate(world_, buffers_, root_);
  chunks_.launch_zeros();
  chunks_.discard();
  reorder({});
}

void GradientSync::State::replicate_from(int root) {
  replicate(world_, parameters_, root);
  replicate(world_, buffers_, root);
  root_ = 0;
}

GradientSync::GradientSync(const World& world, const NamedTensors& parameters,
                           const NamedTensors& buffers,
                           const DistributedDataParallelOptions& options, bool float32_gradients)
    : state_(std::make_shared<State>(world, parameters, buffers, options, float32_gradients)) {
  state_->start();
}

GradientSync::~GradientSync() = default;

void GradientSync::before_forward(bool training) {
  if (!state_->is_single()) state_->before_forward(training);
}

void GradientSync::after_backward() {
  if (!state_->is_single()) state_->after_backward();
}

void GradientSync::reduce_now() {
  if (!state_->is_single()) state_->reduce_now();
}

bool GradientSync::is_syncing() const { return state_->sync; }
void GradientSync::set_sync(bool sync) { state_->sync = sync; }

std::vector<GradientSync::ChunkFacts> GradientSync::chunks() const {
  std::vector<ChunkFacts> facts;
  for (const ChunkLayout& layout : state_->chunks().layouts()) {
    ChunkFacts& chunk = facts.emplace_back();
    chunk.dtype = layout.dtype;
    chunk.numel = layout.numel;
    for (const size_t parameter : layout.parameters)
      chunk.parameters.push_back(state_->name(parameter));
  }
  return facts;
}

int64_t GradientSync::num_reductions() const { return state_->chunks().num_reductions(); }

void GradientSync::set_join(Join* join, size_t index) {
  state_->join = join;
  state_->join_index = index;
}

bool GradientSync::is_joined() const { return state_->join != nullptr; }
void GradientSync::answer(const Join::Announcement& announcement) { state_->answer(announcement); }
void GradientSync::replicate_from(int root) { state_->replicate_from(root); }

}  // namespace drivetrain::parallel
