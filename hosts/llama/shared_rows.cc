// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/shared_rows.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace tersekv::llama {
namespace {

template <class T>
T* At(T* base, ptrdiff_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(base) + bytes);
}

}  // namespace

// All that the pass needs is allocated here: the rest runs on the engine's threads.
void SharedRows::Start(const CacheConfig& config, std::span<const uint32_t> rows) {
  active_ = !rows.empty() && rows.back() + 1 != rows.size();
  if (!active_) return;
  rows_.assign(rows.begin(), rows.end());
  shapes_ = config.layers;
  size_t in = 0, out = 0;
  for (const LayerShape& s : shapes_) {
    const auto heads = static_cast<size_t>(std::max(s.heads, s.kv_heads));
    in = std::max(in, heads * static_cast<size_t>(std::max(s.head_dim_k, s.head_dim_v)));
    out = std::max(out, heads * static_cast<size_t>(s.head_dim_v));
  }
  in_.resize(static_cast<size_t>(config.max_workers));
  for (std::vector<float>& buffer : in_) buffer.resize(in * rows_.size());
  out_.resize(out * rows_.size());
  finished_ = 0;
}

size_t SharedRows::bytes() const {
  size_t floats = out_.capacity();
  for (const std::vector<float>& buffer : in_) floats += buffer.capacity();
  return floats * sizeof(float);
}

const float* SharedRows::Spread(const float* rows, ptrdiff_t stride, size_t width, int worker) {
  float* to = in_[static_cast<size_t>(worker)].data();
  for (const uint32_t row : rows_) {
    std::memcpy(to, At(rows, static_cast<ptrdiff_t>(row) * stride), width * sizeof(float));
    to += width;
  }
  return in_[static_cast<size_t>(worker)].data();
}

Queries SharedRows::Spread(const Queries& given, int layer, int worker) {
  const LayerShape& shape = shapes_[static_cast<size_t>(layer)];
  const auto dk = static_cast<size_t>(shape.head_dim_k), dv = static_cast<size_t>(shape.head_dim_v);
  float* to = in_[static_cast<size_t>(worker)].data();
  for (const uint32_t row : rows_) {
    for (int h = 0; h < given.heads; ++h) {
      std::memcpy(to, At(given.data, static_cast<ptrdiff_t>(row) * given.token_stride + h * given.head_stride),
                  dk * sizeof(float));
      to += dk;
    }
  }
  Queries spread;
  spread.heads = given.heads;
  spread.data = in_[static_cast<size_t>(worker)].data();
  spread.head_stride = static_cast<ptrdiff_t>(dk * sizeof(float));
  spread.token_stride = given.heads * spread.head_stride;
  spread.out = out_.data();
  spread.out_head_stride = static_cast<ptrdiff_t>(dv * sizeof(float));
  spread.out_token_stride = given.heads * spread.out_head_stride;
  return spread;
}

void SharedRows::Gather(const Queries& given, int layer, int workers) {
  if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 < workers) return;
  finished_.store(0, std::memory_order_relaxed);  // the next layer's attention begins behind a barrier of the engine
  const auto dv = static_cast<size_t>(shapes_[static_cast<size_t>(layer)].head_dim_v);
  for (size_t t = 0; t < rows_.size(); ++t) {
    if (t > 0 && rows_[t] == rows_[t - 1]) continue;
    for (int h = 0; h < given.heads; ++h) {
      std::memcpy(At(given.out, static_cast<ptrdiff_t>(rows_[t]) * given.out_token_stride + h * given.out_head_stride),
                  out_.data() + (t * static_cast<size_t>(given.heads) + static_cast<size_t>(h)) * dv,
                  dv * sizeof(float));
    }
  }
}

}  // namespace tersekv::llama
