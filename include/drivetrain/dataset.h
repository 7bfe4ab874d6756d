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
#include <drivetrain/wire.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
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

// Samples of a stream, in a vector of their type.
struct Chunk {
  std::shared_ptr<void> samples;
  int64_t count = 0;
};

using ErasedBatch = std::shared_ptr<void>;
using TensorFunction = std::function<at::Tensor(const at::Tensor&)>;

// A dataset together with its collate function, their types erased.
class Source {
 public:
  virtual ~Source() = default;
  virtual bool is_stream() const = 0;
  virtual std::optional<int64_t> length() const = 0;
  virtual void begin_epoch(uint64_t epoch) = 0;

  // The source that another thread may use beside this one; null if there can be none.
  virtual std::shared_ptr<Source> for_thread() = 0;

  // Map-style: the batch of these samples.
  virtual ErasedBatch read(std::span<const int64_t> indices) = 0;

  // Stream: up to `count` samples, fewer only at its end; the first is the epoch's `first`-th.
  virtual Chunk pull(int64_t first, int64_t count) = 0;
  virtual Chunk join(const Chunk& a, const Chunk& b) const = 0;
  // Stream: a batch. Pick i >= 0 is the round's sample i, pick ~i the epoch's sample i in `start`.
  virtual ErasedBatch pick(const Chunk& start, const Chunk& round, std::span<const int64_t> picks,
                           int64_t first) = 0;

  virtual void map_tensors(void* batch, const TensorFunction& fn) const = 0;

  // Whether pack and unpack serve the batch's type (wire.h).
  virtual bool can_send() const = 0;
  // All of the batch that is no tensor as bytes; its tensors are added to `tensors`.
  virtual std::string pack(void* batch, std::vector<at::Tensor>& tensors) const = 0;
  virtual ErasedBatch unpack(std::string bytes, std::vector<at::Tensor> tensors) const = 0;
};

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

template <class D>
std::optional<int64_t> length_of(const D& dataset) {
  if constexpr (requires { dataset.size().has_value(); }) {
    const auto size = dataset.size();
    return size ? std::optional<int64_t>(static_cast<int64_t>(*size)) : std::nullopt;
  } else if constexpr (requires { static_cast<int64_t>(dataset.size()); }) {
    return static_cast<int64_t>(dataset.size());
  } else {
    return std::nullopt;
  }
}

template <class D>
void tell_epoch(D& dataset, uint64_t epoch) {
  if constexpr (requires { dataset.set_epoch(epoch); }) dataset.set_epoch(epoch);
  if constexpr (requires { dataset.reset(); }) dataset.reset();
}

// What the two kinds of sources share: the batch's type and how it comes about.
template <class S, class B, class Collate>
class CollatingSource : public Source {
 public:
  explicit CollatingSource(Collate collate) : collate_(std::move(collate)) {}

  void map_tensors(void* batch, const TensorFunction& fn) const override {
    B& value = *static_cast<B*>(batch);
    value = drivetrain::map_tensors(std::move(value), fn);
  }

  bool can_send() const override { return detail::is_sendable<B>(); }

  std::string pack([[maybe_unused]] void* batch,
                   [[maybe_unused]] std::vector<at::Tensor>& tensors) const override {
    detail::Wire wire;
    if constexpr (detail::is_sendable<B>()) detail::transfer(wire, *static_cast<B*>(batch));
    tensors.insert(tensors.end(), wire.tensors.begin(), wire.tensors.end());
    return std::move(wire.bytes);
  }

  ErasedBatch unpack(std::string bytes, std::vector<at::Tensor> tensors) const override {
    [[maybe_unused]] detail::Wire wire(std::move(bytes), std::move(tensors));
    if constexpr (detail::is_sendable<B>()) {
      auto batch = std::make_shared<B>();
      detail::transfer(wire, *batch);
      return batch;
    } else {
      return nullptr;
    }
  }

 protected:
  ErasedBatch batch_of_pointers(const std::vector<const S*>& samples, int64_t first) {
    const SampleScope scope(first, SampleScope::Purpose::collate);
    if constexpr (std::is_same_v<Collate, DefaultCollate>) {
      return std::make_shared<B>(drivetrain::collate(samples));
    } else if constexpr (std::is_same_v<Collate, PadCollate>) {
      return std::make_shared<B>(drivetrain::collate(samples, collate_.value));
    } else {
      std::vector<S> copies;
      copies.reserve(samples.size());
      for (const S* sample : samples) copies.push_back(*sample);
      return batch_of_list(std::move(copies));
    }
  }

  ErasedBatch batch_of_samples(std::vector<S>&& samples, int64_t first) {
    if constexpr (std::is_same_v<Collate, DefaultCollate> || std::is_same_v<Collate, PadCollate>) {
      std::vector<const S*> pointers;
      pointers.reserve(samples.size());
      for (const S& sample : samples) pointers.push_back(&sample);
      return batch_of_pointers(pointers, first);
    } else {
      const SampleScope scope(first, SampleScope::Purpose::collate);
      return batch_of_list(std::move(samples));
    }
  }

  Collate collate_;

 private:
  ErasedBatch batch_of_list(std::vector<S>&& samples) {
    if constexpr (std::is_same_v<Collate, ListCollate>)
      return std::make_shared<B>(std::move(samples));
    else
      return std::make_shared<B>(collate_(std::move(samples)));
  }
};

template <class D, class Collate>
class MapSource final : public CollatingSource<SampleOf<D>, BatchOf<D, Collate>, Collate> {
 public:
  using S = SampleOf<D>;
  using B = BatchOf<D, Collate>;
  using Base = CollatingSource<S, B, Collate>;
  static_assert(!returns_batches<D>() || std::is_same_v<Collate, DefaultCollate>,
                "get_batch of this dataset returns whole batches: there is nothing to collate");

  MapSource(std::shared_ptr<D> dataset, Collate collate, bool shared)
      : Base(std::move(collate)), dataset_(std::move(dataset)), shared_(shared) {}

  bool is_stream() const override { return false; }
  std::optional<int64_t> length() const override { return length_of(*dataset_); }
  void begin_epoch(uint64_t epoch) override {
    if constexpr (requires { dataset_->set_epoch(epoch); }) dataset_->set_epoch(epoch);
  }

  std::shared_ptr<Source> for_thread() override {
    if (shared_) return std::make_shared<MapSource>(dataset_, this->collate_, true);
    if constexpr (std::copy_constructible<D>)
      return std::make_shared<MapSource>(std::make_shared<D>(*dataset_), this->collate_, false);
    else
      return nullptr;
  }

  ErasedBatch read(std::span<const int64_t> indices) override {
    if constexpr (returns_batches<D>())
      return std::make_shared<B>(get_batch(indices));
    else if constexpr (Indexed<D>)
      return read_elements(indices);
    else if constexpr (Gets<D>)
      return read_each(indices);
    else
      return this->batch_of_samples(get_batch(indices), indices.front());
  }

  Chunk pull(int64_t, int64_t) override { return {}; }
  Chunk join(const Chunk&, const Chunk&) const override { return {}; }
  ErasedBatch pick(const Chunk&, const Chunk&, std::span<const int64_t>, int64_t) override {
    return nullptr;
  }

 private:
  auto get_batch(std::span<const int64_t> indices) {
    const std::vector<size_t> request(indices.begin(), indices.end());
    return read_sample(indices.front(),
                       [&] { return dataset_->get_batch(c10::ArrayRef<size_t>(request)); });
  }

  ErasedBatch read_each(std::span<const int64_t> indices) {
    std::vector<S> samples;
    samples.reserve(indices.size());
    for (const int64_t i : indices)
      read_sample(i, [&] { samples.push_back(dataset_->get(static_cast<size_t>(i))); });
    return this->batch_of_samples(std::move(samples), indices.front());
  }

  ErasedBatch read_elements(std::span<const int64_t> indices) {
    const D& elements = *dataset_;
    if constexpr (std::is_lvalue_reference_v<decltype(elements[size_t{0}])>) {
      std::vector<const S*> samples;
      samples.reserve(indices.size());
      for (const int64_t i : indices) samples.push_back(&elements[static_cast<size_t>(i)]);
      return this->batch_of_pointers(samples, indices.front());
    } else {
      std::vector<S> samples;
      for (const int64_t i : indices)
        read_sample(i, [&] { samples.push_back(elements[static_cast<size_t>(i)]); });
      return this->batch_of_samples(std::move(samples), indices.front());
    }
  }

  std::shared_ptr<D> dataset_;
  bool shared_;
};

template <class D, class Collate>
class StreamSource final : public CollatingSource<SampleOf<D>, BatchOf<D, Collate>, Collate> {
 public:
  using S = SampleOf<D>;
  using Base = CollatingSource<S, BatchOf<D, Collate>, Collate>;

  StreamSource(std::shared_ptr<D> stream, Collate collate)
      : Base(std::move(collate)), stream_(std::move(stream)) {}

  bool is_stream() const override { return true; }
  std::optional<int64_t> length() const override { return length_of(*stream_); }
  void begin_epoch(uint64_t epoch) override {
    waiting_.clear();
    tell_epoch(*stream_, epoch);
  }

  // One stream for all threads: pull() is never called by two at once.
  std::shared_ptr<Source> for_thread() override {
    return std::make_shared<StreamSource>(stream_, this->collate_);
  }

  ErasedBatch read(std::span<const int64_t>) override { return nullptr; }

  Chunk pull(int64_t first, int64_t count) override {
    auto samples = std::make_shared<std::vector<S>>();
    while (static_cast<int64_t>(samples->size()) < count) {
      const int64_t index = first + static_cast<int64_t>(samples->size());
      std::optional<S> sample = read_sample(index, [&] { return next(count); });
      if (!sample) break;
      samples->push_back(std::move(*sample));
    }
    const auto got = static_cast<int64_t>(samples->size());
    return {std::move(samples), got};
  }

  Chunk join(const Chunk& a, const Chunk& b) const override {
    auto samples = std::make_shared<std::vector<S>>();
    for (const Chunk* chunk : {&a, &b}) {
      const auto* part = static_cast<const std::vector<S>*>(chunk->samples.get());
      if (part != nullptr) samples->insert(samples->end(), part->begin(), part->end());
    }
    return {std::move(samples), a.count + b.count};
  }

  ErasedBatch pick(const Chunk& start, const Chunk& round, std::span<const int64_t> picks,
                   int64_t first) override {
    const auto& starting = *static_cast<const std::vector<S>*>(start.samples.get());
    const auto& current = *static_cast<const std::vector<S>*>(round.samples.get());
    std::vector<const S*> samples;
    for (const int64_t i : picks)
      samples.push_back(i >= 0 ? &current[static_cast<size_t>(i)]
                               : &starting[static_cast<size_t>(~i)]);
    return this->batch_of_pointers(samples, first);
  }

 private:
  std::optional<S> next(int64_t count) {
    if constexpr (NextStream<D>) {
      return stream_->next();
    } else if constexpr (CallableStream<D>) {
      return (*stream_)();
    } else {
      if (waiting_.empty()) refill(count);
      if (waiting_.empty()) return std::nullopt;
      S sample = std::move(waiting_.back());
      waiting_.pop_back();
      return sample;
    }
  }

  void refill([[maybe_unused]] int64_t count) {
    if constexpr (BatchStream<D>) {
      auto batch = stream_->get_batch(static_cast<size_t>(count));
      if constexpr (OptionalValue<decltype(batch)>) {
        if (batch) waiting_ = std::move(*batch);
      } else {
        waiting_ = std::move(batch);
      }
      std::reverse(waiting_.begin(), waiting_.end());
    }
  }

  std::shared_ptr<D> stream_;
  std::vector<S> waiting_;  // the last one is next
};

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

template <class D, class Collate>
std::shared_ptr<Source> make_source(std::shared_ptr<D> dataset, Collate collate, bool shared) {
  if constexpr (Stream<D>)
    return std::make_shared<StreamSource<D, Collate>>(std::move(dataset), std::move(collate));
  else
    return std::make_shared<MapSource<D, Collate>>(std::move(dataset), std::move(collate),
                                                   shared || reads_const<D>());
}

}  // namespace data
}  // namespace drivetrain
