// SPDX-License-Identifier: Apache-2.0
#include "src/api/vector_codec.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "src/api/shapes.h"
#include "src/base/check.h"
#include "src/base/half.h"
#include "src/bits/pack.h"
#include "src/codec/head_codec.h"
#include "src/codec/list.h"
#include "src/codec/lloyd_max.h"
#include "src/codec/page_layout.h"
#include "src/codec/record_list.h"
#include "src/cpu/encoder.h"
#include "src/transform/rotation.h"

namespace tersekv {
namespace {

constexpr size_t kLanes = 16;
constexpr size_t kScale = 2;  // bytes of a bf16

// <a, b> in fp32: 16 running sums, added up as a tree.
float Dot(const float* a, const float* b, size_t d) {
  float sum[kLanes] = {};
  size_t c = 0;
  for (; c + kLanes <= d; c += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) sum[j] += a[c + j] * b[c + j];
  }
  for (; c < d; ++c) sum[c % kLanes] += a[c] * b[c];
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t j = 0; j < half; ++j) sum[j] += sum[j + half];
  }
  return sum[0];
}

Status CheckFinite(const float* rows, size_t n, size_t d) {
  for (size_t i = 0; i < n * d; ++i) {
    if (!std::isfinite(rows[i])) {
      return DataLoss(fmt::format("row {}, channel {} is {}: only finite values can be stored", i / d, i % d, rows[i]));
    }
  }
  return {};
}

class RawVectorCodec : public VectorCodec {
 public:
  RawVectorCodec(Family family, int d) : family_(family), d_(static_cast<size_t>(d)) {}
  int head_dim() const override { return static_cast<int>(d_); }
  size_t record_bytes() const override { return d_ * value_bytes(); }
  Status Encode(const float* rows, size_t n, uint8_t* records) const override {
    TERSEKV_RETURN_IF_ERROR(CheckFinite(rows, n, d_));
    for (size_t i = 0; i < n * d_ && family_ != Family::kF32; ++i) {
      if (!(std::fabs(rows[i]) < OverflowsAt(family_))) {
        return DataLoss(
            fmt::format("row {}, channel {} is {}: too large for 16 bits; use f32", i / d_, i % d_, rows[i]));
      }
    }
    for (size_t i = 0; i < n * d_; ++i) {
      const uint16_t half = family_ == Family::kF16 ? F32ToF16(rows[i]) : F32ToBF16(rows[i]);
      std::memcpy(records + i * value_bytes(), family_ == Family::kF32 ? static_cast<const void*>(rows + i) : &half,
                  value_bytes());
    }
    return {};
  }
  void Decode(const uint8_t* records, size_t n, float* out) const override {
    for (size_t i = 0; i < n * d_; ++i) {
      uint16_t half = 0;
      std::memcpy(family_ == Family::kF32 ? static_cast<void*>(out + i) : &half, records + i * value_bytes(),
                  value_bytes());
      if (family_ != Family::kF32) out[i] = family_ == Family::kF16 ? F16ToF32(half) : BF16ToF32(half);
    }
  }
  void InnerProducts(const uint8_t* records, size_t n, const float* query, float* out) const override {
    std::vector<float> row(d_);
    for (size_t i = 0; i < n; ++i) {
      Decode(records + i * record_bytes(), 1, row.data());
      out[i] = Dot(query, row.data(), d_);
    }
  }

 private:
  size_t value_bytes() const { return family_ == Family::kF32 ? 4 : 2; }
  Family family_;
  size_t d_;
};

// What codes and records share: the head's codec with its statistics.
class PackedVectorCodec : public VectorCodec {
 public:
  PackedVectorCodec(const KvSpec& spec, Kv side, int d, int layer, int kv_head, RowStats stats,
                    std::unique_ptr<const Encoder> encoder)
      : stats_(std::move(stats)), encoder_(std::move(encoder)) {
    const RotationKind kind = RotationKindOf(spec.rotation);
    rotation_ = RotationOp(kind, spec.seed, layer, kv_head, side == Kv::kV, d,
                           kind == RotationKind::kHaar ? HaarMatrix(spec.seed, d) : nullptr);
    for (const float v : stats_.scale) inv_scale_.push_back(1.0f / v);
    const SideSpec& s = side == Kv::kK ? spec.k : spec.v;
    codec_.family = s.family;
    codec_.side = side;
    codec_.d = d;
    codec_.bits = static_cast<int>(s.bits);
    codec_.norm = s.norm;
    codec_.sqrt_d = std::sqrt(static_cast<float>(d));
    codec_.rotation = &rotation_;
    codec_.mean = stats_.mean.empty() ? nullptr : stats_.mean.data();
    codec_.scale = stats_.scale.empty() ? nullptr : stats_.scale.data();
    codec_.inv_scale = inv_scale_.empty() ? nullptr : inv_scale_.data();
    if (s.family == Family::kProd) projection_ = ProjectionOf(spec, d);
    codec_.record = RecordShapeOf(spec, side, d);
    codec_.record.projection = projection_.get();
  }

  int head_dim() const override { return codec_.d; }
  Status Encode(const float* rows, size_t n, uint8_t* records) const override {
    TERSEKV_RETURN_IF_ERROR(CheckFinite(rows, n, static_cast<size_t>(codec_.d)));
    if (n % record_rows() != 0) {
      return InvalidArgument(fmt::format("{} rows: this codec takes multiples of {}", n, record_rows()));
    }
    if (!EncodeFinite(rows, n, records)) {
      return DataLoss("the norm of a row overflows fp32: scale the input down");
    }
    return {};
  }

 protected:
  // What decoded rows x = mean + scale R^T y are multiplied with: <query, x> = constant + <query', y>.
  struct TransformedQuery {
    std::vector<float> y;
    float constant = 0;
  };
  TransformedQuery Transform(const float* query) const {
    const size_t d = static_cast<size_t>(codec_.d);
    TransformedQuery q = {.y = {query, query + d}};
    if (codec_.mean != nullptr) {
      double sum = 0;
      for (size_t c = 0; c < d; ++c) sum += static_cast<double>(query[c]) * static_cast<double>(codec_.mean[c]);
      q.constant = static_cast<float>(sum);
    }
    for (size_t c = 0; c < d && codec_.scale != nullptr; ++c) q.y[c] *= codec_.scale[c];
    std::vector<float> scratch(d);
    rotation_.Apply(q.y.data(), scratch.data());
    return q;
  }
  const Encoder& encoder() const { return *encoder_; }
  const HeadCodec& codec() const { return codec_; }

 private:
  virtual bool EncodeFinite(const float* rows, size_t n, uint8_t* records) const = 0;

  RowStats stats_;
  std::unique_ptr<const Encoder> encoder_;
  RotationOp rotation_;
  std::vector<float> inv_scale_;
  std::shared_ptr<const RotationOp> projection_;
  HeadCodec codec_;
};

class CodesVectorCodec : public PackedVectorCodec {
 public:
  using PackedVectorCodec::PackedVectorCodec;
  size_t record_bytes() const override { return PackedBytes(static_cast<size_t>(codec().d), codec().bits) + kScale; }

  void Decode(const uint8_t* records, size_t n, float* out) const override {
    const size_t d = static_cast<size_t>(codec().d);
    const LevelTable& table = LevelsOf(codec().bits);
    std::vector<uint8_t> codes(d);
    std::vector<float> scratch(d);
    for (size_t i = 0; i < n; ++i) {
      const uint8_t* record = records + i * record_bytes();
      float* row = out + i * d;
      uint16_t scale;
      UnpackBits(record, d, codec().bits, codes.data());
      std::memcpy(&scale, record + record_bytes() - kScale, 2);
      for (size_t c = 0; c < d; ++c) row[c] = BF16ToF32(scale) * static_cast<float>(table.level[codes[c]]);
      RestoreRow(codec(), row, scratch.data());
    }
  }

  void InnerProducts(const uint8_t* records, size_t n, const float* query, float* out) const override {
    const size_t d = static_cast<size_t>(codec().d);
    const LevelTable& table = LevelsOf(codec().bits);
    float level[256] = {};
    for (int i = 0; i < table.count; ++i) level[i] = static_cast<float>(table.level[i]);
    const TransformedQuery q = Transform(query);
    std::vector<uint8_t> codes(d);
    std::vector<float> row(d);
    for (size_t i = 0; i < n; ++i) {
      const uint8_t* record = records + i * record_bytes();
      uint16_t scale;
      UnpackBits(record, d, codec().bits, codes.data());
      std::memcpy(&scale, record + record_bytes() - kScale, 2);
      for (size_t c = 0; c < d; ++c) row[c] = level[codes[c]];
      out[i] = q.constant + BF16ToF32(scale) * Dot(q.y.data(), row.data(), d);
    }
  }

 private:
  bool EncodeFinite(const float* rows, size_t n, uint8_t* records) const override {
    const size_t d = static_cast<size_t>(codec().d);
    std::vector<uint8_t> codes(n * d);
    std::vector<uint16_t> scales(n);
    std::vector<float> scratch(encoder().ScratchFloats(codec().d));
    if (!encoder().Encode(codec(), rows, n, codes.data(), scales.data(), scratch.data())) return false;
    for (size_t i = 0; i < n; ++i) {
      uint8_t* record = records + i * record_bytes();
      PackBits(&codes[i * d], d, codec().bits, record);
      std::memcpy(record + record_bytes() - kScale, &scales[i], 2);
    }
    return true;
  }
};

class RecordVectorCodec : public PackedVectorCodec {
 public:
  RecordVectorCodec(const KvSpec& spec, Kv side, int d, int layer, int kv_head, RowStats stats,
                    std::unique_ptr<const Encoder> encoder)
      : PackedVectorCodec(spec, side, d, layer, kv_head, std::move(stats), std::move(encoder)) {
    WithRecordTag(codec().family, side, [this](auto tag) {
      bytes_ = tag.Bytes(codec().record);
      if (tag.kPage) rows_ = static_cast<size_t>(codec().record.page_tokens);
    });
  }
  size_t record_rows() const override { return rows_; }
  size_t record_bytes() const override { return bytes_; }

  void Decode(const uint8_t* records, size_t n, float* out) const override {
    const size_t d = static_cast<size_t>(codec().d);
    std::vector<float> scratch(d);
    for (size_t t = 0; t < n; t += rows_) {
      encoder().DecodeRecords(codec(), records + t / rows_ * bytes_, 0, std::min(rows_, n - t), out + t * d);
    }
    for (size_t t = 0; t < n; ++t) RestoreRow(codec(), out + t * d, scratch.data());
  }

  void InnerProducts(const uint8_t* records, size_t n, const float* query, float* out) const override {
    const size_t d = static_cast<size_t>(codec().d);
    const TransformedQuery q = Transform(query);
    std::vector<float> rows(rows_ * d);
    for (size_t t = 0; t < n; t += rows_) {
      const size_t here = std::min(rows_, n - t);
      encoder().DecodeRecords(codec(), records + t / rows_ * bytes_, 0, here, rows.data());
      for (size_t i = 0; i < here; ++i) out[t + i] = q.constant + Dot(q.y.data(), &rows[i * d], d);
    }
  }

 private:
  bool EncodeFinite(const float* rows, size_t n, uint8_t* records) const override {
    std::vector<float> scratch(RecordScratchFloats(codec().family, codec().side, codec().record));
    const size_t d = static_cast<size_t>(codec().d);
    for (size_t t = 0; t < n; t += rows_) {
      if (!encoder().EncodeRecords(codec(), rows + t * d, rows_, records + t / rows_ * bytes_, scratch.data())) {
        return false;
      }
    }
    return true;
  }

  size_t rows_ = 1, bytes_ = 0;
};

}  // namespace

size_t RecordScaleBytes(const KvSpec& spec, Kv side) {
  const Family family = side == Kv::kK ? spec.k.family : spec.v.family;
  if (spec.raw()) return 0;
  // codes | scale, docs/formats.md; the other records hold scales of other types or in other places.
  const bool ends = StorageOf(family) == Storage::kCodes || family == Family::kTrellis || family == Family::kVq2;
  return ends ? kScale : 0;
}

Result<std::unique_ptr<VectorCodec>> VectorCodec::Create(const KvSpec& spec, Kv side, int head_dim, int layer,
                                                         int kv_head, RowStats stats) {
  return MakeVectorCodec(spec, side, head_dim, layer, kv_head, std::move(stats), MakeSimdEncoder());
}

Result<std::unique_ptr<VectorCodec>> MakeVectorCodec(const KvSpec& spec, Kv side, int head_dim, int layer, int kv_head,
                                                     RowStats stats, std::unique_ptr<const Encoder> encoder) {
  TERSEKV_RETURN_IF_ERROR(CheckSupported(spec));
  LayerShape shape;
  shape.heads = shape.kv_heads = 1;
  shape.head_dim_k = shape.head_dim_v = head_dim;
  TERSEKV_RETURN_IF_ERROR(CheckShape(spec, shape, layer));
  for (const std::vector<float>* v : {&stats.mean, &stats.scale}) {
    if (!v->empty() && v->size() != static_cast<size_t>(head_dim)) {
      return InvalidArgument(fmt::format("statistics have {} channels, the head has {}", v->size(), head_dim));
    }
  }
  for (const float m : stats.mean) {
    if (!std::isfinite(m)) return InvalidArgument(fmt::format("a channel mean is {}: all must be finite", m));
  }
  for (const float s : stats.scale) {
    if (!(s > 0) || !std::isfinite(s))
      return InvalidArgument(fmt::format("a channel scale is {}: all must be above 0", s));
  }
  if (spec.raw()) return std::unique_ptr<VectorCodec>(std::make_unique<RawVectorCodec>(spec.k.family, head_dim));
  if (spec.mean == MeanMode::kPage) {
    return Unsupported(
        fmt::format("'{}': mean=page needs a page of rows and has no record of one; use a cache, or "
                    "mean=stats with the mean given",
                    FormatSpec(spec)));
  }
  const Family family = side == Kv::kK ? spec.k.family : spec.v.family;
  if (StorageOf(family) == Storage::kCodes) {
    return std::unique_ptr<VectorCodec>(
        std::make_unique<CodesVectorCodec>(spec, side, head_dim, layer, kv_head, std::move(stats), std::move(encoder)));
  }
  return std::unique_ptr<VectorCodec>(
      std::make_unique<RecordVectorCodec>(spec, side, head_dim, layer, kv_head, std::move(stats), std::move(encoder)));
}

}  // namespace tersekv
