// SPDX-License-Identifier: Apache-2.0
// Records of q8_0, q5_0, q4_0 and iq4_nl are ggml's blocks to the byte, and decode to ggml's values.
#include "src/codec/ggml_blocks.h"

#include <ggml.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "src/base/abs_max.h"
#include "src/base/half.h"
#include "tests/reference/block_rows.h"

#define TERSEKV_INL_NAMESPACE plain
#include "src/codec/ggml_blocks-inl.h"

namespace tersekv {
namespace {

constexpr int kDim = 128;

template <class Tag>
std::vector<uint8_t> Records(Tag tag, const std::vector<float>& rows) {
  RecordShape shape;
  shape.d = kDim;
  const size_t n = rows.size() / kDim, bytes = Tag::Bytes(shape);
  std::vector<uint8_t> records(n * bytes);
  for (size_t i = 0; i < n; ++i) {
    RecordRow row;
    row.y = rows.data() + i * kDim;
    plain::EncodeRecord(tag, shape, row, records.data() + i * bytes);
  }
  return records;
}

template <class Tag>
void ExpectBytesOfGgml(Tag tag, ggml_type type) {
  const ggml_type_traits* traits = ggml_get_type_traits(type);
  ASSERT_EQ(traits->blck_size, Tag::kBlock);
  ASSERT_EQ(traits->type_size, Tag::kBlockBytes);
  size_t values = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const std::vector<float> rows = reference::BlockRows(seed, 2100, kDim);
    const int64_t n = static_cast<int64_t>(rows.size() / kDim);
    values += rows.size();
    const std::vector<uint8_t> records = Records(tag, rows);
    std::vector<uint8_t> expected(records.size());
    ASSERT_EQ(ggml_quantize_chunk(type, rows.data(), expected.data(), 0, n, kDim, nullptr), expected.size());
    for (size_t at = 0; at < records.size(); at += Tag::kBlockBytes) {
      ASSERT_EQ(std::memcmp(&records[at], &expected[at], Tag::kBlockBytes), 0)
          << traits->type_name << ": block " << at / Tag::kBlockBytes << " of seed " << seed;
    }

    std::vector<float> back(rows.size()), expected_back(rows.size());
    RecordShape shape;
    shape.d = kDim;
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      plain::DecodeRecord(tag, shape, &records[i * Tag::Bytes(shape)], &back[i * kDim]);
    }
    traits->to_float(records.data(), expected_back.data(), static_cast<int64_t>(rows.size()));
    for (size_t i = 0; i < rows.size(); ++i) {
      if (std::isnan(expected_back[i])) {  // a scale above f16's largest
        ASSERT_TRUE(std::isnan(back[i]));
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(back[i]), std::bit_cast<uint32_t>(expected_back[i])) << traits->type_name;
      }
    }
  }
  EXPECT_GE(values, 2'000'000u);
}

TEST(GgmlBlocks, Q8_0) { ExpectBytesOfGgml(Q8_0(), GGML_TYPE_Q8_0); }
TEST(GgmlBlocks, Q5_0) { ExpectBytesOfGgml(Q5_0(), GGML_TYPE_Q5_0); }
TEST(GgmlBlocks, Q4_0) { ExpectBytesOfGgml(Q4_0(), GGML_TYPE_Q4_0); }
TEST(GgmlBlocks, Iq4Nl) { ExpectBytesOfGgml(Iq4Nl(), GGML_TYPE_IQ4_NL); }

// Blocks that never came from rows: every pattern of a quant byte under every kind of scale.
template <class Tag>
void ExpectAnyBlockDecodes(Tag tag, ggml_type type) {
  RecordShape shape;
  shape.d = kDim;
  reference::Random random(9);
  std::vector<uint8_t> record(Tag::Bytes(shape));
  std::vector<float> back(kDim), expected(kDim);
  for (int i = 0; i < 20000; ++i) {
    for (uint8_t& byte : record) byte = static_cast<uint8_t>(random.Next());
    plain::DecodeRecord(tag, shape, record.data(), back.data());
    ggml_get_type_traits(type)->to_float(record.data(), expected.data(), kDim);
    for (size_t c = 0; c < back.size(); ++c) {
      if (!std::isnan(expected[c])) {
        ASSERT_EQ(back[c], expected[c]);
      } else {
        ASSERT_TRUE(std::isnan(back[c]));
      }
    }
  }
}

TEST(GgmlBlocks, AnyBlockDecodes) {
  ExpectAnyBlockDecodes(Q8_0(), GGML_TYPE_Q8_0);
  ExpectAnyBlockDecodes(Q5_0(), GGML_TYPE_Q5_0);
  ExpectAnyBlockDecodes(Q4_0(), GGML_TYPE_Q4_0);
  ExpectAnyBlockDecodes(Iq4Nl(), GGML_TYPE_IQ4_NL);
}

}  // namespace
}  // namespace tersekv
