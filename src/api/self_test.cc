// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/api/vector_codec.h"
#include "src/base/check.h"
#include "src/cpu/encoder.h"
#include "src/cpu/simd.h"
#include "src/transform/sign_stream.h"
#include "tersekv/codec.h"

namespace tersekv {
namespace {

constexpr int kDim = 64;
constexpr size_t kRows = 128;   // a page of KIVI's keys
constexpr double kSlack = 1.2;  // over the expected error, for so few rows
constexpr double kRawError = 1e-5;

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

struct Coded {
  std::vector<uint8_t> records;
  std::vector<float> rows;
  bool operator==(const Coded&) const = default;
};

Result<Coded> Code(const KvSpec& spec, Kv side, const std::vector<float>& rows,
                   std::unique_ptr<const Encoder> encoder) {
  auto codec = MakeVectorCodec(spec, side, kDim, 0, 0, {}, std::move(encoder));
  if (!codec) return codec.error();
  Coded coded = {.records = std::vector<uint8_t>(kRows / (*codec)->record_rows() * (*codec)->record_bytes()),
                 .rows = std::vector<float>(rows.size())};
  TERSEKV_RETURN_IF_ERROR((*codec)->Encode(rows.data(), kRows, coded.records.data()));
  (*codec)->Decode(coded.records.data(), kRows, coded.rows.data());
  return coded;
}

Status TestCodec(const CodecInfo& info, Kv side, const std::vector<std::string>& targets,
                 const std::vector<float>& rows) {
  const auto spec = ParseSpec(info.spec);
  if (!spec) return spec.error();
  const auto plain = Code(*spec, side, rows, MakeScalarEncoder());
  if (!plain) return plain.error();
  double error = 0, power = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    error += std::pow(static_cast<double>(rows[i]) - static_cast<double>(plain->rows[i]), 2);
    power += std::pow(static_cast<double>(rows[i]), 2);
  }
  const double largest = kSlack * ExpectedDistortion(*spec, side, kDim).value_or(kRawError);
  if (!(error / power <= largest)) {
    return Internal(
        fmt::format("codec {}: relative error {:.3g}, must be below {:.3g}", info.spec, error / power, largest));
  }
  for (const std::string& target : targets) {
    ForceSimdTarget(target);
    const auto simd = Code(*spec, side, rows, MakeSimdEncoder());
    if (!simd) return simd.error();
    if (!(*simd == *plain)) {
      return Internal(fmt::format("codec {}: bytes or values on {} differ from the plain ones", info.spec, target));
    }
  }
  return {};
}

}  // namespace

Status SelfTestCodecs() {
  const std::vector<float> rows = Rows();
  const std::vector<std::string> targets = SimdTargets();
  Status status;
  for (const CodecInfo& info : ListCodecs()) {
    for (const Kv side : {Kv::kK, Kv::kV}) {
      if (status.ok()) status = TestCodec(info, side, targets, rows);
    }
  }
  ForceSimdTarget("");
  return status;
}

}  // namespace tersekv
