// SPDX-License-Identifier: Apache-2.0
#include "sim/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/MT19937RNGEngine.h>
#include <c10/core/GeneratorImpl.h>

#include <array>
#include <cstring>
#include <mutex>
#include <vector>

#include "sim/device.h"

namespace drivetrain::sim {
namespace {

constexpr int64_t kStateBytes = 2 * sizeof(uint64_t);

c10::Device at_index(int index) { return {kType, static_cast<c10::DeviceIndex>(index)}; }

class SimGenerator final : public c10::GeneratorImpl {
 public:
  explicit SimGenerator(int index)
      : GeneratorImpl(at_index(index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(uint64_t seed) override { state_ = {seed, 0}; }
  uint64_t current_seed() const override { return state_[0]; }
  void set_offset(uint64_t offset) override { state_[1] = offset; }
  uint64_t get_offset() const override { return state_[1]; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return current_seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    TORCH_CHECK(state.numel() == kStateBytes, "expected a state of ", kStateBytes,
                " bytes, but got ", state.numel());
    std::memcpy(state_.data(), state.data(), kStateBytes);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const auto state = at::detail::empty_cpu({kStateBytes}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), state_.data(), kStateBytes);
    return state.getIntrusivePtr();
  }
  std::array<uint64_t, 2> next() {
    auto taken = state_;
    ++state_[1];
    return taken;
  }

 private:
  SimGenerator* clone_impl() const override {
    auto* copy = new SimGenerator(device().index());
    copy->state_ = state_;
    return copy;
  }

  std::array<uint64_t, 2> state_{c10::default_rng_seed_val, 0};  // seed, offset
};

// SplitMix64 (Steele, Lea, Flood 2014).
uint64_t mix(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// All words from seed and offset: a 32-bit seed would soon repeat.
at::Generator generator_at(std::array<uint64_t, 2> place) {
  uint64_t state = place[0];
  state = mix(state) ^ place[1];
  at::mt19937_data_pod words{
      .seed_ = place[0], .left_ = 1, .seeded_ = true, .next_ = 0, .state_ = {}};
  for (auto& word : words.state_) word = static_cast<uint32_t>(mix(state) >> 32);
  at::mt19937 engine;
  engine.set_data(words);
  auto generator = at::make_generator<at::CPUGeneratorImpl>();
  static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl())->set_engine(engine);
  return generator;
}

}  // namespace

at::Generator new_generator(int index) {
  return at::make_generator<SimGenerator>(index < 0 ? current_device() : index);
}

const at::Generator& default_generator(int index) {
  static const auto* generators = [] {
    auto* made = new std::vector<at::Generator>;
    for (int each = 0; each < settings().devices; ++each) made->push_back(new_generator(each));
    return made;
  }();
  return generators->at(static_cast<size_t>(index < 0 ? current_device() : index));
}

at::Generator draw(int index, const std::optional<at::Generator>& given) {
  at::Generator generator = given && given->defined() ? *given : default_generator(index);
  TORCH_CHECK(generator.device() == at_index(index), "expected a generator of ", at_index(index),
              " for random numbers there, but got one of ", generator.device());
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator_at(static_cast<SimGenerator*>(generator.unsafeGetGeneratorImpl())->next());
}

}  // namespace drivetrain::sim
