// SPDX-License-Identifier: Apache-2.0
// How a DataLoader reads any dataset (dataset.h) through one interface: not for users to call.
#pragma once

#include <drivetrain/dataset.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace drivetrain::data {

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

  // Whether pack and unpack serve the batch's type (nested.h).
  virtual bool can_send() const = 0;
  // All of the batch that is no tensor as bytes; its tensors are added to `tensors`.
  virtual std::string pack(void* batch, std::vector<at::Tensor>& tensors) const = 0;
  virtual ErasedBatch unpack(std::string bytes, std::vector<at::Tensor> tensors) const = 0;
};

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
      return batch_of_pointers(detail::PointersTo<S>(samples).all(), first);
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
    if constexpr (!std::copy_constructible<Collate>)
      return nullptr;
    else if (shared_)
      return std::make_shared<MapSource>(dataset_, this->collate_, true);
    else if constexpr (std::copy_constructible<D>)
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
                       [&] { return readable().get_batch(c10::ArrayRef<size_t>(request)); });
  }

  ErasedBatch read_each(std::span<const int64_t> indices) {
    std::vector<S> samples;
    samples.reserve(indices.size());
    for (const int64_t i : indices)
      read_sample(i, [&] { samples.push_back(readable().get(static_cast<size_t>(i))); });
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

  // A dataset that threads share is read as const.
  auto& readable() {
    if constexpr (reads_const<D>())
      return std::as_const(*dataset_);
    else
      return *dataset_;
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
    if constexpr (!std::copy_constructible<Collate>)
      return nullptr;
    else
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
    const detail::PointersTo<S> starting(*static_cast<const std::vector<S>*>(start.samples.get()));
    const detail::PointersTo<S> current(*static_cast<const std::vector<S>*>(round.samples.get()));
    std::vector<const S*> samples;
    for (const int64_t i : picks) samples.push_back(i >= 0 ? current[i] : starting[~i]);
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

[[noreturn]] void refuse_null_dataset();

template <class D, class Collate>
std::shared_ptr<Source> make_source(std::shared_ptr<D> dataset, Collate collate, bool shared) {
  if (!dataset) refuse_null_dataset();
  if constexpr (Stream<D>)
    return std::make_shared<StreamSource<D, Collate>>(std::move(dataset), std::move(collate));
  else
    return std::make_shared<MapSource<D, Collate>>(std::move(dataset), std::move(collate),
                                                   shared || reads_const<D>());
}

}  // namespace drivetrain::data
