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
#include <drivetrain/optimizer.h>
#include <drivetrain/parallel.h>
#include <drivetrain/prepared.h>

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

struct AcceleratorOptions {
  Config config = Config::from_environment();
  // The world to train in, instead of the one that the launcher describes.
  std::optional<World> world = std::nullopt;
  // How gradients are averaged over the ranks.
  DistributedDataParallelOptions ddp = {};
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
    PreparedOptimizer<O> prepared(std::move(optimizer));
    optimizers_.push_back(prepared.place());
    return prepared;
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
  // forward.
  void backward(const at::Tensor& loss);

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
    join(body, {}, {sync_of(models)...});
  }
  template <class... P>
  void join_uneven_inputs(const std::function<void()>& body, const JoinOptions& options,
                          const P&... models) const {
    join(body, options, {sync_of(models)...});
  }

  // Scales the gradients of `parameters` so that their norm, over all of them together, is at most
  // max_norm. Returns the norm before, a 0-dim tensor. Every rank has the same averaged
  // gradients, so there is nothing to communicate.
  // Throws std::invalid_argument if max_norm is negative or norm_type is not positive, and, with
  // error_if_nonfinite, std::runtime_error that names the first parameter whose gradient is.
  at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                             double norm_type = 2, bool error_if_nonfinite = false) const;

  // Clamps every element of the gradients to [-clip_value, clip_value].
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) const;

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
  using Sync = std::shared_ptr<parallel::GradientSync>;
  using Named = std::vector<std::pair<std::string, at::Tensor>>;

  template <class P>
  static Sync sync_of(const P& model) {
    if constexpr (requires { model->scope(); })
      return model->scope().sync();
    else
      return model.scope().sync();
  }

  void join(const std::function<void()>& body, const JoinOptions& options,
            const std::vector<Sync>& models) const;
  // What prepare() does for every kind of model.
  detail::ForwardScope adopt(torch::nn::Module& module);
  detail::ForwardScope adopt(const Named& parameters, const Named& buffers);
  void watch(const std::shared_ptr<const DataLoaderStatus>& loader);
  // How many rows of the batch in hand are no padding; of the innermost pass under way.
  int64_t rows_of_batch() const;
  static at::Tensor keep_real_rows(const at::Tensor& rows, int64_t real_size);
  // [begin, end) of this rank, and how many elements to pad with.
  struct Share {
    int64_t begin, end, padding;
  };
  Share share_of(int64_t length, bool apply_padding) const;
  static void check_equal_lengths(int64_t first, int64_t other);
  void empty_cache() const;

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
  // The models prepared, for as long as they live.
  struct Adopted {
    std::weak_ptr<parallel::GradientSync> sync;
    std::vector<const void*> parameters;
  };
  void refuse_second_preparation(const Named& parameters) const;
  void move_optimizers();
  std::vector<Adopted> models_;
  // Where the optimizers prepared are, for as long as they live.
  std::vector<std::weak_ptr<torch::optim::Optimizer*>> optimizers_;
  std::vector<std::weak_ptr<const DataLoaderStatus>> loaders_;
  bool is_triggered_ = false;
};

// --- implementation of the templates

template <ModuleHolder M>
Prepared<M> Accelerator::prepare(M model) {
  detail::ForwardScope scope = adopt(*model);
  return Prepared<M>(std::move(model), std::move(scope));
}

template <class S>
  requires requires(S& module) { module.get_method("forward"); }
PreparedScript<S> Accelerator::prepare(S module) {
  Named parameters, buffers;
  for (const auto& entry : module.named_parameters())
    parameters.emplace_back(entry.name, entry.value);
  for (const auto& entry : module.named_buffers()) buffers.emplace_back(entry.name, entry.value);
  return PreparedScript<S>(module, adopt(parameters, buffers));
}

template <class T>
std::vector<T> Accelerator::split_between_processes(const std::vector<T>& inputs,
                                                    bool apply_padding) const {
  const Share share = share_of(static_cast<int64_t>(inputs.size()), apply_padding);
  std::vector<T> mine(inputs.begin() + share.begin, inputs.begin() + share.end);
  // Never inserts where there is nothing to repeat: padding is 0 then.
  if (share.padding > 0) mine.insert(mine.end(), share.padding, inputs[share.end - 1]);
  return mine;
}

template <class Key, class T>
std::map<Key, T> Accelerator::split_between_processes(const std::map<Key, T>& inputs,
                                                      bool apply_padding) const {
  const auto length = [](const T& value) {
    if constexpr (std::derived_from<T, at::TensorBase>)
      return static_cast<int64_t>(value.size(0));
    else
      return static_cast<int64_t>(value.size());
  };
  std::map<Key, T> mine;
  for (const auto& [key, value] : inputs) {
    check_equal_lengths(length(inputs.begin()->second), length(value));
    mine.emplace(key, split_between_processes(value, apply_padding));
  }
  return mine;
}

template <class Fn>
auto Accelerator::first_here(bool is_first, Fn&& fn) const {
  // An exception of the first rank reaches the others as a CommError at their barrier.
  if (!is_first) wait_for_everyone();
  if constexpr (std::is_void_v<std::invoke_result_t<Fn>>) {
    fn();
    if (is_first) wait_for_everyone();
  } else {
    auto result = fn();
    if (is_first) wait_for_everyone();
    return result;
  }
}

template <class Fn>
auto Accelerator::run_if(bool runs_here, Fn&& fn) {
  using Result = std::invoke_result_t<Fn>;
  if constexpr (std::is_void_v<Result>) {
    if (runs_here) fn();
    return runs_here;
  } else {
    return runs_here ? std::optional<Result>(fn()) : std::nullopt;
  }
}

template <class Object>
void Accelerator::release(Object& object) {
  if constexpr (requires { object.reset(); })
    object.reset();
  else
    object = nullptr;
}

}  // namespace drivetrain
