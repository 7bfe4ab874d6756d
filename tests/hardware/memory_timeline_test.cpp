// SPDX-License-Identifier: Apache-2.0
// The bytes of a step, against what can be computed by hand.
#include <torch/torch.h>

#include <drivetrain/backends.h>
#include <drivetrain/error.h>
#include <drivetrain/memory.h>
#include <drivetrain/optimizer.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "expect_error.h"
#include "memory_models.h"

namespace drivetrain {
namespace {

using enum MemoryCategory;
using testing::Folder;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ScriptedAccelerator;

constexpr int64_t kFloat = 4;
// Linear(13, 7) and Linear(7, 5) with biases.
constexpr int64_t kMlpBytes = (13 * 7 + 7 + 7 * 5 + 5) * kFloat;

torch::nn::Sequential mlp() {
  return torch::nn::Sequential(torch::nn::Linear(13, 7), torch::nn::ReLU(),
                               torch::nn::Linear(7, 5));
}

int64_t sum_of(const MemoryPoint& point) {
  int64_t sum = 0;
  for (const int64_t bytes : point.bytes) sum += bytes;
  return sum;
}

class Timeline : public ::testing::Test {
 protected:
  Timeline() { cpu->memory_stats(); }  // counts from here on

  std::shared_ptr<CpuAccelerator> cpu = std::make_shared<CpuAccelerator>();
};

TEST_F(Timeline, OfAnMlpWithAdamWIsTheClosedForm) {
  const int64_t before = cpu->memory_allocated();
  auto model = mlp();
  torch::optim::AdamW optimizer(model->parameters(), 1e-3);
  const auto x = torch::randn({3, 13});
  MemoryTimeline timeline(cpu);
  timeline.track(*model, "model");
  timeline.track(optimizer);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    model->forward(x).pow(2).mean().backward();
    optimizer.step();
    const MemoryPoint point = timeline.step();
    EXPECT_EQ(point.first_step, step);
    EXPECT_EQ(point.last_step, step);
    EXPECT_EQ(point[parameters], kMlpBytes);
    EXPECT_EQ(point[gradients], kMlpBytes);
    EXPECT_EQ(point[buffers], 0);
    EXPECT_EQ(point[MemoryCategory::optimizer], 2 * kMlpBytes);
    EXPECT_EQ(point[other], before + 3 * 13 * kFloat);
    EXPECT_EQ(point.allocated, cpu->memory_allocated());
    EXPECT_GE(point.peak, point.allocated);
    EXPECT_EQ(sum_of(point), point.peak);
  }
  EXPECT_EQ(timeline.steps(), 3);
}

// Sigmoid saves its output: four in a row keep four tensors until backward.
TEST_F(Timeline, ActivationsAreAtLeastTheSavedTensors) {
  constexpr int64_t kSize = 1 << 16;
  auto x = torch::zeros({kSize}, torch::requires_grad());
  MemoryTimeline timeline(cpu);
  timeline.track(parameters, [x] { return std::vector<at::Tensor>{x}; }, "x");
  timeline.track(gradients, [x] { return std::vector<at::Tensor>{x.grad()}; }, "x");
  const auto activations_of = [&](int depth) {
    {
      auto y = x;
      for (int i = 0; i < depth; ++i) y = y.sigmoid();
      y.sum().backward();
    }
    return timeline.step()[activations];
  };
  activations_of(1);  // from here on there is a gradient
  const int64_t four = activations_of(4), eight = activations_of(8);
  EXPECT_GE(four, 4 * kSize * kFloat);
  EXPECT_LE(four, 8 * kSize * kFloat);
  EXPECT_EQ(eight - four, 4 * kSize * kFloat);
  EXPECT_EQ(timeline.points().back()[gradients], kSize * kFloat);
  EXPECT_EQ(timeline.step()[activations], 0) << "a step without work";
}

TEST_F(Timeline, CountsTiedWeightsAndViewsOnce) {
  auto model = mlp();
  auto tied = torch::nn::Linear(13, 7);
  tied->weight.set_data(model->ptr(0)->as<torch::nn::Linear>()->weight);
  model->push_back(tied);
  const auto statistics = torch::zeros({100});
  model->register_buffer("all", statistics);
  model->register_buffer("half", statistics.slice(0, 0, 50));
  // As prepared models have them: windows of one chunk with room for more.
  const auto chunk = torch::zeros({1000});
  int64_t offset = 0;
  for (auto& parameter : model->parameters()) {
    if (parameter.numel() == 13 * 7 && offset > 0) continue;
    parameter.mutable_grad() =
        chunk.slice(0, offset, offset + parameter.numel()).view_as(parameter);
    offset += parameter.numel();
  }
  MemoryTimeline timeline(cpu);
  timeline.track(*model, "model");
  timeline.track(*model, "again");
  timeline.track(gradients, [&] { return std::vector<at::Tensor>{model->buffers()[0]}; }, "alias");
  const MemoryPoint point = timeline.step();
  EXPECT_EQ(point[parameters], kMlpBytes + 7 * kFloat);
  EXPECT_EQ(point[buffers], 100 * kFloat) << "the first category that claims a storage has it";
  EXPECT_EQ(point[gradients], 1000 * kFloat);
}

TEST_F(Timeline, CountsSparseGradientsByTheirParts) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(1000, 8).sparse(true));
  MemoryTimeline timeline(cpu);
  timeline.track(*table, "table");
  table->forward(torch::arange(5)).sum().backward();
  ASSERT_TRUE(table->weight.grad().is_sparse());
  EXPECT_EQ(timeline.step()[gradients], 5 * 8 * kFloat + 5 * 8);
  const auto csr = torch::sparse_csr_tensor(torch::arange(5), torch::arange(4), torch::ones({4}),
                                            {4, 4}, torch::kFloat);
  timeline.track(buffers, [&] { return std::vector<at::Tensor>{csr}; }, "csr");
  EXPECT_EQ(timeline.step()[buffers], 5 * 8 + 4 * 8 + 4 * kFloat);
}

// Memory of another owner is missing in the backend's counters.
TEST_F(Timeline, AddsTrackedMemoryThatWasNeverCounted) {
  std::vector<float> own(1000);
  torch::nn::Linear model(torch::nn::LinearOptions(100, 10).bias(false));
  MemoryTimeline timeline(cpu);
  {
    const torch::NoGradGuard no_grad;
    model->weight.set_data(torch::from_blob(own.data(), {10, 100}));
  }
  const int64_t counted = cpu->memory_allocated();
  timeline.track(*model, "model");
  timeline.track(*model, "again");
  timeline.mark("now");
  MemoryPoint point = timeline.step();
  EXPECT_EQ(point[parameters], 4000);
  EXPECT_EQ(point.allocated, counted + 4000);
  EXPECT_EQ(point[other], counted);
  EXPECT_EQ(point.marks.at("now"), counted + 4000);
  EXPECT_EQ(sum_of(point), point.peak);
  {
    const torch::NoGradGuard no_grad;
    model->weight.set_data(torch::zeros({10, 100}));
  }
  point = timeline.step();
  EXPECT_EQ(point[parameters], 4000);
  EXPECT_EQ(point.allocated, counted + 4000);
  EXPECT_EQ(point[other], counted);
}

TEST_F(Timeline, ForgetsAModuleThatIsGone) {
  MemoryTimeline timeline(cpu);
  auto model = mlp();
  timeline.track(*model, "model");
  EXPECT_EQ(timeline.step()[parameters], kMlpBytes);
  model = nullptr;
  EXPECT_EQ(timeline.step()[parameters], 0) << "neither kept alive nor read";
  torch::nn::LinearImpl bare(3, 2);
  timeline.track(bare, "bare");
  EXPECT_EQ(timeline.step()[parameters], (3 * 2 + 2) * kFloat);
}

TEST_F(Timeline, NotesMarksAndTheirLargest) {
  MemoryTimeline timeline(cpu);
  const int64_t before = cpu->memory_allocated();
  timeline.mark("forward");
  {
    const auto x = torch::empty({1000}, torch::kUInt8);
    timeline.mark("forward");
  }
  timeline.mark("forward");
  EXPECT_EQ(timeline.step().marks.at("forward"), before + 1000);
  EXPECT_TRUE(timeline.step().marks.empty());
  EXPECT_THAT(timeline.summary(), HasSubstr("at forward           -   1000 B        0"));
  for (int i = 1; i < 16; ++i) timeline.mark(std::to_string(i));
  EXPECT_ERROR(timeline.mark("more"), HardwareError,
               "the label \"more\" to mark after 16 others; allowed: 16 labels");
  EXPECT_NO_THROW(timeline.mark("forward"));
}

TEST_F(Timeline, WithoutAStepHasOutputs) {
  const MemoryTimeline timeline(cpu);
  EXPECT_EQ(timeline.steps(), 0);
  EXPECT_TRUE(timeline.points().empty());
  EXPECT_THAT(timeline.summary(), HasSubstr("cpu:0 memory, 0 steps"));
}

TEST_F(Timeline, ThatIsMovedGoesOn) {
  MemoryTimeline first(cpu);
  first.step();
  MemoryTimeline second = std::move(first);
  EXPECT_EQ(second.step().first_step, 1);
}

TEST_F(Timeline, RefusesWhatItCannotDo) {
  EXPECT_ERROR(MemoryTimeline(nullptr), HardwareError, "MemoryTimeline was given no accelerator");
  EXPECT_ERROR(MemoryTimeline(cpu, {.max_points = 1}), HardwareError,
               "max_points 1; allowed: 2 and more");
  EXPECT_ERROR(MemoryTimeline(cpu, {.limit_bytes = -1}), HardwareError, "limit_bytes -1");
  EXPECT_ERROR(MemoryTimeline(cpu, {.device = 3}), HardwareError, "was given device 3");
  const auto none = std::make_shared<ScriptedAccelerator>(Capabilities{.memory_stats = false});
  EXPECT_ERROR(MemoryTimeline{none}, HardwareError, "scripted: memory_stats is not supported");
  MemoryTimeline timeline(cpu);
  for (const MemoryCategory rest : {other, activations})
    EXPECT_ERROR(timeline.track(
                     rest, [] { return std::vector<at::Tensor>(); }, "x"),
                 HardwareError, std::string("tensors to track as ") + name_of(rest));
}

TEST_F(Timeline, ErrorsOfWritingNameThePathAndTheReason) {
  const Folder folder;
  const MemoryTimeline timeline(cpu);
  const auto path = folder / "no" / "a";
  EXPECT_ERROR(timeline.write_svg(path), HardwareError, "write_svg: " + path.string());
  EXPECT_ERROR(timeline.write_html(path), HardwareError, "write_html: " + path.string());
  EXPECT_ERROR(timeline.write_json(path), HardwareError,
               path.string() + " could not be written: No such file or directory");
}

// --- bounded work, bounded memory, and backends that keep less

TEST(TimelineWork, AStepReadsAndResetsTheCountersOnceAndNeverWaits) {
  const auto accelerator = std::make_shared<ScriptedAccelerator>();
  auto model = mlp();
  MemoryTimeline timeline(accelerator);
  timeline.track(*model, "model");
  accelerator->calls.clear();
  for (int step = 0; step < 100; ++step) timeline.step();
  EXPECT_EQ(accelerator->calls, (std::map<std::string, int>{{"stats", 100}, {"reset", 100}}));
  timeline.mark("x");
  EXPECT_EQ(accelerator->calls["stats"], 101);
}

TEST(TimelineWork, WithoutPeaksThePeakIsSampledAndThatIsSaid) {
  const auto accelerator = std::make_shared<ScriptedAccelerator>(
      Capabilities{.memory_peaks = false, .memory_info = false});
  accelerator->stats.allocated_bytes.current = 100;
  MemoryTimeline timeline(accelerator);
  accelerator->stats.allocated_bytes.current = 700;
  timeline.mark("backward");
  accelerator->stats.allocated_bytes.current = 300;
  MemoryPoint point = timeline.step();
  EXPECT_EQ(point.peak, 700);
  EXPECT_EQ(point[activations], 400);
  EXPECT_EQ(point[other], 300);
  accelerator->stats.allocated_bytes.current = 200;
  point = timeline.step();
  EXPECT_EQ(point.peak, 300) << "what was there when the step began";
  EXPECT_EQ(accelerator->calls["reset"], 0);
  EXPECT_THAT(timeline.summary(), HasSubstr("scripted records none"));
  const Folder folder;
  timeline.write_json(folder / "a.json");
  const auto json = nlohmann::json::parse(testing::read(folder / "a.json"));
  EXPECT_EQ(json["peaks"], "sampled");
  EXPECT_TRUE(json["capacity_bytes"].is_null());
  timeline.write_svg(folder / "a.svg");
  EXPECT_THAT(testing::read(folder / "a.svg"), HasSubstr("peaks sampled"));
}

TEST(TimelineWork, ManyStepsAreMergedKeepingTheLargest) {
  const auto accelerator = std::make_shared<ScriptedAccelerator>();
  MemoryTimeline timeline(accelerator, {.max_points = 101});
  const auto current_at = [](int64_t step) { return 1000 + step * 7919 % 10007; };
  const auto peak_at = [&](int64_t step) { return current_at(step) + step * 31 % 997; };
  for (int64_t step = 0; step < 10'000; ++step) {
    accelerator->stats.allocated_bytes.current = current_at(step);
    accelerator->stats.allocated_bytes.peak = peak_at(step);
    if (step == 4321) timeline.mark("once");
    timeline.step();
    ASSERT_LE(timeline.points().size(), 101U);
  }
  EXPECT_EQ(timeline.steps(), 10'000);
  EXPECT_GE(timeline.points().size(), 50U);
  int64_t next = 0, marks = 0;
  for (const MemoryPoint& point : timeline.points()) {
    ASSERT_EQ(point.first_step, next) << "no gap, no overlap";
    int64_t peak = 0, rest = 0, spread = 0;
    for (int64_t step = point.first_step; step <= point.last_step; ++step) {
      peak = std::max(peak, peak_at(step));
      rest = std::max(rest, current_at(step));
      spread = std::max(spread, peak_at(step) - current_at(step));
    }
    ASSERT_EQ(point.peak, peak);
    ASSERT_EQ(point.allocated, rest);
    ASSERT_EQ(point[other], rest);
    ASSERT_EQ(point[activations], spread);
    if (point.marks.contains("once")) {
      ++marks;
      EXPECT_EQ(point.marks.at("once"), current_at(4321));
      EXPECT_LE(point.first_step, 4321);
      EXPECT_GE(point.last_step, 4321);
    }
    next = point.last_step + 1;
  }
  EXPECT_EQ(next, 10'000);
  EXPECT_EQ(marks, 1);
}

// Each number of steps around the limit: the points cover all of them, without a gap.
TEST(TimelineWork, EveryNumberOfStepsIsCoveredByEveryLimit) {
  for (const int max_points : {2, 3, 4, 7}) {
    const auto accelerator = std::make_shared<ScriptedAccelerator>();
    MemoryTimeline timeline(accelerator, {.max_points = max_points});
    for (int64_t step = 0; step < 40; ++step) {
      timeline.step();
      int64_t next = 0;
      for (const MemoryPoint& point : timeline.points()) {
        ASSERT_EQ(point.first_step, next);
        next = point.last_step + 1;
      }
      ASSERT_EQ(next, step + 1);
      ASSERT_LE(timeline.points().size(), static_cast<size_t>(max_points));
      if (step >= max_points) {
        ASSERT_GE(2 * timeline.points().size(), static_cast<size_t>(max_points));
      }
    }
  }
}

TEST(TimelineWork, TheSummaryIsATable) {
  const auto accelerator =
      std::make_shared<ScriptedAccelerator>(Capabilities{.memory_info = false});
  MemoryTimeline timeline(accelerator, {.limit_bytes = 1 << 20});
  for (const int64_t bytes : {2048, 4096, 1024}) {
    accelerator->stats.allocated_bytes = {bytes, bytes + 512, 0, 0};
    timeline.mark("end");
    timeline.step();
  }
  EXPECT_EQ(timeline.summary(),
            "scripted:0 memory, 3 steps, limit 1.0 MiB\n"
            "             last step  largest  at step\n"
            "parameters         0 B      0 B        0\n"
            "buffers            0 B      0 B        0\n"
            "gradients          0 B      0 B        0\n"
            "optimizer          0 B      0 B        0\n"
            "other          1.0 KiB  4.0 KiB        1\n"
            "activations      512 B    512 B        0\n"
            "peak           1.5 KiB  4.5 KiB        1\n"
            "at end         1.0 KiB  4.0 KiB        1\n");
}

}  // namespace
}  // namespace drivetrain
