// SPDX-License-Identifier: Apache-2.0
// The one object that a training program talks to.
//
// Settings come from the launcher through the environment; without a launcher an Accelerator is one
// process on the best local device, so the same program runs unchanged on a laptop and on a
// cluster. It is an ordinary object: several may exist, one after the other or at once. Use it from
// the training thread.
#pragma once

#include <drivetrain/comm.h>
#include <drivetrain/config.h>
#include <drivetrain/data.h>
#include <drivetrain/hardware.h>
#include <drivetrain/optimizer.h>
#include <drivetrain/parallel.h>
#include <drivetrain/precision.h>
#include <drivetrain/prepared.h>
#include <drivetrain/schedule.h>

#include <concepts>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace drivetrain {

class BaseAccelerator;

namespace training {
class StepControl;
}

// How many micro-batches make one update (accumulate()).
struct GradientAccumulationOptions {
  std::optional<int64_t> steps = std::nullopt;  // 1 or more; by default as the environment says
  bool sync_with_dataloader = true;             // the last batch of a pass completes its group
  bool sync_each_batch = false;  // average gradients after each micro-batch, not only the last
};

struct AcceleratorOptions {
  Config config = Config::from_environment();
  // The world to train in, instead of the one that the launcher describes.
  std::optional<World> world = std::nullopt;
  // How gradients are averaged over the ranks.
  DistributedDataParallelOptions ddp = {};
  // Instead of config.mixed_precision.
  std::optional<MixedPrecision> mixed_precision = std::nullopt;
  // The loss scale of fp16; by default a GradScaler. Kept by the caller who wants to save it.
  std::shared_ptr<LossScaler> scaler = nullptr;
  // The types of parameters, buffers, outputs and of what ranks exchange.
  MixedPrecisionPolicy mixed_precision_policy = {};
  // Prepared models give float32 where they compute in 16 bits.
  bool float32_outputs = true;
  // Over config.gradient_accumulation_steps micro-batches unless it says how many.
  GradientAccumulationOptions gradient_accumulation = {};
  // Prepared schedules step with the updates of their optimizer; if not, whenever they are asked
  // to.
  bool step_scheduler_with_optimizer = true;
  // ... and num_processes times for each, as Accelerate does, for a schedule that is written for
  // the number of steps that one process would make.
  bool scale_schedule_by_processes = false;
};

struct BatchSizeSearch {
  int64_t starting_batch_size = 128;
  // The next size to try; by default nine tenths, rounded down, as in Accelerate.
  std::function<int64_t(int64_t)> reduce = nullptr;
};

// A micro-batch, from before its forward to after its step; see Accelerator::accumulate.
class [[nodiscard]] Accumulate {
 public:
  ~Accumulate();
  Accumulate(const Accumulate&) = delete;
  Accumulate& operator=(const Accumulate&) = delete;

  // Whether it completes its group: gradients are averaged, and the optimizer steps.
  bool sync_gradients() const noexcept { return is_boundary_; }

 private:
  friend class Accelerator;
  Accumulate(std::shared_ptr<training::StepControl> control,
             std::vector<std::shared_ptr<training::ModelState>> models,
             const std::optional<DataLoaderStatus>& loader);

  std::shared_ptr<training::StepControl> control_;
  bool is_boundary_ = true;
};

class Accelerator {
 public:
  // Collective. Blocks until every rank has joined; claims this rank's device.
  // Throws ConfigError if settings contradict each other, HardwareError if the device asked for is
  // absent, CommError if a rank does not come in time.
  explicit Accelerator(AcceleratorOptions options = {});
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  // Ranks of processes, and the device of this one.
  const World& world() const noexcept { return world_; }
  int process_index() const { return world_.rank(); }
  int num_processes() const { return world_.world_size(); }
  int local_process_index() const { return world_.local_rank(); }
  bool is_main_process() const { return world_.is_main(); }
  bool is_local_main_process() const { return world_.is_local_main(); }
  bool is_last_process() const { return world_.is_last(); }
  bool use_distributed() const { return num_processes() > 1; }
  at::Device device() const noexcept { return device_; }

  // Each prepare() takes one object over and returns its stand-in, for use in its place.
  //
  // A model (a holder, nn::Sequential included; a shared_ptr or a value of a module class; a
  // torch::jit::Module) moves to device(), gets rank 0's parameters and buffers, and has its
  // gradients averaged over the ranks while backward runs. Parameters keep their identity: an
  // optimizer may be made before or after. Collective.
  // Throws ConfigError if the ranks' models differ, naming the parameter, or if a parameter belongs
  // to a model that is prepared already (its gradient would be averaged twice).
  template <ModuleHolder M>
  Prepared<M> prepare(M model);
  template <std::derived_from<torch::nn::Module> Impl>
  auto prepare(std::shared_ptr<Impl> model) {
    return prepare(torch::nn::ModuleHolder<Impl>(std::move(model)));
  }
  template <std::derived_from<torch::nn::Module> Impl>
  auto prepare(Impl model) {
    return prepare(std::make_shared<Impl>(std::move(model)));
  }
  template <class S>
    requires requires(S& module) { module.get_method("forward"); }
  PreparedScript<S> prepare(S module);

  // An optimizer of any class of torch::optim, or derived from one. What it has gathered so far
  // follows its parameters to their device, now and when their model is prepared later.
  template <OptimizerType O>
  PreparedOptimizer<O> prepare(O optimizer) {
    PreparedOptimizer<O> prepared(std::move(optimizer), make_gate());
    optimizers_.push_back(prepared.place());
    return prepared;
  }

  // A learning-rate schedule, made over a prepared optimizer: it steps with its updates, one step
  // an update whatever the number of processes, unless AcceleratorOptions say otherwise.
  template <SchedulerType S>
  PreparedScheduler<S> prepare(S schedule) const {
    return {std::move(schedule), schedule_steps_, !step_scheduler_with_optimizer_};
  }

  // A loader: this rank's share of the batches, on device(). A torch::data loader becomes a
  // DataLoader; data.h says which can. Collective.
  template <std::derived_from<DataLoaderBase> L>
  L prepare(L loader) {
    loader.attach(world_, device_);
    watch(loader.status());
    return loader;
  }
  template <class Dataset, class Sampler>
  auto prepare(std::unique_ptr<torch::data::StatelessDataLoader<Dataset, Sampler>> loader) {
    return prepare(DataLoader(std::move(loader)));
  }

  // Several at once, in any order: `auto [model, optimizer, batches] = accelerator.prepare(...)`.
  template <class First, class Second, class... More>
  auto prepare(First first, Second second, More... more) {
    return std::tuple{prepare(std::move(first)), prepare(std::move(second)),
                      prepare(std::move(more))...};
  }

  // The model as it was handed to prepare(), sharing its parameters.
  template <class P>
  auto unwrap_model(const P& model) const {
    return model.unwrap();
  }

  // loss.backward(); gradients are averaged over the ranks when it returns. Collective, unless
  // within no_sync. A rank whose loss does not reach the model counts as zero if it has run
  // forward. The loss is divided by the number of micro-batches of its group (accumulate()), and
  // multiplied by the loss scale of fp16.
  void backward(const at::Tensor& loss);

  // The same for a sum of losses over `count` samples (tokens, say) of this rank. Gradients become
  // those of the mean over all samples of all micro-batches of the group and of all ranks, exactly,
  // however they are spread. Collective, one small message more at the end of a group.
  // Throws std::invalid_argument if the group has losses of the other kind, or, outside of
  // accumulate(), if there is not exactly one prepared model.
  void backward(const at::Tensor& loss_sum, int64_t count);

  // A micro-batch of the models, until the end of the scope:
  //
  //   for (auto& batch : batches) {
  //     const auto micro_batch = accelerator.accumulate(model);
  //     accelerator.backward(loss_of(model->forward(batch.data), batch.target));
  //     optimizer.step();        // does something once in gradient_accumulation.steps
  //     optimizer.zero_grad();
  //   }
  //
  // Gradients are averaged over the ranks with the last micro-batch of a group only. Optimizers of
  // the models' parameters, clipping and zero_grad() do nothing before it, in the scope and after
  // it. Each set of models counts for itself. The last batch of a pass over a prepared loader
  // completes its group, whose losses are divided by the number there were; where the program cuts
  // each batch further, its last accumulate() does, as the batch before tells how many there are.
  // Ranks must agree. Throws std::invalid_argument without a model.
  template <class... P>
  Accumulate accumulate(const P&... models) const {
    return Accumulate(control_, {state_of(models)...}, innermost_loader());
  }
  // Whether the last micro-batch to begin completes its group; true where there was none.
  bool sync_gradients() const;
  int64_t gradient_accumulation_steps() const;
  // From the next group on. Throws std::invalid_argument below 1.
  void set_gradient_accumulation_steps(int64_t steps);
  // Completes the group of `models` under way as it is: the next step() is an update. Collective.
  template <class... P>
  void flush(const P&... models) const {
    flush(std::vector{state_of(models)...});
  }

  // What prepared models compute in. Within such a scope, the rest of the program does, too, or,
  // with false, a part of a forward does not.
  MixedPrecision mixed_precision() const noexcept { return mixed_precision_; }
  Autocast autocast(bool enabled = true) const;
  // The float32 values behind the 16-bit parameters of a model, by name, each once: what to save
  // beside them. None without master_weights. A value that is written into a parameter by other
  // than a step is taken over at the next step.
  template <class P>
  std::vector<std::pair<std::string, at::Tensor>> master_weights(const P& model) const {
    return master_weights_of(*state_of(model));
  }
  // The loss scale of fp16; null without.
  const std::shared_ptr<LossScaler>& scaler() const;

  // Within the scope, backward passes of `model` add up gradients on this rank alone; the first
  // one after it averages the sum.
  template <class P>
  [[nodiscard]] NoSync no_sync(const P& model) const {
    return NoSync(sync_of(model));
  }

  // Runs `body`, a loop over this rank's batches that may be shorter or longer than the others':
  // a rank that is done answers the collectives of `models` until all are. At the end all ranks
  // have the parameters of one that ran longest. Within `body`, call nothing collective but
  // forward, backward and step. Collective. Blocks.
  // Throws CommError if JoinOptions say so, or what `body` throws.
  template <class... P>
  void join_uneven_inputs(const std::function<void()>& body, const P&... models) const {
    join(body, {}, {state_of(models)...});
  }
  template <class... P>
  void join_uneven_inputs(const std::function<void()>& body, const JoinOptions& options,
                          const P&... models) const {
    join(body, options, {state_of(models)...});
  }

  // Scales the gradients of `parameters` so that their norm, over all of them together, is at most
  // max_norm. Returns the norm before, a 0-dim tensor. Every rank has the same averaged
  // gradients, so there is nothing to communicate. A loss scale is taken off before. Within
  // accumulate(), nothing, and 0, before the last micro-batch of a group.
  // Throws std::invalid_argument if max_norm is negative or norm_type is not positive, and, with
  // error_if_nonfinite, std::runtime_error that names the first parameter whose gradient is.
  at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                             double norm_type = 2, bool error_if_nonfinite = false) const;

  // Clamps every element of the gradients to [-clip_value, clip_value].
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) const;

  // The first of the batch sizes of `search` for which attempt(batch_size), a forward and backward
  // of so many samples, does not run out of memory on any rank. In it, prepared models exchange
  // nothing, and nothing else collective may be called; drop the gradients afterwards. Another
  // exception is passed on, and reaches the other ranks as a CommError.
  // Throws std::runtime_error if not even 1 fits. Collective. Blocks.
  int64_t find_executable_batch_size(const std::function<void(int64_t)>& attempt,
                                     const BatchSizeSearch& search = {}) const;

  // Every rank's `value`, concatenated along dim 0 in the order of ranks; numbers of rows may
  // differ. 0-dim tensors become one of shape (num_processes). Collective. Blocks.
  template <class T>
  T gather(T value) const {
    return drivetrain::gather(world_, std::move(value));
  }

  // As gather, for outputs of the current batch of a prepared loader: rows that only pad the last
  // batches are left out, so that over an epoch each sample counts once, in the loader's order.
  // Throws std::invalid_argument outside a pass, and for tensors with fewer rows than samples; for
  // a mean over samples, there is mean_over_samples. Collective. Blocks.
  template <class T>
  T gather_for_metrics(T value) const {
    const int64_t real_size = rows_of_batch();
    return gather(map_tensors(std::move(value), [real_size](const at::Tensor& rows) {
      return keep_real_rows(rows, real_size);
    }));
  }

  // The mean over all samples of all ranks of a per-rank mean over `num_samples` samples, for
  // instance a loss over real_size() rows. 0 where there is no sample. Collective. Blocks.
  at::Tensor mean_over_samples(const at::Tensor& mean, int64_t num_samples) const;

  // Elementwise over the ranks, times `scale`. Collective. Blocks.
  template <class T>
  T reduce(T value, ReduceOp op = ReduceOp::sum, double scale = 1) const {
    value = all_reduce(world_, std::move(value), op);
    return scale == 1 ? value : map_tensors(std::move(value), [scale](const at::Tensor& tensor) {
      return tensor * scale;
    });
  }

  // Collective. Blocks. See comm.h.
  template <class T>
  T pad_across_processes(T value, int64_t dim = 0, double pad_index = 0,
                         bool pad_first = false) const {
    return drivetrain::pad_across_processes(world_, std::move(value), dim, pad_index, pad_first);
  }

  // This rank's contiguous share: the first (length mod num_processes) ranks get one more. With
  // apply_padding, short ranks repeat their last element (the last of all, if they have none), so
  // that every rank has as many. For a tensor, along dim 0; for a map, of each of its values, which
  // must be of one length.
  template <class T>
  std::vector<T> split_between_processes(const std::vector<T>& inputs,
                                         bool apply_padding = false) const;
  at::Tensor split_between_processes(const at::Tensor& inputs, bool apply_padding = false) const;
  template <class Key, class T>
  std::map<Key, T> split_between_processes(const std::map<Key, T>& inputs,
                                           bool apply_padding = false) const;

  // Collective. Blocks until every rank has come here.
  void wait_for_everyone() const { barrier(world_); }

  // Runs fn on the main rank first, then on the others, and returns its result. Collective. Blocks.
  template <class Fn>
  auto main_process_first(Fn&& fn) const {
    return first_here(is_main_process(), std::forward<Fn>(fn));
  }
  // As above, with one main rank on each machine.
  template <class Fn>
  auto local_main_process_first(Fn&& fn) const {
    return first_here(is_local_main_process(), std::forward<Fn>(fn));
  }

  // Runs fn on that rank alone. Returns its result there and nothing elsewhere, as an optional, or
  // whether it ran if fn returns void.
  template <class Fn>
  auto on_main_process(Fn&& fn) const {
    return run_if(is_main_process(), std::forward<Fn>(fn));
  }
  template <class Fn>
  auto on_local_main_process(Fn&& fn) const {
    return run_if(is_local_main_process(), std::forward<Fn>(fn));
  }
  template <class Fn>
  auto on_last_process(Fn&& fn) const {
    return run_if(is_last_process(), std::forward<Fn>(fn));
  }
  template <class Fn>
  auto on_process(int process_index, Fn&& fn) const {
    return run_if(process_index == this->process_index(), std::forward<Fn>(fn));
  }
  template <class Fn>
  auto on_local_process(int local_process_index, Fn&& fn) const {
    return run_if(local_process_index == this->local_process_index(), std::forward<Fn>(fn));
  }

  // Writes one line to standard output, once on each machine.
  template <class... Parts>
  void print(const Parts&... parts) const {
    if (is_local_main_process()) (std::cout << ... << parts) << std::endl;
  }

  // set_trigger() on any rank makes the next check_trigger() true on every rank; that resets it.
  void set_trigger() noexcept { is_triggered_ = true; }
  // Collective. Blocks.
  bool check_trigger();

  // Forgets the objects and returns the device's cached memory.
  template <class... Objects>
  void free_memory(Objects&... objects) {
    (release(objects), ...);
    empty_cache();
  }

 private:
  friend class LocalSgd;
  using Sync = std::shared_ptr<parallel::GradientSync>;
  using Named = std::vector<std::pair<std::string, at::Tensor>>;

  template <class P>
  static std::shared_ptr<training::ModelState> state_of(const P& model) {
    if constexpr (requires { model->scope(); })
      return model->scope().model();
    else
      return model.scope().model();
  }
  template <class P>
  static Sync sync_of(const P& model) {
    if constexpr (requires { model->scope(); })
      return model->scope().sync();
    else
      return model.scope().sync();
  }

  using States = std::vector<std::shared_ptr<training::ModelState>>;
  void join(const std::function<void()>& body, const JoinOptions& options,
            const States& models) const;
  // What prepare() does for every kind of model.
  detail::ForwardScope adopt(torch::nn::Module& module);
  detail::ForwardScope adopt(const Named& parameters, const Named& buffers);
  static Named master_weights_of(const training::ModelState& model);
  void watch(const std::shared_ptr<const DataLoaderStatus>& loader);
  // The pass under way that began last.
  std::optional<DataLoaderStatus> innermost_loader() const;
  // How many rows of the batch in hand are no padding; of the innermost pass under way.
  int64_t rows_of_batch() const;
  std::unique_ptr<detail::StepGate> make_gate() const;
  static void check_loss(const at::Tensor& loss);
  void flush(const States& models) const;
  // Takes the loss scale off the gradients that clipping is to see. False where they are not
  // complete yet, so that there is nothing to clip.
  bool prepare_to_clip(const std::vector<at::Tensor>& parameters) const;
  static at::Tensor keep_real_rows(const at::Tensor& rows, int64_t real_size);
  // [begin, end) of this rank, and how many elements to pad with.
  struct Share {
    int64_t begin, end, padding;
  };
  Share share_of(int64_t length, bool apply_padding) const;
  static void check_equal_lengths(int64_t first, int64_t other);
  void empty_cache() const;
  bool fits(int64_t batch_size, const std::function<void(int64_t)>& attempt) const;

  template <class Fn>
  auto first_here(bool is_first, Fn&& fn) const;
  template <class Fn>
  static auto run_if(bool runs_here, Fn&& fn);
  template <class Object>
  static void release(Object& object);

  World world_;
  std::shared_ptr<BaseAccelerator> hardware_;
  at::Device device_;
  DistributedDataParallelOptions ddp_;
  MixedPrecision mixed_precision_;
  MixedPrecisionPolicy policy_;
  std::optional<detail::ForwardCast> cast_;
  std::shared_ptr<training::StepControl> control_;
  int schedule_steps_;
  bool step_scheduler_with_optimizer_;
  void refuse_second_preparation(const Named& parameters) const;
  void move_optimizers();
  // Where the optimizers prepared are, for as long as they live.
  std::vector<std::weak_ptr<torch::optim::Optimizer*>> optimizers_;
  std::vector<std::weak_ptr<const DataLoaderStatus>> loaders_;
  bool is_triggered_ = false;
};

}  // namespace drivetrain

#include <drivetrain/detail/accelerator_templates.h>
