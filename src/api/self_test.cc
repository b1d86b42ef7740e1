// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>

#include "src/base/check.h"
#include "src/codec/head_codec.h"
#include "src/codec/list.h"
#include "src/cpu/encoder.h"
#include "src/cpu/simd.h"
#include "src/transform/sign_stream.h"
#include "tersekv/codec.h"

namespace tersekv {
namespace {

constexpr int kDim = 128;
constexpr size_t kRows = 64;
// Upper bound of |x - decoded|^2 / |x|^2 by bits, a little above the theory at d = 128.
constexpr double kLargestError[] = {0, 0, 0.16, 0.045, 0.0125, 0.0034, 0.00090, 0.00026, 0.00007};

// Rows whose coordinates are sums of four uniform values: near enough to Gaussian, the same everywhere.
std::vector<float> Rows() {
  std::vector<float> rows(kRows * kDim);
  for (size_t i = 0; i < rows.size(); ++i) {
    float sum = 0;
    for (uint64_t j = 0; j < 4; ++j) sum += static_cast<float>(Mix(4 * i + j) >> 40) * 0x1p-24f - 0.5f;
    rows[i] = sum;
  }
  return rows;
}

Status TestWidth(int bits, const std::string& target, const std::vector<float>& rows) {
  const KvSpec spec =
      DefaultsOf(Family::kLloydMax, static_cast<float>(bits), Family::kLloydMax, static_cast<float>(bits), 0);
  Result<std::unique_ptr<VectorCodec>> codec = VectorCodec::Create(spec, Kv::kV, kDim);
  if (!codec) return codec.error();
  std::vector<uint8_t> records(kRows * (*codec)->record_bytes());
  TERSEKV_RETURN_IF_ERROR((*codec)->Encode(rows.data(), kRows, records.data()));
  std::vector<float> back(rows.size());
  (*codec)->Decode(records.data(), kRows, back.data());
  double error = 0, power = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    error += std::pow(static_cast<double>(rows[i]) - static_cast<double>(back[i]), 2);
    power += std::pow(static_cast<double>(rows[i]), 2);
  }
  if (!(error / power <= kLargestError[bits])) {
    return Internal(fmt::format("codec of {} bits on {}: relative error {:.3g}, must be below {:.3g}", bits, target,
                                error / power, kLargestError[bits]));
  }
  // The same rows, one at a time.
  const RotationOp rotation(RotationKind::kHadamard, spec.seed, 0, 0, true, kDim);
  HeadCodec plain;
  plain.d = kDim;
  plain.bits = bits;
  plain.norm = spec.v.norm;
  plain.rotation = &rotation;
  plain.sqrt_d = std::sqrt(static_cast<float>(kDim));
  std::vector<uint8_t> codes[2];
  std::vector<uint16_t> scales[2];
  int i = 0;
  for (const auto& encoder : {MakeScalarEncoder(), MakeSimdEncoder()}) {
    codes[i].resize(rows.size());
    scales[i].resize(kRows);
    std::vector<float> scratch(encoder->ScratchFloats(kDim));
    encoder->Encode(plain, rows.data(), kRows, codes[i].data(), scales[i].data(), scratch.data());
    ++i;
  }
  if (codes[0] != codes[1] || scales[0] != scales[1]) {
    return Internal(fmt::format("codec of {} bits: bytes on {} differ from the plain ones", bits, target));
  }
  return {};
}

}  // namespace

Status SelfTestCodecs() {
  const std::vector<float> rows = Rows();
  Status status;
  for (const std::string& target : SimdTargets()) {
    ForceSimdTarget(target);
    for (const int bits : kLloydMaxBits) {
      if (status.ok()) status = TestWidth(bits, target, rows);
    }
  }
  ForceSimdTarget("");
  return status;
}

}  // namespace tersekv
