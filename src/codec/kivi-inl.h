// SPDX-License-Identifier: Apache-2.0
// Rows <-> KIVI records. No include guard: compiled once per SIMD target, into the namespace that the includer names in
// TERSEKV_INL_NAMESPACE; the includer has included <algorithm>, <bit>, <cstring>, half.h, row_codes.h and kivi.h. Loops
// over channels are plain: compilers vectorise them, and each value goes through the same IEEE operations either way.

namespace tersekv {
namespace TERSEKV_INL_NAMESPACE {

inline constexpr size_t kKiviBlock = 64;  // channels of a page at a time

// Saturates, so that a decoded value is finite.
inline uint16_t KiviF16(float v) {
  const float largest = 65504.0f;
  return F32ToF16(v > largest ? largest : v < -largest ? -largest : v);
}

// What decoders read back, and what a value is divided by: 1 with a largest code of 0 when the scale is 0.
struct KiviAffine {
  KiviAffine(float lo, float hi, float levels, uint8_t* scale_at, uint8_t* zero_at) {
    const uint16_t scale = KiviF16((hi - lo) / levels);
    const uint16_t z = KiviF16(lo + 0.0f);  // -0 becomes +0: the order of a minimum doesn't show
    std::memcpy(scale_at, &scale, 2);
    std::memcpy(zero_at, &z, 2);
    const float s = F16ToF32(scale);
    zero = F16ToF32(z);
    divisor = s > 0.0f ? s : 1.0f;
    largest = s > 0.0f ? levels : 0.0f;
  }
  float zero, divisor, largest;
};

// Clipping before rounding is the same as after it; adding 2^23 rounds to an integer, to even on a tie.
inline uint8_t KiviCode(float x, float zero, float divisor, float largest) {
  float v = (x - zero) / divisor;
  v = v > 0.0f ? v : 0.0f;
  v = v < largest ? v : largest;
  return static_cast<uint8_t>(std::bit_cast<uint32_t>(v + 0x1p23f));
}

inline float KiviHalf(const uint8_t* at, size_t i) {
  uint16_t half;
  std::memcpy(&half, at + 2 * i, 2);
  return F16ToF32(half);
}

// rows: [page_tokens, d]. record: KiviKeys::Bytes.
inline void EncodePage(KiviKeys, const RecordShape& shape, const float* rows, uint8_t* record) {
  const size_t d = static_cast<size_t>(shape.d), tokens = static_cast<size_t>(shape.page_tokens);
  const float levels = static_cast<float>((1 << static_cast<int>(shape.bits)) - 1);
  uint8_t* scales = record + KiviKeys::ScalesOffset(shape);
  uint8_t* zeros = scales + 2 * d;
  WithBits(static_cast<int>(shape.bits), [&](auto bits) {
    constexpr size_t kBits = decltype(bits)::value;
    for (size_t first = 0; first < d; first += kKiviBlock) {
      const size_t width = std::min(kKiviBlock, d - first);
      float lo[kKiviBlock], hi[kKiviBlock], zero[kKiviBlock], divisor[kKiviBlock], largest[kKiviBlock];
      for (size_t c = 0; c < width; ++c) lo[c] = hi[c] = rows[first + c];
      for (size_t t = 1; t < tokens; ++t) {
        const float* row = rows + t * d + first;
        for (size_t c = 0; c < width; ++c) {
          lo[c] = row[c] < lo[c] ? row[c] : lo[c];
          hi[c] = row[c] > hi[c] ? row[c] : hi[c];
        }
      }
      for (size_t c = 0; c < width; ++c) {
        const KiviAffine affine(lo[c], hi[c], levels, scales + 2 * (first + c), zeros + 2 * (first + c));
        zero[c] = affine.zero;
        divisor[c] = affine.divisor;
        largest[c] = affine.largest;
      }
      for (size_t t = 0; t < tokens; ++t) {
        const float* row = rows + t * d + first;
        uint8_t codes[kKiviBlock];
        for (size_t c = 0; c < width; ++c) codes[c] = KiviCode(row[c], zero[c], divisor[c], largest[c]);
        PackRow<kBits>(codes, width, record + (t * d + first) * kBits / 8);
      }
    }
  });
}

// rows: [end - begin, d]
inline void DecodePage(KiviKeys, const RecordShape& shape, const uint8_t* record, size_t begin, size_t end,
                       float* rows) {
  const size_t d = static_cast<size_t>(shape.d);
  const uint8_t* scales = record + KiviKeys::ScalesOffset(shape);
  const uint8_t* zeros = scales + 2 * d;
  WithBits(static_cast<int>(shape.bits), [&](auto bits) {
    constexpr size_t kBits = decltype(bits)::value;
    for (size_t first = 0; first < d; first += kKiviBlock) {
      const size_t width = std::min(kKiviBlock, d - first);
      float scale[kKiviBlock], zero[kKiviBlock], codes[kKiviBlock];
      for (size_t c = 0; c < width; ++c) {
        scale[c] = KiviHalf(scales, first + c);
        zero[c] = KiviHalf(zeros, first + c);
      }
      for (size_t t = begin; t < end; ++t) {
        float* row = rows + (t - begin) * d + first;
        UnpackRow<kBits>(record + (t * d + first) * kBits / 8, width, codes);
        for (size_t c = 0; c < width; ++c) row[c] = zero[c] + scale[c] * codes[c];
      }
    }
  });
}

// record: KiviValues::Bytes.
inline void EncodeRecord(KiviValues, const RecordShape& shape, const RecordRow& row, uint8_t* record) {
  const size_t d = static_cast<size_t>(shape.d), group = static_cast<size_t>(KiviValues::Group(shape));
  const float levels = static_cast<float>((1 << static_cast<int>(shape.bits)) - 1);
  const float* y = row.y;
  uint8_t* codes = reinterpret_cast<uint8_t*>(row.scratch);
  uint8_t* scales = record + KiviRowBytes(shape);
  uint8_t* zeros = scales + 2 * static_cast<size_t>(KiviValues::Groups(shape));
  for (size_t first = 0, g = 0; first < d; first += group, ++g) {
    const size_t last = std::min(first + group, d);
    float lo[8], hi[8];  // of channels first + 8k + j; groups and d are multiples of 8
    for (size_t j = 0; j < 8; ++j) lo[j] = hi[j] = y[first + j];
    for (size_t c = first; c < last; c += 8) {
      for (size_t j = 0; j < 8; ++j) {
        const float v = y[c + j];
        lo[j] = v < lo[j] ? v : lo[j];
        hi[j] = v > hi[j] ? v : hi[j];
      }
    }
    for (size_t j = 1; j < 8; ++j) {
      lo[0] = lo[j] < lo[0] ? lo[j] : lo[0];
      hi[0] = hi[j] > hi[0] ? hi[j] : hi[0];
    }
    const KiviAffine affine(lo[0], hi[0], levels, scales + 2 * g, zeros + 2 * g);
    for (size_t c = first; c < last; ++c) codes[c] = KiviCode(y[c], affine.zero, affine.divisor, affine.largest);
  }
  WithBits(static_cast<int>(shape.bits), [&](auto bits) { PackRow<decltype(bits)::value>(codes, d, record); });
}

// y: [d]
inline void DecodeRecord(KiviValues, const RecordShape& shape, const uint8_t* record, float* y) {
  const size_t d = static_cast<size_t>(shape.d), group = static_cast<size_t>(KiviValues::Group(shape));
  const uint8_t* scales = record + KiviRowBytes(shape);
  const uint8_t* zeros = scales + 2 * static_cast<size_t>(KiviValues::Groups(shape));
  WithBits(static_cast<int>(shape.bits), [&](auto bits) { UnpackRow<decltype(bits)::value>(record, d, y); });
  for (size_t first = 0, g = 0; first < d; first += group, ++g) {
    const float scale = KiviHalf(scales, g), zero = KiviHalf(zeros, g);
    for (size_t c = first; c < std::min(first + group, d); ++c) y[c] = zero + scale * y[c];
  }
}

}  // namespace TERSEKV_INL_NAMESPACE
}  // namespace tersekv
