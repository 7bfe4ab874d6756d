// SPDX-License-Identifier: Apache-2.0
// What a DataLoader reads from:
//
//   map-style   get(size_t) -> Sample, or get_batch(ArrayRef<size_t>) -> std::vector<Sample> or a
//               batch that needs no collating; and size() -> size_t or std::optional<size_t>:
//               the datasets of torch::data, mapped ones included, and your own
//   a sequence  std::vector<Sample> and whatever else has operator[] and size()
//   a stream    next() -> std::optional<Sample>, a callable that returns std::optional<Sample>, or
//               torch::data's get_batch(size_t); in order, of any length (size() if it knows)
//
// or a std::shared_ptr to one of them. If it exists, set_epoch(uint64_t) is called before each
// pass, and reset() of a stream after it; a stream that has neither goes on where it stopped.
//
// Threads: a dataset whose reading function is const is shared by the workers, and so is one given
// by shared_ptr (it must then allow that); any other is copied for each worker at each pass, as
// torch::data does. A stream is read by one worker at a time.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <drivetrain/collate.h>
#include <drivetrain/error.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::data {
template <class Dataset, class Sampler>
class StatelessDataLoader;
template <class Dataset>
class StatefulDataLoader;
}  // namespace torch::data

namespace drivetrain {

template <class Batch>
class DataLoader;

// A sample could not be read, or not in time. Holds the dataset's own exception as nested
// (std::rethrow_if_nested).
class SampleError : public Error {
 public:
  SampleError(int64_t index, std::string_view message) : Error("data", message), index_(index) {}

  // In the dataset; for a stream, its position in the epoch. -1 where it is not known.
  int64_t index() const noexcept { return index_; }

 private:
  int64_t index_;
};

// The random generator of the sample being read, for augmentation. Its seed is a pure function of
// (loader's seed, epoch, sample index), so that 0, 1 and 8 workers and any number of ranks draw
// the same. LibTorch's own random operations use it by themselves in a dataset's get, get_batch
// (there it is seeded by the batch's first index) and next and in a collate function:
// torch::rand({2}) there is reproducible as it stands, and leaves the global generator alone.
// std::rand and generators of your own are yours to seed; random operations on other devices than
// the CPU keep their own. Throws Error outside of those functions.
at::Generator sample_generator();

namespace data {

// While it lives, the calling thread reads the sample `index`.
class SampleScope {
 public:
  enum class Purpose { get, collate };
  explicit SampleScope(int64_t index, Purpose purpose = Purpose::get);
  ~SampleScope();
  SampleScope(const SampleScope&) = delete;
  SampleScope& operator=(const SampleScope&) = delete;

  at::Generator generator();

 private:
  int64_t index_;
  Purpose purpose_;
  SampleScope* outer_;
  at::Generator generator_;
};

// In a catch block: throws the current exception again, inside a SampleError.
[[noreturn]] void throw_sample_error(int64_t index);

// Calls read() as the reading of sample `index`.
template <class Read>
decltype(auto) read_sample(int64_t index, Read&& read) {
  const SampleScope scope(index);
  try {
    return read();
  } catch (...) {
    throw_sample_error(index);
  }
}

template <class D>
concept Gets = requires(D& dataset, size_t i) { dataset.get(i); };
template <class D>
concept GetsBatches = requires(D& dataset, c10::ArrayRef<size_t> indices) {
  dataset.get_batch(indices);
  requires std::is_base_of_v<c10::ArrayRef<size_t>, std::remove_cvref_t<decltype(indices)>>;
} && !requires { requires std::is_same_v<typename D::BatchRequestType, size_t>; };
template <class D>
concept Indexed = !Gets<D> && !GetsBatches<D> && requires(const D& dataset, size_t i) {
  dataset[i];
  { dataset.size() } -> std::convertible_to<size_t>;
};

template <class T>
constexpr bool is_vector = false;
template <class T>
constexpr bool is_vector<std::vector<T>> = true;
template <class T>
concept OptionalValue = detail::is_optional<std::remove_cvref_t<T>>;

template <class D>
concept NextStream = requires(D& stream) {
  { stream.next() } -> OptionalValue;
};
template <class D>
concept CallableStream = !NextStream<D> && requires(D& stream) {
  { stream() } -> OptionalValue;
};
template <class D>
concept BatchStream = !NextStream<D> && requires(D& stream, size_t n) {
  requires std::is_same_v<typename D::BatchRequestType, size_t>;
  stream.get_batch(n);
};
template <class D>
concept Stream = NextStream<D> || CallableStream<D> || BatchStream<D>;
template <class D>
concept MapStyle = !Stream<D> && (Gets<D> || GetsBatches<D> || Indexed<D>);

template <class D>
auto get_batch_type() {
  return std::type_identity<std::remove_cvref_t<decltype(std::declval<D&>().get_batch(
      std::declval<c10::ArrayRef<size_t>>()))>>();
}

// get_batch returns what the loop gets: there is nothing to collate.
template <class D>
constexpr bool returns_batches() {
  if constexpr (GetsBatches<D>)
    return !is_vector<typename decltype(get_batch_type<D>())::type>;
  else
    return false;
}

// Whether the dataset's reading function is const.
template <class D>
constexpr bool reads_const() {
  if constexpr (Indexed<D>)
    return true;
  else if constexpr (returns_batches<D>())
    return GetsBatches<const D>;
  else if constexpr (Gets<D>)
    return Gets<const D>;
  else
    return GetsBatches<const D>;
}

template <class T>
T unwrap_optional(const std::optional<T>&);
template <class T>
T unwrap_optional(const T&);

template <class D>
auto sample_type() {
  if constexpr (NextStream<D>) {
    return std::type_identity<std::remove_cvref_t<decltype(*std::declval<D&>().next())>>();
  } else if constexpr (CallableStream<D>) {
    return std::type_identity<std::remove_cvref_t<decltype(*std::declval<D&>()())>>();
  } else if constexpr (BatchStream<D>) {
    using Batch = decltype(unwrap_optional(std::declval<D&>().get_batch(size_t{1})));
    static_assert(is_vector<Batch>,
                  "a stream that returns batches must return std::vector<Sample>, so that ranks "
                  "can share the samples");
    return std::type_identity<typename Batch::value_type>();
  } else if constexpr (returns_batches<D>()) {
    return get_batch_type<D>();
  } else if constexpr (Gets<D>) {
    return std::type_identity<std::remove_cvref_t<decltype(std::declval<D&>().get(size_t{0}))>>();
  } else if constexpr (GetsBatches<D>) {
    return std::type_identity<typename decltype(get_batch_type<D>())::type::value_type>();
  } else {
    static_assert(Indexed<D>,
                  "a DataLoader reads types with get(size_t) or get_batch(ArrayRef<size_t>) and "
                  "size(), with operator[] and size(), or with next() (dataset.h)");
    return std::type_identity<std::remove_cvref_t<decltype(std::declval<const D&>()[size_t{0}])>>();
  }
}

template <class D>
using SampleOf = typename decltype(sample_type<D>())::type;

struct DefaultCollate {};

// The batch that `Collate` makes of samples S.
template <class S, class Collate>
auto batch_type() {
  if constexpr (std::is_same_v<Collate, DefaultCollate> || std::is_same_v<Collate, PadCollate>) {
    return std::type_identity<decltype(collate(std::declval<std::vector<const S*>>()))>();
  } else if constexpr (std::is_same_v<Collate, ListCollate>) {
    return std::type_identity<std::vector<S>>();
  } else {
    static_assert(std::is_invocable_v<Collate&, std::vector<S>>,
                  "the collate function must take std::vector<Sample>");
    return std::type_identity<
        std::remove_cvref_t<std::invoke_result_t<Collate&, std::vector<S>>>>();
  }
}

template <class D, class Collate>
auto batch_of() {
  if constexpr (MapStyle<D> && returns_batches<D>() && std::is_same_v<Collate, DefaultCollate>)
    return get_batch_type<D>();
  else
    return batch_type<SampleOf<D>, Collate>();
}

template <class D, class Collate>
struct BatchFinder {
  using Type = typename decltype(batch_of<D, Collate>())::type;
};
template <class D, class Collate>
struct BatchFinder<std::shared_ptr<D>, Collate> : BatchFinder<D, Collate> {};
template <class D, class Sampler, class Collate>
struct BatchFinder<std::unique_ptr<torch::data::StatelessDataLoader<D, Sampler>>, Collate>
    : BatchFinder<D, Collate> {};
template <class D, class Collate>
struct BatchFinder<std::unique_ptr<torch::data::StatefulDataLoader<D>>, Collate>
    : BatchFinder<D, Collate> {};
template <class Batch, class Collate>
struct BatchFinder<DataLoader<Batch>, Collate> {
  using Type = Batch;
};

// What a loop over the dataset gets.
template <class D, class Collate = DefaultCollate>
using BatchOf = typename BatchFinder<D, Collate>::Type;

}  // namespace data
}  // namespace drivetrain
