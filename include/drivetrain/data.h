// SPDX-License-Identifier: Apache-2.0
// DataLoader: batches of a dataset, each rank its share, in an order that only seed and epoch
// decide.
//
//   drivetrain::DataLoader batches(dataset, {.batch_size = 64, .shuffle = true});
//   for (auto& batch : batches) use(batch.data, batch.target);
//
// dataset.h says what can be read, collate.h what a batch is made of. A loader is of a world of one
// and of the CPU until Accelerator::prepare attaches it to its world and device.
//
// Shares. In each round, ranks 0, 1, .. take the next batch_size samples each of the epoch's order.
// The last round, where short, is left out (drop_last), filled up with the epoch's first samples
// (even_batches, in a world of more than one), or yielded as it is, ranks then differing by up to
// one batch. real_size() tells how many rows of the batch are no such filling.
//
// Passes. Each `for` is a pass over one epoch, and the next pass, whether this one ended or was
// left by break, is over the next epoch. Passes may be nested. A dataset's exception comes as
// SampleError where the batch would; it ends the pass.
#pragma once

#include <c10/core/Device.h>
#include <drivetrain/detail/source.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace torch::data::samplers {
class RandomSampler;
class SequentialSampler;
class DistributedRandomSampler;
class DistributedSequentialSampler;
}  // namespace torch::data::samplers

namespace drivetrain {

class World;

struct DataLoaderOptions {
  int64_t batch_size = 1;  // rows of a batch on each rank; of all ranks together if split_batches
  bool shuffle = false;    // not for streams
  bool drop_last = false;
  int num_workers = 0;      // threads that read ahead; 0: the loop's own thread reads
  int prefetch_factor = 2;  // batches read ahead by each worker
  // Default: LibTorch's current seed (torch::manual_seed), rank 0's where ranks differ.
  std::optional<uint64_t> seed = std::nullopt;
  bool even_batches = true;
  bool split_batches = false;  // batch_size must be a multiple of the world size
  // Rank 0 alone reads, and sends each rank its share. Default: for streams whose batches can be
  // sent (nested.h). The batches are those that every rank would have read by itself.
  std::optional<bool> dispatch_batches = std::nullopt;
  bool pin_memory = false;               // off where there is no accelerator
  std::chrono::milliseconds timeout{0};  // longest wait for a batch; 0: none; needs num_workers > 0
  // The samples of an epoch in order, in place of 0 .. n-1: a pure function, equal on all ranks.
  std::function<std::vector<int64_t>(uint64_t epoch)> sampler = nullptr;
  // The batches of an epoch, of any sizes, in place of batch_size and order. Ranks take whole
  // batches in turn; even_batches fills the last round with the epoch's first batches.
  std::function<std::vector<std::vector<int64_t>>(uint64_t epoch)> batch_sampler = nullptr;
};

// Where a loader stands: enough to read the rest of an epoch, on any number of ranks. Equal on all
// ranks while they have had equally many batches.
struct DataLoaderState {
  uint64_t seed = 0;
  uint64_t epoch = 0;
  int64_t samples_done = 0;  // of the epoch, by all ranks; batches with a batch_sampler
  int64_t length = -1;       // of the epoch, in the same unit; -1: unknown
};

// What metrics need to know of the batch in hand.
struct DataLoaderStatus {
  bool active = false;   // a pass is under way
  uint64_t started = 0;  // when it began, among all passes of the process: the largest is innermost
  int64_t real_size = -1;  // rows of this rank's batch that are no filling; -1: no batch in hand
  bool at_end = false;     // it is the rank's last one
  int64_t num_taken = 0;   // batches of this pass, this one included
  int64_t num_left = -1;   // batches that follow on this rank; -1: a stream does not know
};

namespace data {
class Engine;
class Pass;
}  // namespace data

// All of a DataLoader that does not depend on the type of its batches.
class DataLoaderBase {
 public:
  // Throws ConfigError if an option is out of range or contradicts another.
  DataLoaderBase(std::shared_ptr<data::Source> source, DataLoaderOptions options);

  // Batches of a whole epoch on this rank: as many as a pass yields. Throws ConfigError for a
  // stream without size().
  int64_t size() const;
  bool has_size() const { return total_dataset_length().has_value(); }

  // Rows of a round: of one batch on every rank. 0 with a batch_sampler.
  int64_t total_batch_size() const;
  // Samples of an epoch; none for a stream without size().
  std::optional<int64_t> total_dataset_length() const;
  // Real rows of the last round where it is not whole; 0: nothing to cut off. None where the length
  // or the batch size is not known.
  std::optional<int64_t> remainder() const;

  // Of the batch in hand; see DataLoaderStatus. Throws Error where no pass is under way.
  int64_t real_size() const;
  bool at_end() const;
  // The same, kept up to date as passes go on; it outlives the loader.
  std::shared_ptr<const DataLoaderStatus> status() const;

  // The epoch of the next pass. Called for the user: each pass sets the one after its own.
  void set_epoch(uint64_t epoch);
  uint64_t epoch() const;

  // In a pass: behind the batch in hand. After a pass that was left early: there. After a whole
  // one: at the start of the next epoch.
  DataLoaderState state_dict() const;
  // The next pass reads the rest of the state's epoch, by the state's seed: on as many ranks,
  // exactly the batches that were to come; on another number, the rest of the order shared anew. A
  // stream is read from its start and the used samples left out. Throws ConfigError if the state is
  // of a dataset of another length.
  void load_state_dict(const DataLoaderState& state);
  // The next pass, and only that, leaves out its first `count` batches on every rank.
  void skip_batches(int64_t count);

  // For later passes.
  void set_even_batches(bool even);
  const DataLoaderOptions& options() const;

  // Collective in a world of more than one. Shares the passes to come among the ranks of `world`,
  // and puts batches on `device`. Called by Accelerator::prepare.
  // Throws ConfigError if the ranks' loaders differ in length, options or seed; if split_batches
  // does not divide by the world; if batches are to be dispatched and cannot be sent; if a pass is
  // under way.
  void attach(const World& world, at::Device device);

 protected:
  std::shared_ptr<data::Pass> start_pass() const;
  static data::ErasedBatch next_batch(data::Pass& pass);

 private:
  std::shared_ptr<data::Engine> engine_;
};

namespace detail {

// The options of a torch::data loader and, taken out of it, its dataset. Throws ConfigError if the
// loader has worker threads: they hold its dataset.
[[noreturn]] void refuse_torch_workers(size_t workers);

template <class Loader>
auto take_dataset(Loader& loader) {
  // The dataset is a protected member: a derived class may name it.
  struct Open : Loader {
    static auto member() { return &Open::main_thread_dataset_; }
  };
  return std::move(loader.*Open::member());
}

template <class Loader>
DataLoaderOptions options_of(const Loader& loader, DataLoaderOptions options, bool shuffle) {
  options.batch_size = static_cast<int64_t>(loader.options().batch_size);
  options.drop_last = loader.options().drop_last;
  options.shuffle = shuffle;
  return options;
}

template <class Sampler>
constexpr bool kRandom = std::is_same_v<Sampler, torch::data::samplers::RandomSampler> ||
                         std::is_same_v<Sampler, torch::data::samplers::DistributedRandomSampler>;
template <class Sampler>
constexpr bool kSequential =
    std::is_same_v<Sampler, torch::data::samplers::SequentialSampler> ||
    std::is_same_v<Sampler, torch::data::samplers::DistributedSequentialSampler>;

}  // namespace detail

// Batches of type Batch, which is found from the dataset and the collate function. Moved, not
// copied.
template <class Batch>
class DataLoader : public DataLoaderBase {
 public:
  using BatchType = Batch;

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = Batch*;
    using reference = Batch&;

    Iterator() = default;
    explicit Iterator(std::shared_ptr<data::Pass> pass) : pass_(std::move(pass)) { ++*this; }

    // Blocks until the batch is there.
    Iterator& operator++() {
      batch_ = next_batch(*pass_);
      if (!batch_) pass_.reset();
      return *this;
    }
    void operator++(int) { ++*this; }
    Batch& operator*() const { return *static_cast<Batch*>(batch_.get()); }
    Batch* operator->() const { return static_cast<Batch*>(batch_.get()); }
    // True only at the end: passes are not compared.
    bool operator==(const Iterator& other) const { return batch_ == other.batch_; }

   private:
    std::shared_ptr<data::Pass> pass_;
    data::ErasedBatch batch_;
  };

  template <class Dataset, class Collate = data::DefaultCollate>
  explicit DataLoader(Dataset dataset, DataLoaderOptions options = {}, Collate collate = {})
      : DataLoaderBase(data::make_source(std::make_shared<Dataset>(std::move(dataset)),
                                         std::move(collate), false),
                       std::move(options)) {}

  template <class Dataset, class Collate = data::DefaultCollate>
  explicit DataLoader(std::shared_ptr<Dataset> dataset, DataLoaderOptions options = {},
                      Collate collate = {})
      : DataLoaderBase(data::make_source(std::move(dataset), std::move(collate), true),
                       std::move(options)) {}

  // Takes over a torch::data loader that has no workers: its dataset, batch size and drop_last; its
  // sampler is replaced by one of the same kind that knows of ranks and epochs. `options` gives the
  // rest, as num_workers; its batch_size, drop_last and shuffle are not read. Custom samplers
  // do not compile: their order cannot be shared; pass the dataset and the option sampler.
  template <class Dataset, class Sampler, class Collate = data::DefaultCollate>
  explicit DataLoader(std::unique_ptr<torch::data::StatelessDataLoader<Dataset, Sampler>> loader,
                      DataLoaderOptions options = {}, Collate collate = {})
      : DataLoader(
            take_over(*loader, std::move(options), std::move(collate), detail::kRandom<Sampler>)) {
    static_assert(
        detail::kRandom<Sampler> || detail::kSequential<Sampler>,
        "this torch::data loader has a sampler of its own, which cannot be replaced; pass "
        "its dataset to DataLoader, and its order as the option sampler");
  }

  template <class Dataset, class Collate = data::DefaultCollate>
  explicit DataLoader(std::unique_ptr<torch::data::StatefulDataLoader<Dataset>> loader,
                      DataLoaderOptions options = {}, Collate collate = {})
      : DataLoader(take_over(*loader, std::move(options), std::move(collate), false)) {}

  DataLoader(DataLoader&&) noexcept = default;
  DataLoader& operator=(DataLoader&&) noexcept = default;
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // Starts a pass and reads its first batch. Collective where batches are dispatched.
  Iterator begin() { return Iterator(start_pass()); }
  Iterator end() { return Iterator(); }

 private:
  template <class Loader, class Collate>
  static DataLoader take_over(Loader& loader, DataLoaderOptions options, Collate collate,
                              bool shuffle) {
    if (loader.options().workers > 0) detail::refuse_torch_workers(loader.options().workers);
    options = detail::options_of(loader, std::move(options), shuffle);
    auto dataset = detail::take_dataset(loader);
    return DataLoader(std::move(*dataset), std::move(options), std::move(collate));
  }
};

template <class Dataset, class Collate = data::DefaultCollate>
DataLoader(Dataset, DataLoaderOptions = {}, Collate = {})
    -> DataLoader<data::BatchOf<Dataset, Collate>>;
// As loader.skip_batches(count), for the head of a loop.
template <class Batch>
DataLoader<Batch>& skip_first_batches(DataLoader<Batch>& loader, int64_t count) {
  loader.skip_batches(count);
  return loader;
}

}  // namespace drivetrain
