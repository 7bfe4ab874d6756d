// SPDX-License-Identifier: Apache-2.0
// A c10d backend between threads, standing in for a vendor's library: it takes tensors of one
// device only, and counts its calls.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace drivetrain {

// Where the ranks of one world lay out what they send, on the CPU.
class Board {
 public:
  explicit Board(int num_ranks) : num_ranks_(num_ranks) {}

  // Blocks until all ranks have posted their `number`-th; in the order of ranks.
  std::vector<at::Tensor> exchange(int rank, int64_t number, const at::Tensor& tensor) {
    std::unique_lock lock(mutex_);
    auto& posts = posts_[number];
    posts.resize(num_ranks_);
    posts[rank] = tensor;
    ++num_posted_[number];
    changed_.notify_all();
    changed_.wait(lock, [&] { return num_posted_[number] == num_ranks_; });
    return posts_[number];
  }

 private:
  const int num_ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, std::vector<at::Tensor>> posts_;
  std::map<int64_t, int> num_posted_;
};

class ThreadBackend : public c10d::Backend {
  using Ptr = c10::intrusive_ptr<c10d::Work>;

 public:
  ThreadBackend(std::shared_ptr<Board> board, int rank, int size, at::DeviceType type)
      : Backend(rank, size), board_(std::move(board)), type_(type) {}

  static inline std::atomic<int> num_calls{0};

  const std::string getBackendName() const override { return "threads"; }

  Ptr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return put(tensors[0], reduced(post(tensors[0]), options.reduceOp));
  }

  Ptr reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) override {
    const auto all = post(tensors[0]);
    return options.rootRank == getRank() ? put(tensors[0], reduced(all, options.reduceOp)) : done();
  }

  Ptr broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    return put(tensors[0], post(tensors[0])[options.rootRank]);
  }

  Ptr _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions&) override {
    return put(out, at::cat(post(in)));
  }

  Ptr _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                           const c10d::ReduceScatterOptions& options) override {
    return put(out, reduced(post(in), options.reduceOp).chunk(getSize())[getRank()]);
  }

 private:
  struct Done : c10d::Work {
    bool isCompleted() override { return true; }
    bool wait(std::chrono::milliseconds) override { return true; }
  };

  static Ptr done() { return c10::make_intrusive<Done>(); }

  std::vector<at::Tensor> post(const at::Tensor& tensor) {
    TORCH_CHECK(tensor.device().type() == type_, "threads: a tensor on ", tensor.device());
    ++num_calls;
    return board_->exchange(getRank(), next_++, tensor.cpu().clone());
  }

  Ptr put(const at::Tensor& to, const at::Tensor& result) {
    to.copy_(result.view(to.sizes()));
    return done();
  }

  static at::Tensor reduced(const std::vector<at::Tensor>& all, const c10d::ReduceOp& op) {
    at::Tensor result = all[0].clone();
    for (size_t r = 1; r < all.size(); ++r) {
      if (op == c10d::ReduceOp::MAX)
        result = at::maximum(result, all[r]);
      else if (op == c10d::ReduceOp::MIN)
        result = at::minimum(result, all[r]);
      else
        result = result + all[r];
    }
    return result;
  }

  std::shared_ptr<Board> board_;
  at::DeviceType type_;
  int64_t next_ = 0;
};

}  // namespace drivetrain
