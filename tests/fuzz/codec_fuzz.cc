// SPDX-License-Identifier: Apache-2.0
// Codecs. Byte 0: which of ListCodecs; 1: rotation and norm; 2: side, statistics, page; 3: head_dim; 4: group of KIVI
// and number of rows; then the bits of rows and of records, repeated as often as needed.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tersekv/codec.h"
#include "tests/fuzz/fuzz.h"

namespace tersekv::fuzz {
namespace {

struct Choice {
  KvSpec spec;
  Kv side = Kv::kK;
  int head_dim = 0;
  RowStats stats;
  size_t records = 1;
};

// Bytes of `from` over and over.
void Repeat(std::span<const uint8_t> from, void* to, size_t bytes) {
  uint8_t* out = static_cast<uint8_t*>(to);
  for (size_t i = 0; i < bytes; ++i) out[i] = from.empty() ? 0 : from[i % from.size()];
}

Choice Choose(Input* in) {
  static const std::vector<CodecInfo> codecs = ListCodecs();
  Choice choice;
  KvSpec& spec = choice.spec;
  spec = ParseSpec(codecs[in->Byte() % codecs.size()].spec).value();
  const uint8_t coding = in->Byte(), options = in->Byte(), dim = in->Byte(), counts = in->Byte();
  choice.side = options & 1 ? Kv::kV : Kv::kK;
  if (coding & 1) spec.rotation = static_cast<Rotation>(coding >> 1 & 3);
  if (coding & 8) spec.k.norm = spec.v.norm = static_cast<NormMode>(coding >> 4 & 3);
  if (options & 2) spec.page = options & 4 ? 128 : 64;
  if (options & 8) spec.mean = options & 16 ? MeanMode::kPage : MeanMode::kStats;
  if (spec.k.family == Family::kKivi && (counts & 0x80)) spec.group = 16 + 8 * (counts >> 3 & 15);
  static constexpr int kDims[] = {32, 64, 128, 32, 256, 512, 1024, 64};
  choice.head_dim = dim < 240 ? kDims[dim % 8] : (dim - 240) * 48 - 48;  // odd ones: -48 ... 672
  const bool matrix = spec.rotation == Rotation::kHaar || spec.k.family == Family::kProd;
  if (matrix) choice.head_dim = std::min(choice.head_dim, 128);  // a larger one takes long to make
  if (spec.k.family == Family::kTrellis) choice.head_dim = std::min(choice.head_dim, 128);  // and its search long
  choice.records = static_cast<size_t>(counts & 7) % 3 + (counts & 7 ? 1 : 0);
  const size_t d = static_cast<size_t>(std::max(choice.head_dim, 0));
  if (options & 32) {
    for (size_t c = 0; c < d; ++c) choice.stats.mean.push_back(static_cast<float>(c % 7) - 3.0f);
  }
  if (options & 64) {
    for (size_t c = 0; c < d; ++c) choice.stats.scale.push_back(std::exp2(static_cast<float>(c % 9) - 4.0f));
  }
  return choice;
}

// Made once where no statistics are given: matrices take long.
std::shared_ptr<const VectorCodec> CodecOf(const Choice& choice) {
  const auto make = [&] {
    Result<std::unique_ptr<VectorCodec>> codec =
        VectorCodec::Create(choice.spec, choice.side, choice.head_dim, 1, 2, choice.stats);
    TERSEKV_CHECK(codec || !codec.error().message().empty());
    return codec ? std::shared_ptr<const VectorCodec>(std::move(*codec)) : nullptr;
  };
  if (!choice.stats.mean.empty() || !choice.stats.scale.empty()) return make();
  static std::map<std::tuple<std::string, Kv, int>, std::shared_ptr<const VectorCodec>> made;
  if (!CheckSupported(choice.spec).ok()) return make();
  const auto [at, fresh] = made.try_emplace({FormatSpec(choice.spec), choice.side, choice.head_dim});
  if (fresh) at->second = make();
  return at->second;
}

// Decoded values of the records of ordinary rows are finite and within a multiple of the row's norm.
void CheckDecoded(const Choice& choice, const float* row, const float* decoded, size_t d) {
  double norm = 0, peak = 0;
  const auto mean = [&](size_t c) { return choice.stats.mean.empty() ? 0.0 : double{choice.stats.mean[c]}; };
  const auto scale = [&](size_t c) { return choice.stats.scale.empty() ? 1.0 : double{choice.stats.scale[c]}; };
  for (size_t c = 0; c < d; ++c) {
    const double x = (static_cast<double>(row[c]) - mean(c)) / scale(c);
    norm += x * x;
    peak = std::max(peak, std::fabs(x));
  }
  norm = std::sqrt(norm);
  if (peak > 1e4) return;  // f16 scales may overflow
  for (size_t c = 0; c < d; ++c) {
    TERSEKV_CHECK(std::isfinite(decoded[c]));
    TERSEKV_CHECK(std::fabs(static_cast<double>(decoded[c]) - mean(c)) <= scale(c) * (16 * norm + 1e-6));
  }
}

}  // namespace

void FuzzCodec(std::span<const uint8_t> data) {
  Input in(data);
  const Choice choice = Choose(&in);
  const std::shared_ptr<const VectorCodec> codec = CodecOf(choice);
  if (!codec) return;
  TERSEKV_CHECK(choice.head_dim > 0);
  const size_t d = static_cast<size_t>(choice.head_dim), n = choice.records * codec->record_rows();
  std::vector<float> rows(n * d), decoded(n * d, -1.0f);
  std::vector<uint8_t> records(choice.records * codec->record_bytes(), 0xa5);
  Repeat(in.rest(), rows.data(), rows.size() * sizeof(float));

  const Status encoded = codec->Encode(rows.data(), n, records.data());
  if (encoded.ok()) {
    codec->Decode(records.data(), n, decoded.data());
    for (size_t t = 0; t < n; ++t) {
      if (codec->record_rows() == 1) CheckDecoded(choice, &rows[t * d], &decoded[t * d], d);
    }
    std::vector<uint8_t> again(records.size());
    TERSEKV_CHECK(codec->Encode(rows.data(), n, again.data()).ok() && again == records);
  } else {
    TERSEKV_CHECK(encoded.code() == StatusCode::kDataLoss && !encoded.message().empty());
    if (std::any_of(rows.begin(), rows.end(), [](float v) { return !std::isfinite(v); })) {
      TERSEKV_CHECK(std::all_of(records.begin(), records.end(), [](uint8_t byte) { return byte == 0xa5; }));
    }
  }
  if (codec->record_rows() > 1 && n > 0) TERSEKV_CHECK(!codec->Encode(rows.data(), n - 1, records.data()).ok());

  Repeat(in.rest(), records.data(), records.size());  // any bytes decode to something
  codec->Decode(records.data(), n, decoded.data());
}

}  // namespace tersekv::fuzz
