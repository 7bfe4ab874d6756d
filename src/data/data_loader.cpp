// SPDX-License-Identifier: Apache-2.0
// The face of the loader: data/engine.h does the work.
#include <drivetrain/data.h>
#include <drivetrain/error.h>

#include "core/text.h"
#include "data/engine.h"
#include "data/pass.h"

namespace drivetrain {

using data::Engine;

DataLoaderBase::DataLoaderBase(std::shared_ptr<data::Source> source, DataLoaderOptions options)
    : engine_(std::make_shared<Engine>(std::move(source), std::move(options))) {}

int64_t DataLoaderBase::size() const { return engine_->num_batches(); }

int64_t DataLoaderBase::total_batch_size() const {
  if (engine_->options_.batch_sampler) return 0;
  return engine_->local_batch_size() * engine_->world_size();
}

std::optional<int64_t> DataLoaderBase::total_dataset_length() const {
  return engine_->num_samples();
}

std::optional<int64_t> DataLoaderBase::remainder() const { return engine_->remainder(); }

namespace {

const data::Pass& require_pass(const Engine& engine, const char* what) {
  if (engine.innermost() == nullptr || engine.innermost()->real_size() < 0)
    throw Error("data", core::str(what,
                                  " was asked where no batch is in hand; allowed: in the body "
                                  "of a loop over the loader; call it there"));
  return *engine.innermost();
}

}  // namespace

int64_t DataLoaderBase::real_size() const {
  return require_pass(*engine_, "real_size()").real_size();
}

bool DataLoaderBase::at_end() const { return require_pass(*engine_, "at_end()").at_end(); }

std::shared_ptr<const DataLoaderStatus> DataLoaderBase::status() const { return engine_->status_; }

void DataLoaderBase::set_epoch(uint64_t epoch) { engine_->set_epoch(epoch); }

uint64_t DataLoaderBase::epoch() const { return engine_->next_epoch_; }

DataLoaderState DataLoaderBase::state_dict() const { return engine_->state(); }

void DataLoaderBase::load_state_dict(const DataLoaderState& state) { engine_->load(state); }

void DataLoaderBase::skip_batches(int64_t count) {
  if (count < 0)
    throw ConfigError(
        "data", core::str("skip_batches of ", count, " batches; allowed: 0 or more; correct it"));
  engine_->next_skipped_ = count;
}

void DataLoaderBase::set_even_batches(bool even) { engine_->options_.even_batches = even; }

const DataLoaderOptions& DataLoaderBase::options() const { return engine_->options_; }

void DataLoaderBase::attach(const World& world, at::Device device) {
  engine_->attach(world, device);
}

std::shared_ptr<data::Pass> DataLoaderBase::start_pass() const { return engine_->start_pass(); }

data::ErasedBatch DataLoaderBase::next_batch(data::Pass& pass) { return pass.next(); }

namespace data {

void refuse_null_dataset() {
  throw ConfigError("data",
                    "the dataset is a null pointer; allowed: one to a dataset; make it first");
}

}  // namespace data

namespace detail {

void refuse_torch_workers(size_t workers) {
  throw ConfigError(
      "data", core::str("the torch::data loader has ", workers,
                        " workers, which hold its dataset "
                        "where it cannot be taken from; allowed: a loader with workers(0); make it "
                        "so, and pass num_workers to DataLoader"));
}

}  // namespace detail
}  // namespace drivetrain
