// SPDX-License-Identifier: Apache-2.0
// Tokens of a sequence as rows again, wherever they are.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "src/base/half.h"
#include "src/cache/history.h"
#include "src/cache/unpack.h"

namespace tersekv {

Status History::ReadRows(int32_t id, int layer, Kv side, int64_t first, int64_t n, float* rows,
                         ptrdiff_t row_stride) const {
  const Sequence* sequence = Find(id);
  const int64_t length = sequence != nullptr ? sequence->tokens() : 0;
  if (layer < 0 || layer >= static_cast<int>(layouts_.size())) {
    return InvalidArgument(fmt::format("layer {} is not there: the cache has {}", layer, layouts_.size()));
  }
  if (first < 0 || n < 0 || first > length || n > length - first) {
    return InvalidArgument(
        fmt::format("tokens {} to {} of sequence {} are not there: it has {}", first, first + n, id, length));
  }
  if (n == 0) return {};
  const PageLayout& layout = layouts_[static_cast<size_t>(layer)];
  const LayerShape& shape = config_.layers[static_cast<size_t>(layer)];
  const Kv kept = layout.latent ? Kv::kK : side;  // V of a latent layer: the first channels of K
  const SideLayout& s = layout.side(kept);
  const SequenceLayer& stored = sequence->layers[static_cast<size_t>(layer)];
  const size_t d = static_cast<size_t>(side == Kv::kK ? shape.head_dim_k : shape.head_dim_v);
  const size_t width = RowWidth(shape, kept), packed_d = static_cast<size_t>(s.d);
  const int64_t sink = config_.spec.raw() ? 0 : config_.spec.sink;
  std::vector<float> row(3 * packed_d);
  std::vector<uint16_t> rotary(static_cast<size_t>(layout.rotary));
  std::vector<int64_t> orders;  // of the tokens
  for (int64_t order = 0, token = 0; token < first + n; ++order) {
    if (IsRemoved(sequence->positions[static_cast<size_t>(order)])) continue;
    if (token++ >= first) orders.push_back(order);
  }
  if (const int64_t gone = sink + static_cast<int64_t>(stored.gone) * layout.page_tokens;
      stored.gone > 0 && orders.front() < gone && orders.back() >= sink) {
    return InvalidArgument(
        fmt::format("layer {} has given back tokens behind its window, {} to {} of sequence {} among "
                    "them",
                    layer, first, first + n, id));
  }
  for (int head = 0; head < layout.kv_heads; ++head) {
    const HeadCodec codec = CodecOf(layer, kept, head, sequence->stats.get());
    for (int64_t i = 0; i < n; ++i) {
      const int64_t order = orders[static_cast<size_t>(i)];
      float* out =
          reinterpret_cast<float*>(reinterpret_cast<char*>(rows) + i * row_stride) + static_cast<size_t>(head) * d;
      const int kv = static_cast<int>(kept);
      if (!config_.spec.raw() && (order < sink || order >= sequence->packed_end)) {
        const uint16_t* half =
            order < sink ? stored.sinks[kv].get() + static_cast<size_t>(order) * width
                         : stored.ring[kv].get() + static_cast<size_t>(order % sequence->ring_capacity) * width;
        for (size_t c = 0; c < d; ++c) out[c] = F16ToF32(half[static_cast<size_t>(head) * d + c]);
        continue;
      }
      const int64_t packed = order - sink;
      const uint8_t* unit = stored.pages[static_cast<size_t>(packed / layout.page_tokens)].data() +
                            static_cast<size_t>(head) * layout.unit_bytes;
      const int slot = static_cast<int>(packed % layout.page_tokens);
      if (s.raw()) {
        UnpackRawToken(s, unit, slot, row.data());
        std::copy_n(row.begin(), d, out);
        continue;
      }
      UnpackRow(s, codec, *encoder_, unit, static_cast<size_t>(slot), row.data());
      std::copy_n(row.begin(), std::min(d, packed_d), out);
      if (d <= packed_d) continue;
      UnpackRotary(layout, unit, slot, rotary.data());
      for (size_t c = packed_d; c < d; ++c) out[c] = F16ToF32(rotary[c - packed_d]);
    }
  }
  return {};
}

}  // namespace tersekv
