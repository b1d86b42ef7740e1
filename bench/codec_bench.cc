// SPDX-License-Identifier: Apache-2.0
// Encoding of rows: rows/s and GB/s of fp32 input, by width and head_dim. Codes and scales of the SIMD encoder must
// equal the scalar ones before anything is timed.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "bench/harness.h"
#include "src/codec/head_codec.h"
#include "src/codec/list.h"
#include "src/cpu/encoder.h"
#include "src/transform/rotation.h"

namespace tersekv::bench {
namespace {

constexpr size_t kRows = 1024;

// Keys of one head as the default specs code them: mean, channel scale, signs, Hadamard, unbiased norm.
class EncodeCase {
 public:
  EncodeCase(int bits, int d)
      : rotation_(RotationKind::kHadamard, 0, 0, 0, false, d),
        rows_(Normal(kRows * static_cast<size_t>(d), 1)),
        mean_(Normal(static_cast<size_t>(d), 2)),
        inv_scale_(static_cast<size_t>(d)) {
    for (size_t c = 0; c < inv_scale_.size(); ++c) inv_scale_[c] = 0.5f + static_cast<float>(c % 8) / 8;
    codec_.d = d;
    codec_.bits = bits;
    codec_.norm = NormMode::kUnbiased;
    codec_.rotation = &rotation_;
    codec_.mean = mean_.data();
    codec_.inv_scale = inv_scale_.data();
    codec_.sqrt_d = std::sqrt(static_cast<float>(d));
  }

  struct Output {
    std::vector<uint8_t> codes;
    std::vector<uint16_t> scales;
    std::vector<float> scratch;
    bool operator==(const Output& other) const { return codes == other.codes && scales == other.scales; }
  };
  Output MakeOutput(const Encoder& encoder) const {
    return {std::vector<uint8_t>(rows_.size()), std::vector<uint16_t>(kRows),
            std::vector<float>(encoder.ScratchFloats(codec_.d))};
  }
  void Encode(const Encoder& encoder, Output* out) const {
    const bool finite =
        encoder.Encode(codec_, rows_.data(), kRows, out->codes.data(), out->scales.data(), out->scratch.data());
    if (!finite) Wrong("the encoder calls finite rows not finite");
  }

 private:
  RotationOp rotation_;
  std::vector<float> rows_, mean_, inv_scale_;
  HeadCodec codec_;
};

void Encode(benchmark::State& state, int bits, int d) {
  const EncodeCase work(bits, d);
  const std::unique_ptr<const Encoder> simd = MakeSimdEncoder(), scalar = MakeScalarEncoder();
  EncodeCase::Output out = work.MakeOutput(*simd), expected = work.MakeOutput(*scalar);
  work.Encode(*simd, &out);
  work.Encode(*scalar, &expected);
  if (!(out == expected)) Wrong(fmt::format("{} bits, head_dim {}: SIMD and scalar bytes differ", bits, d));
  for (auto _ : state) {
    work.Encode(*simd, &out);
    benchmark::ClobberMemory();
  }
  const auto rows = static_cast<double>(state.iterations()) * kRows;
  state.counters["rows/s"] = benchmark::Counter(rows, benchmark::Counter::kIsRate);
  state.counters["GB/s"] = benchmark::Counter(rows * d * sizeof(float) / 1e9, benchmark::Counter::kIsRate);
}

}  // namespace
}  // namespace tersekv::bench

int main(int argc, char** argv) {
  for (const int d : {64, 128}) {
    tersekv::ForEachLloydMaxBits([d](auto bits) {
      benchmark::RegisterBenchmark(fmt::format("encode/bits:{}/d:{}", int{bits}, d).c_str(), tersekv::bench::Encode,
                                   int{bits}, d);
    });
  }
  return tersekv::bench::RunAll(argc, argv);
}
