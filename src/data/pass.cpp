// SPDX-License-Identifier: Apache-2.0
#include "data/pass.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "core/text.h"
#include "data/place.h"

namespace drivetrain::data {
namespace {

std::atomic<uint64_t> num_started = 0;

// What rank 0 tells a rank of a round before the tensors come.
struct Header {
  bool failed = false;
  int64_t failed_index = -1;
  bool exists = false;  // there is such a round
  bool has_batch = false;
  bool last = false;
  bool final = false;
  int64_t real_size = 0;
  int64_t done = 0;
  int64_t num_tensors = 0;
  std::string text;  // the batch's other parts, or what failed
};

at::Tensor to_tensor(Header header) {
  detail::Wire wire;
  detail::transfer(wire, header);
  at::Tensor bytes = at::empty({static_cast<int64_t>(wire.bytes.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), wire.bytes.data(), wire.bytes.size());
  return bytes;
}

Header to_header(const at::Tensor& bytes) {
  detail::Wire wire(std::string(static_cast<const char*>(bytes.const_data_ptr()),
                                static_cast<size_t>(bytes.numel())),
                    {});
  Header header;
  detail::transfer(wire, header);
  return header;
}

Header header_of_error(const std::exception& error) {
  const auto* sample = dynamic_cast<const SampleError*>(&error);
  const auto* ours = dynamic_cast<const Error*>(&error);
  Header header;
  header.failed = true;
  header.failed_index = sample != nullptr ? sample->index() : -1;
  header.text = ours != nullptr ? ours->what_happened() : error.what();
  return header;
}

Header header_of_part(const Part& part, const Round& round) {
  Header header;
  header.exists = true;
  header.has_batch = part.batch != nullptr;
  header.last = part.last;
  header.final = round.final;
  header.real_size = part.real_size;
  header.done = round.done;
  return header;
}

void send_headers(const World& world, const std::vector<Header>& headers) {
  std::vector<std::vector<at::Tensor>> parts;
  for (const Header& header : headers) parts.push_back({to_tensor(header)});
  detail::scatter(world, parts, 1, 0, {});
}

}  // namespace

Pass::Pass(std::shared_ptr<Engine> engine, uint64_t epoch, std::shared_ptr<const Reading> reading,
           std::exception_ptr error)
    : engine_(std::move(engine)),
      epoch_(epoch),
      reading_(std::move(reading)),
      error_(std::move(error)),
      started_(++num_started),
      length_(reading_ && !reading_->source->is_stream() ? std::optional(reading_->order.count)
                                                         : engine_->epoch_length(epoch)) {
  if (!reading_) return;
  plan_ = reading_->source->is_stream() ? stream_plan(reading_) : map_plan(reading_);
  const DataLoaderOptions& options = engine_->options_;
  if (options.num_workers == 0) return;
  pool_.emplace(
      OrderedPool::Options{.num_workers = options.num_workers,
                           .capacity = int64_t{options.num_workers} * options.prefetch_factor,
                           .timeout = options.timeout,
                           .rank = engine_->rank(),
                           .world_size = engine_->world_size()},
      std::exchange(plan_, nullptr));
}

int64_t Pass::num_left() const {
  if (!length_) return -1;
  Shard shard = engine_->shard_of(*length_);
  shard.num_done = done_;
  return shard.num_batches(engine_->rank());
}

Pass::~Pass() { end(/*whole=*/false); }

void Pass::end(bool whole) {
  if (!open_) return;
  open_ = false;
  pool_.reset();
  engine_->pass_ended(*this, whole, epoch_);
}

// The next round that this rank reads itself; null at the end.
std::shared_ptr<Round> Pass::read_round() {
  if (error_) std::rethrow_exception(error_);
  if (pool_) return std::static_pointer_cast<Round>(pool_->next());
  const Task task = plan_();
  return task ? std::static_pointer_cast<Round>(task(0)) : nullptr;
}

std::optional<Pass::Own> Pass::next_own() {
  if (engine_->dispatches()) return engine_->rank() == 0 ? send_round() : receive_round();
  const std::shared_ptr<Round> round = read_round();
  if (!round) return std::nullopt;
  return Own{std::move(round->parts[0]), round->final, round->done};
}

// Rank 0's next round; an error is told to all ranks before it is thrown.
std::shared_ptr<Round> Pass::read_for_all() {
  try {
    return read_round();
  } catch (const std::exception& error) {
    send_headers(*engine_->world_, std::vector<Header>(static_cast<size_t>(engine_->world_size()),
                                                       header_of_error(error)));
    throw;
  }
}

std::optional<Pass::Own> Pass::send_round() {
  const std::shared_ptr<Round> round = read_for_all();
  std::vector<Header> headers(static_cast<size_t>(engine_->world_size()));
  std::vector<std::vector<at::Tensor>> tensors(headers.size());
  size_t most = 0;
  for (size_t r = 0; round && r < headers.size(); ++r) {
    const Part& part = round->parts[r];
    headers[r] = header_of_part(part, *round);
    if (part.batch) headers[r].text = reading_->source->pack(part.batch.get(), tensors[r]);
    most = std::max(most, tensors[r].size());
  }
  // A scatter moves equally many tensors to each rank.
  for (size_t r = 0; r < headers.size(); ++r) {
    headers[r].num_tensors = static_cast<int64_t>(most);
    tensors[r].resize(most, at::empty({0}));
  }
  send_headers(*engine_->world_, headers);
  if (!round) return std::nullopt;
  if (most > 0) detail::scatter(*engine_->world_, tensors, most, 0, {});
  return Own{std::move(round->parts[0]), round->final, round->done};
}

std::optional<Pass::Own> Pass::receive_round() {
  const Header header = to_header(detail::scatter(*engine_->world_, {}, 1, 0, {}).front());
  if (header.failed)
    throw SampleError(header.failed_index, core::str("rank 0, which reads for all: ", header.text));
  if (!header.exists) return std::nullopt;
  std::vector<at::Tensor> tensors;
  const auto count = static_cast<size_t>(header.num_tensors);
  if (count > 0) tensors = detail::scatter(*engine_->world_, {}, count, 0, {});
  Own own{{nullptr, header.real_size, header.last}, header.final, header.done};
  if (!header.has_batch) return own;
  own.part.batch = engine_->source_->unpack(header.text, std::move(tensors));
  if (engine_->options_.pin_memory && can_pin())
    engine_->source_->map_tensors(own.part.batch.get(), pinned);
  return own;
}

void Pass::place(Part& part) const {
  if (engine_->device_ == at::Device(at::kCPU)) return;
  engine_->source_->map_tensors(part.batch.get(), [device = engine_->device_](const at::Tensor& t) {
    return placed(t, device);
  });
}

ErasedBatch Pass::next() {
  if (!open_) return nullptr;
  try {
    std::optional<Own> own = final_ ? std::nullopt : next_own();
    if (!own || !own->part.batch) {
      end(/*whole=*/true);
      return nullptr;
    }
    place(own->part);
    final_ = own->final;
    real_size_ = own->part.real_size;
    at_end_ = own->part.last;
    ++num_taken_;
    done_ = own->done;
    engine_->batch_taken(*this, epoch_, own->done);
    return own->part.batch;
  } catch (...) {
    end(/*whole=*/false);
    throw;
  }
}

}  // namespace drivetrain::data
