// SPDX-License-Identifier: Apache-2.0
// World: the processes that train together, and the collectives between them.
//
// Every function marked "Collective." must be called by every rank of the world, in the same order,
// with the same arguments but for the tensors' contents. It throws CommError within 5 s if a rank
// dies or throws, and at its timeout if a rank does not come; the error names the ranks and the
// collective that each is in. After a CommError the world cannot be used any more; destroy it.
// In a world of one, collectives return their argument.
//
// Values are nested (nested.h; names are qualified below because ATen has a flatten of its own).
// Results are new, contiguous tensors without gradient, on the device of the argument. max and min
// give NaN where any rank has NaN. Tensors on an accelerator whose communication library is
// registered (below) travel by it, and others through page-locked host memory: the asynchronous
// calls copy beside the device's own work, and start once it has computed the tensor.
#pragma once

#include <drivetrain/config.h>
#include <drivetrain/error.h>
#include <drivetrain/nested.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace drivetrain {

namespace comm {
class State;
class Call;
}  // namespace comm

// mean divides by the number of ranks and is refused for integers.
enum class ReduceOp { sum, mean, max, min };

struct CollectiveOptions {
  // Default: the Config::timeout that the world was made with.
  std::optional<std::chrono::milliseconds> timeout;
};

// A collective under way. Default-constructed: done.
class Pending {
 public:
  Pending() = default;
  explicit Pending(std::shared_ptr<comm::Call> call) : call_(std::move(call)) {}

  // Blocks. The tensors hold the result once this has returned. Throws CommError.
  void wait();

  // True if wait() would return or throw without blocking.
  bool done() const;

 private:
  std::shared_ptr<comm::Call> call_;
};

// A handle: copies share one world, which ends with the last of them. Not to be used by several
// threads at once.
class World {
 public:
  // Collective. Blocks. The world that the launcher's variables describe (ProcessFacts); may be
  // called again, for another world of the same processes.
  // Throws ConfigError if the variables are wrong, CommError if not all ranks come in time.
  static World from_environment(const Config& config = Config::from_environment());

  // A world of one; no network.
  static World single();

  explicit World(std::shared_ptr<comm::State> state) : state_(std::move(state)) {}

  int rank() const;
  int world_size() const;
  int local_rank() const;
  int local_world_size() const;
  int node_rank() const;
  int num_nodes() const;
  bool is_main() const { return rank() == 0; }
  bool is_local_main() const { return local_rank() == 0; }
  bool is_last() const { return rank() == world_size() - 1; }

  // Collective. In place, on a contiguous tensor that stays untouched until wait() has returned.
  // float16 and bfloat16 are summed in their own type. Throws CommError; std::invalid_argument if
  // the tensor is not contiguous or of a type that cannot be reduced.
  Pending all_reduce_async(at::Tensor tensor, ReduceOp op, CollectiveOptions options = {}) const;

  // Collective. The root's contents into `tensor`, in place; contiguous.
  Pending broadcast_async(at::Tensor tensor, int root, CollectiveOptions options = {}) const;

  // Collective. Every rank's `in` into `out`, contiguous, of world_size times the elements.
  Pending all_gather_async(at::Tensor out, at::Tensor in, CollectiveOptions options = {}) const;

  // Collective. Blocks. The root's contents into the tensors, in place, in one message; any layout.
  void broadcast_(const std::vector<at::Tensor>& tensors, int root,
                  CollectiveOptions options = {}) const;

  // Tells the other ranks that this one has failed: their collectives throw "rank r failed:
  // reason". Done by the library when a World ends while an exception unwinds, and on
  // std::terminate.
  void fail(std::string_view reason) const;

  comm::State& state() const { return *state_; }

 private:
  std::shared_ptr<comm::State> state_;
};

namespace detail {

using Tensors = std::vector<at::Tensor>;
using Sizes = std::vector<int64_t>;

Tensors all_reduce(const World&, const Tensors&, ReduceOp, const CollectiveOptions&);
Tensors reduce(const World&, const Tensors&, int root, ReduceOp, const CollectiveOptions&);
Tensors reduce_scatter(const World&, const Tensors&, ReduceOp, const CollectiveOptions&);
Tensors all_gather(const World&, const Tensors&, const CollectiveOptions&);
Tensors gather(const World&, const Tensors&, Sizes* rows, const CollectiveOptions&);
Tensors broadcast(const World&, const Tensors&, int root, const CollectiveOptions&);
Tensors scatter(const World&, const std::vector<Tensors>& parts, size_t num_tensors, int root,
                const CollectiveOptions&);
Tensors pad_across_processes(const World&, const Tensors&, int64_t dim, double pad_index,
                             bool pad_first, const CollectiveOptions&);

}  // namespace detail

// Makes one rank's end of a c10d backend. **Collective.**; the store is the backend's own.
using CommBackendFactory = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
    std::chrono::milliseconds timeout)>;

// Tensors on an accelerator whose communication_backend() has this name ("nccl", "hccl", "xccl")
// travel by what `make` makes, in Worlds made from now on. A vendor's plugin, or whoever links one,
// calls it before. Throws ConfigError if the name is taken.
void register_comm_backend(const std::string& name, CommBackendFactory make);

// "gloo", which needs no registration and serves host memory, and the others by name.
std::vector<std::string> registered_comm_backends();

// Collective. Blocks.
void barrier(const World& world, CollectiveOptions options = {});

// Collective. Blocks. Elementwise over the ranks; shapes are equal. float16 and bfloat16 are
// summed in float32 and rounded once. Throws std::invalid_argument for a mean of integers.
template <class T>
T all_reduce(const World& world, T value, ReduceOp op = ReduceOp::sum,
             CollectiveOptions options = {}) {
  const auto tensors = drivetrain::flatten(value);
  return drivetrain::unflatten(std::move(value), detail::all_reduce(world, tensors, op, options));
}

// As all_reduce, to the root only; the other ranks get their own value back.
template <class T>
T reduce(const World& world, T value, int root = 0, ReduceOp op = ReduceOp::sum,
         CollectiveOptions options = {}) {
  const auto tensors = drivetrain::flatten(value);
  return drivetrain::unflatten(std::move(value), detail::reduce(world, tensors, root, op, options));
}

// Collective. Blocks. Reduces, then leaves rank r the r-th of world_size equal parts along dim 0.
// Throws std::invalid_argument if dim 0 is not a multiple of the world size.
template <class T>
T reduce_scatter(const World& world, T value, ReduceOp op = ReduceOp::sum,
                 CollectiveOptions options = {}) {
  const auto tensors = drivetrain::flatten(value);
  return drivetrain::unflatten(std::move(value),
                               detail::reduce_scatter(world, tensors, op, options));
}

// Collective. Blocks. Concatenates along dim 0 in the order of ranks; shapes are equal. A 0-dim
// tensor becomes one of shape (world_size).
template <class T>
T all_gather(const World& world, T value, CollectiveOptions options = {}) {
  const auto tensors = drivetrain::flatten(value);
  return drivetrain::unflatten(std::move(value), detail::all_gather(world, tensors, options));
}

// As all_gather, but ranks may have different numbers of rows along dim 0: exactly those rows, no
// padding, on every rank. `rows`, if given, gets the first tensor's number of rows on each rank.
template <class T>
T gather(const World& world, T value, std::vector<int64_t>* rows = nullptr,
         CollectiveOptions options = {}) {
  const auto tensors = drivetrain::flatten(value);
  return drivetrain::unflatten(std::move(value), detail::gather(world, tensors, rows, options));
}

// Collective. Blocks. The root's value on every rank; shapes and types are equal on all ranks.
template <class T>
T broadcast(const World& world, T value, int root = 0, CollectiveOptions options = {}) {
  const auto tensors = drivetrain::flatten(value);
  return drivetrain::unflatten(std::move(value), detail::broadcast(world, tensors, root, options));
}

// Collective. Blocks. Rank r gets parts[r] of the root, whatever its shapes and types; only the
// root's `parts` is read. The results are on the CPU. `like` has the structure of a part where T
// alone does not say it (the length of a vector, the keys of a map) and gives all that is not a
// tensor.
template <class T>
T scatter(const World& world, const std::vector<T>& parts, int root = 0, T like = {},
          CollectiveOptions options = {}) {
  std::vector<detail::Tensors> flat;
  for (const T& part : parts) flat.push_back(drivetrain::flatten(part));
  const size_t num_tensors = drivetrain::flatten(like).size();
  return drivetrain::unflatten(std::move(like),
                               detail::scatter(world, flat, num_tensors, root, options));
}

// Collective. Blocks. Pads every tensor along `dim` with `pad_index`, behind or before its
// contents, to the longest of any rank. Tensors of too few dimensions are returned as they are.
template <class T>
T pad_across_processes(const World& world, T value, int64_t dim = 0, double pad_index = 0,
                       bool pad_first = false, CollectiveOptions options = {}) {
  const auto tensors = drivetrain::flatten(value);
  return drivetrain::unflatten(
      std::move(value),
      detail::pad_across_processes(world, tensors, dim, pad_index, pad_first, options));
}

// Collective. Blocks. The root's bytes, of any length.
std::string broadcast_object(const World& world, std::string bytes, int root = 0,
                             CollectiveOptions options = {});
std::vector<std::string> broadcast_object(const World& world, std::vector<std::string> texts,
                                          int root = 0, CollectiveOptions options = {});

// Likewise for numbers and structs without pointers; both ends must be the same program.
template <class T>
  requires std::is_trivially_copyable_v<T>
T broadcast_object(const World& world, T value, int root = 0, CollectiveOptions options = {}) {
  const std::string bytes = broadcast_object(
      world, std::string(reinterpret_cast<const char*>(&value), sizeof value), root, options);
  std::copy_n(bytes.data(), sizeof value, reinterpret_cast<char*>(&value));
  return value;
}

// Collective. Blocks. Every rank's bytes, in the order of ranks, on every rank.
std::vector<std::string> gather_object(const World& world, const std::string& bytes,
                                       CollectiveOptions options = {});

}  // namespace drivetrain
