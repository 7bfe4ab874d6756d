// SPDX-License-Identifier: Apache-2.0
#include "digits.h"

#include <torch/torch.h>
#include <zlib.h>

#include <array>
#include <charconv>
#include <memory>
#include <stdexcept>
#include <vector>

namespace {

constexpr int kPixels = 28 * 28;
// Mean and deviation of MNIST's training images, on the scale 0 to 1.
constexpr double kMean = 0.1307, kDeviation = 0.3081;

// The values of one line. Throws if there are not 785 of them.
void parse_line(const std::string& path, size_t number, const char* text,
                std::vector<float>& pixels, std::vector<int64_t>& labels) {
  const char* end = text + std::char_traits<char>::length(text);
  const auto fail = [&] {
    throw std::runtime_error(
        path + ", line " + std::to_string(number) +
        ": expected 784 numbers from 0 to 255 and a digit, with commas between");
  };
  const auto next = [&] {
    int value = -1;
    const auto [stop, error] = std::from_chars(text, end, value);
    if (error != std::errc() || value < 0 || value > 255) fail();
    text = stop < end && *stop == ',' ? stop + 1 : stop;
    return value;
  };
  for (int i = 0; i < kPixels; ++i) pixels.push_back(static_cast<float>(next()) / 255);
  labels.push_back(next());
  if (labels.back() > 9 || (text != end && *text != '\n')) fail();
}

}  // namespace

Digits read_digits(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) throw std::runtime_error(path + ": cannot be opened; run ./dev setup to fetch it");
  std::vector<float> pixels;
  std::vector<int64_t> labels;
  std::array<char, 8192> line{};
  while (gzgets(file.get(), line.data(), line.size()) != nullptr)
    parse_line(path, labels.size() + 1, line.data(), pixels, labels);
  int error = Z_OK;
  const char* message = gzerror(file.get(), &error);
  if (error != Z_OK && error != Z_STREAM_END) throw std::runtime_error(path + ": " + message);
  if (labels.empty()) throw std::runtime_error(path + ": holds no digits");
  const auto count = static_cast<int64_t>(labels.size());
  return {(torch::tensor(pixels).view({count, 1, 28, 28}) - kMean) / kDeviation,
          torch::tensor(labels)};
}

Split split(const Digits& digits) {
  const auto is_test = torch::arange(digits.labels.size(0)).remainder(5).eq(4);
  const auto is_train = is_test.logical_not();
  return {{digits.images.index({is_train}), digits.labels.index({is_train})},
          {digits.images.index({is_test}), digits.labels.index({is_test})}};
}
