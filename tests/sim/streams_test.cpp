// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <gtest/gtest.h>

#include <thread>

#include "devices.h"
#include "expect_error.h"

namespace drivetrain::sim {
namespace {

class SimStreams : public ::testing::Test {
 protected:
  SimStreams() { accelerator()->set_device(0); }
  ~SimStreams() override {
    for (int index = 0; index < 3; ++index) accelerator()->synchronize(index);
    accelerator()->set_device(0);
  }
  c10::TensorOptions options = torch::device(at(0));
};

TEST_F(SimStreams, WorkIsDoneLaterAndInOrder) {
  auto x = torch::zeros({4}, options);
  accelerator()->synchronize();
  const double called = milliseconds([&] {
    sleep(200);
    x.fill_(1);
    x.add_(x);
    const auto y = x + 1;
    x.mul_(y);
  });
  EXPECT_LT(called, 150) << "the calls do not wait";
  EXPECT_FALSE(accelerator()->current_stream().query());
  EXPECT_GE(milliseconds([&] { EXPECT_EQ(x.sum().item<float>(), 24.0f); }), 50)
      << "reading a number does";
  EXPECT_TRUE(accelerator()->current_stream().query());
}

TEST_F(SimStreams, EveryWayOfWaitingWaits) {
  const auto stream = accelerator()->current_stream();
  EXPECT_GE(milliseconds([&] { sleep(60), accelerator()->synchronize(); }), 59);
  EXPECT_GE(milliseconds([&] { sleep(60), stream.synchronize(); }), 59);
  auto event = accelerator()->Event();
  EXPECT_GE(milliseconds([&] { sleep(60), event.record(), event.synchronize(); }), 59);
  const auto x = torch::ones({2}, options);
  EXPECT_GE(milliseconds([&] { sleep(60), x.cpu(); }), 59);
  EXPECT_GE(milliseconds([&] { sleep(60), x.nonzero(); }), 59) << "the data tell the shape";
  EXPECT_GE(milliseconds([&] { sleep(60), torch::equal(x, x); }), 59);
}

TEST_F(SimStreams, RunSideBySide) {
  const auto side = accelerator()->Stream();
  const double both = milliseconds([&] {
    sleep(150);
    {
      const auto guard = accelerator()->stream(side);
      sleep(150);
    }
    accelerator()->synchronize();
  });
  EXPECT_GE(both, 149);
  EXPECT_LT(both, 280);
}

TEST_F(SimStreams, WaitForEachOthersEvents) {
  const auto side = accelerator()->Stream();
  auto x = torch::zeros({1}, options);
  accelerator()->synchronize();
  auto filled = accelerator()->Event();
  sleep(80);
  x.fill_(7);
  filled.record();
  at::Tensor y;
  {
    const auto guard = accelerator()->stream(side);
    const double waiting = milliseconds([&] { filled.wait(); });
    EXPECT_LT(waiting, 60) << "the stream waits, not the caller";
    y = x * 2;
    EXPECT_EQ(y.item<float>(), 14.0f);
  }
}

TEST_F(SimStreams, WithoutAnEventReadWhatIsThere) {
  const auto side = accelerator()->Stream();
  auto x = torch::zeros({1}, options);
  accelerator()->synchronize();
  sleep(150);
  x.fill_(7);
  {
    const auto guard = accelerator()->stream(side);
    EXPECT_EQ((x * 2).item<float>(), 0.0f) << "a race that real devices have too";
  }
  EXPECT_EQ(x.item<float>(), 7.0f);
}

TEST_F(SimStreams, EventsOfOneDeviceHoldUpAnother) {
  auto x = torch::zeros({1}, options);
  auto slept = accelerator()->Event();
  sleep(80);
  slept.record(accelerator()->current_stream(0));
  slept.wait(accelerator()->current_stream(1));
  EXPECT_GE(milliseconds([&] { accelerator()->synchronize(1); }), 40);
  EXPECT_TRUE(slept.query());
}

TEST_F(SimStreams, EventsTimeTheWorkBetweenThem) {
  auto begin = accelerator()->Event(true), end = accelerator()->Event(true);
  begin.record();
  sleep(50);
  end.record();
  EXPECT_FALSE(end.query());
  EXPECT_ERROR(begin.elapsed_time(end), HardwareError, "must be completed");
  end.synchronize();
  EXPECT_GE(begin.elapsed_time(end), 49.0);
  EXPECT_LT(begin.elapsed_time(end), 150.0);
}

TEST_F(SimStreams, AnEventRecordedAgainIsALaterOne) {
  auto event = accelerator()->Event();
  event.record();
  event.synchronize();
  sleep(60);
  event.record();
  EXPECT_FALSE(event.query());
  event.synchronize();
  EXPECT_TRUE(accelerator()->current_stream().query());
}

TEST_F(SimStreams, UrgentOnesGoFirst) {
  const auto urgent = accelerator()->Stream({}, -1);
  auto x = torch::zeros({1}, options);
  accelerator()->synchronize();
  auto begun = accelerator()->Event(true), done = accelerator()->Event(true);
  {
    const auto guard = accelerator()->stream(urgent);
    begun.record();
    sleep(80);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  x.fill_(1);  // of an ordinary stream: begins once the urgent one rests
  done.record();
  done.synchronize();
  EXPECT_GE(begun.elapsed_time(done), 79.0);
}

TEST_F(SimStreams, AKernelsFailureIsToldAtTheNextCall) {
  const auto table = torch::zeros({3, 2}, options);
  const auto wrong = torch::tensor({5}, options.dtype(torch::kLong));
  at::Tensor rows;
  ASSERT_NO_THROW(rows = table.index_select(0, wrong));
  EXPECT_ERROR(accelerator()->synchronize(), HardwareError, "sim:0, stream 0: aten::index_select");
  EXPECT_NO_THROW(accelerator()->synchronize()) << "once";
  ASSERT_NO_THROW(table.index_select(0, wrong));
  accelerator()->current_stream();
  EXPECT_ERROR(table.sum().item(), c10::Error, ", started earlier, failed: ");
  EXPECT_EQ(table.sum().item<float>(), 0.0f);
}

TEST_F(SimStreams, WrongShapesAreToldAtOnce) {
  auto x = torch::zeros({3, 2}, options);
  EXPECT_ERROR(x.matmul(x), c10::Error, "cannot be multiplied");
  EXPECT_ERROR(x.add_(torch::zeros({5}, options)), c10::Error, "must match the size");
}

TEST_F(SimStreams, ArePooledAndCurrentByThread) {
  const auto side = accelerator()->Stream();
  const auto guard = accelerator()->stream(side);
  std::thread([&] {
    EXPECT_EQ(accelerator()->current_stream(), accelerator()->default_stream());
  }).join();
  std::set<c10::StreamId> ids;
  for (int i = 0; i < 100; ++i) ids.insert(accelerator()->Stream().id());
  EXPECT_EQ(ids.size(), 32u);
  EXPECT_FALSE(ids.contains(accelerator()->default_stream().id()));
  const c10::Stream none(c10::Stream::UNSAFE, at(0), 1000);
  EXPECT_ERROR(accelerator()->set_stream(none), HardwareError, "sim:0 has no stream 1000");
}

TEST_F(SimStreams, KernelsOfDifferentThreadsMeetInOneStream) {
  auto sum = torch::zeros({1}, options);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      const torch::NoGradGuard no_grad;
      for (int step = 0; step < 100; ++step) sum.add_(1);
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(sum.item<float>(), 400.0f);
}

TEST_F(SimStreams, BusyTimeIsTheUtilization) {
  accelerator()->synchronize();
  accelerator()->utilization();
  sleep(60);
  accelerator()->synchronize();
  EXPECT_GT(accelerator()->utilization(), 50.0);
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  EXPECT_LT(accelerator()->utilization(), 20.0);
}

TEST_F(SimStreams, NumbersFromTheHostAreTakenWhenCalled) {
  auto x = torch::zeros({2}, options), number = torch::tensor(3.0f);
  accelerator()->synchronize();
  sleep(50);
  x.add_(number);
  number.fill_(100);
  EXPECT_EQ(x.sum().item<float>(), 6.0f);
}

TEST_F(SimStreams, APlainNormalLayerStackNeverWaits) {
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)),
                            torch::nn::BatchNorm2d(4), torch::nn::ReLU(), torch::nn::MaxPool2d(2),
                            torch::nn::Flatten(), torch::nn::Linear(16, 3));
  accelerator()->set_to_device(*net);
  const auto x = torch::randn({2, 1, 4, 4}, options), y = torch::randn({2, 3}, options);
  const auto step = [&] {
    const auto loss = torch::mse_loss(net->forward(x), y);
    loss.backward();
  };
  step();  // plans and threads are there
  accelerator()->synchronize();
  sleep(400);
  EXPECT_LT(milliseconds(step), 300) << "forward and backward";
  EXPECT_FALSE(accelerator()->current_stream().query());
}

}  // namespace
}  // namespace drivetrain::sim
