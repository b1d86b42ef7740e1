// SPDX-License-Identifier: Apache-2.0
// The JSON that says what a session file holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tersekv/cache.h"
#include "tersekv/status.h"

namespace tersekv {

inline constexpr uint64_t kSessionVersion = 2;
// Of all layers together, given back ones included: what reading takes for tables before a page is there.
inline constexpr int64_t kMostSessionPages = int64_t{1} << 24;
inline constexpr size_t kMostSessionHeader = size_t{16} << 20;  // bytes

struct SessionHeader {
  struct Layer {
    size_t statistics[6] = {};  // values: mean, scale, 1 / scale of K, then V
    size_t sink_bytes[2] = {}, ring_bytes[2] = {};
    size_t pages = 0, gone = 0, page_bytes = 0;
  };
  std::string tersekv_version, model_name, model_fingerprint, spec;
  std::vector<LayerShape> layers;
  std::vector<LayerBits> layer_bits;
  std::vector<int32_t> windows;
  int64_t places = 0, tokens = 0, packed_end = 0, raw_begin = 0, ring_capacity = 0;
  int32_t first_layer = 0;
  std::vector<Layer> sections;
};

// kInvalidArgument: a text is not UTF-8. kUnsupported: more pages or layers than a file holds.
Result<std::string> FormatSessionHeader(const SessionHeader& header);
// kDataLoss: a field is missing, of another type or out of range.
Result<SessionHeader> ParseSessionHeader(std::string_view json, const std::string& name);

}  // namespace tersekv
