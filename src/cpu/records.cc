// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/records.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "src/base/abs_max.h"
#include "src/base/half.h"
#include "src/base/lanes.h"
#include "src/bits/pack.h"
#include "src/bits/row_codes.h"
#include "src/codec/lloyd_max.h"
#include "src/codec/record_list.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/cpu/records.cc"
#include "hwy/foreach_target.h"
// after foreach_target.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
#undef TERSEKV_INL_NAMESPACE
#define TERSEKV_INL_NAMESPACE HWY_NAMESPACE
#include "src/codec/records-inl.h"
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#undef TERSEKV_INL_NAMESPACE
#define TERSEKV_INL_NAMESPACE scalar
#include "src/codec/records-inl.h"

namespace tersekv {

HWY_EXPORT(EncodeRecords);
HWY_EXPORT(DecodeRecords);

bool EncodeRecordsSimd(const HeadCodec& codec, const float* rows, size_t n, uint8_t* records, float* scratch) {
  return HWY_DYNAMIC_DISPATCH(EncodeRecords)(codec, rows, n, records, scratch);
}
void DecodeRecordsSimd(Family family, Kv side, const RecordShape& shape, const uint8_t* records, size_t begin,
                       size_t end, float* rows) {
  HWY_DYNAMIC_DISPATCH(DecodeRecords)(family, side, shape, records, begin, end, rows);
}
bool EncodeRecordsPlain(const HeadCodec& codec, const float* rows, size_t n, uint8_t* records, float* scratch) {
  return scalar::EncodeRecords(codec, rows, n, records, scratch);
}
void DecodeRecordsPlain(Family family, Kv side, const RecordShape& shape, const uint8_t* records, size_t begin,
                        size_t end, float* rows) {
  scalar::DecodeRecords(family, side, shape, records, begin, end, rows);
}

}  // namespace tersekv
#endif  // HWY_ONCE
