// SPDX-License-Identifier: Apache-2.0
// Record codecs compiled for every SIMD target write the same bytes and read the same values as compiled plainly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "src/base/abs_max.h"
#include "src/base/half.h"
#include "src/codec/fp4.h"
#include "src/codec/fp8.h"
#include "src/codec/ggml_blocks.h"
#include "src/cpu/simd.h"
#include "tersekv/codec.h"
#include "tests/reference/block_rows.h"
#include "tests/reference/record_rows.h"

#ifndef TERSEKV_RECORD_TARGETS_TEST_ONCE  // foreach_target.h includes this file once a target
#define TERSEKV_RECORD_TARGETS_TEST_ONCE

namespace tersekv {

// Appends the records of rows [n, d] under one codec, and what they decode to.
template <class Tag, class Encode, class Decode>
void AppendCodec(Tag tag, const std::vector<float>& rows, int d, Encode encode, Decode decode,
                 std::vector<uint8_t>* out) {
  const std::vector<uint8_t> records = reference::EncodeRows(tag, rows, d, encode);
  const std::vector<float> back = reference::DecodeRows(tag, records, d, decode);
  out->insert(out->end(), records.begin(), records.end());
  const size_t at = out->size();
  out->resize(at + back.size() * sizeof(float));
  std::memcpy(out->data() + at, back.data(), back.size() * sizeof(float));
}

template <class Encode, class Decode>
void AppendCodecs(const std::vector<float>& rows, int d, Encode encode, Decode decode, std::vector<uint8_t>* out) {
  AppendCodec(Fp8(), rows, d, encode, decode, out);
  AppendCodec(Mxfp4(), rows, d, encode, decode, out);
  AppendCodec(Nvfp4(), rows, d, encode, decode, out);
  AppendCodec(Q8_0(), rows, d, encode, decode, out);
  AppendCodec(Q5_0(), rows, d, encode, decode, out);
  AppendCodec(Q4_0(), rows, d, encode, decode, out);
  AppendCodec(Iq4Nl(), rows, d, encode, decode, out);
}

}  // namespace tersekv
#endif  // TERSEKV_RECORD_TARGETS_TEST_ONCE

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/codec/record_targets_test.cc"
#include "hwy/foreach_target.h"
// after foreach_target.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
#undef TERSEKV_INL_NAMESPACE
#define TERSEKV_INL_NAMESPACE HWY_NAMESPACE
#include "src/codec/fp4-inl.h"
#include "src/codec/fp8-inl.h"
#include "src/codec/ggml_blocks-inl.h"

namespace tersekv {
namespace HWY_NAMESPACE {

void AllCodecs(const std::vector<float>* rows, int d, std::vector<uint8_t>* out) {
  AppendCodecs(
      *rows, d, [](auto&&... a) { EncodeRecord(a...); }, [](auto&&... a) { DecodeRecord(a...); }, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace tersekv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#undef TERSEKV_INL_NAMESPACE
#define TERSEKV_INL_NAMESPACE plain
#include "src/codec/fp4-inl.h"
#include "src/codec/fp8-inl.h"
#include "src/codec/ggml_blocks-inl.h"

namespace tersekv {
namespace {

HWY_EXPORT(AllCodecs);

TEST(RecordTargets, SameBytesAndValues) {
  const std::vector<std::string> targets = SimdTargets();
  for (const int d : {64, 128, 256}) {
    const std::vector<float> rows = reference::BlockRows(static_cast<uint64_t>(d) + 1, (1u << 20) / d, d);
    std::vector<uint8_t> expected;
    AppendCodecs(
        rows, d, [](auto&&... a) { plain::EncodeRecord(a...); }, [](auto&&... a) { plain::DecodeRecord(a...); },
        &expected);
    for (const std::string& target : targets) {
      ForceSimdTarget(target);
      std::vector<uint8_t> bytes;
      HWY_DYNAMIC_DISPATCH(AllCodecs)(&rows, d, &bytes);
      EXPECT_TRUE(bytes == expected) << target << ", d " << d;
    }
  }
  ForceSimdTarget("");
}

}  // namespace
}  // namespace tersekv
#endif  // HWY_ONCE
