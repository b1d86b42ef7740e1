// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/preload/drift.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tersekv::llama::preload {
namespace {

constexpr int64_t kPatience = 4096;  // passes; a sequence that has ended is not waited for

const float* At(const float* base, ptrdiff_t bytes) {
  return reinterpret_cast<const float*>(reinterpret_cast<const char*>(base) + bytes);
}

}  // namespace

DriftProbe::DriftProbe(const KvCache* cache, int64_t period, double limit)
    : cache_(cache),
      period_(cache->config().spec.raw() ? 0 : period),
      limit_(limit > 0 ? limit : DefaultLimit(BitsSpec(cache->config()))) {}

double DriftProbe::DefaultLimit(double bits) { return std::clamp(4 * 1.4 * std::exp2(-std::floor(bits)), 0.05, 1.0); }

void DriftProbe::Forget() {
  seq_ = -1;
  query_row_ = -1;
  positions_.clear();
  k_.clear();
  v_.clear();
  rows_.clear();
  query_.clear();
}

void DriftProbe::Edited(int32_t seq) {
  if (seq < 0 || seq == seq_) Forget();
}

Status DriftProbe::BeginStep(std::span<const StepToken> tokens) {
  if (!active()) return {};
  ++passes_;
  rows_.clear();
  query_row_ = -1;
  query_.clear();
  if (seq_ >= 0 && passes_ - begun_ > kPatience) Forget();
  if (seq_ < 0 && passes_ >= next_ && !tokens.empty()) {
    const auto& layers = cache_->config().layers;
    layer_ = static_cast<int>(turn_ % static_cast<int64_t>(layers.size()));
    head_ = static_cast<int>(turn_ / static_cast<int64_t>(layers.size()) % shape().kv_heads);
    ++turn_;
    seq_ = tokens[static_cast<size_t>(turn_) % tokens.size()].seq;
    begun_ = passes_;
  }
  const bool complete = positions_.size() == kTokens;
  int64_t index = cache_->Length(seq_);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].seq != seq_) continue;
    if (complete) query_row_ = static_cast<int64_t>(i);
    if (index++ < cache_->config().spec.sink || positions_.size() == kTokens) continue;  // sinks stay raw
    rows_.push_back(i);
    positions_.push_back(tokens[i].pos);
  }
  return {};
}

void DriftProbe::WriteRows(int layer, Kv side, const float* rows, ptrdiff_t row_stride, int worker, int) {
  if (worker != 0 || layer != layer_ || seq_ < 0) return;
  const int dim = side == Kv::kK ? shape().head_dim_k : shape().head_dim_v;
  std::vector<float>& kept = side == Kv::kK ? k_ : v_;
  for (const size_t row : rows_) {
    const float* from = At(rows, static_cast<ptrdiff_t>(row) * row_stride) + head_ * dim;
    kept.insert(kept.end(), from, from + dim);
  }
}

void DriftProbe::Attend(int layer, const AttentionParams& params, const Queries& queries, int worker, int) {
  if (worker != 0 || layer != layer_ || query_row_ < 0) return;
  const int head = head_ * (queries.heads / shape().kv_heads);
  const float* from = At(queries.data, static_cast<ptrdiff_t>(query_row_) * queries.token_stride +
                                           static_cast<ptrdiff_t>(head) * queries.head_stride);
  query_.assign(from, from + shape().head_dim_k);
  scale_ = params.scale;
  softcap_ = params.softcap;
}

// Attention of the query over the kept tokens; strides in values.
std::vector<float> DriftProbe::Output(std::span<const float> k, std::span<const float> v, size_t stride_k,
                                      size_t stride_v) const {
  std::vector<double> weights(kTokens);
  for (size_t t = 0; t < kTokens; ++t) {
    double score = 0;
    for (size_t i = 0; i < query_.size(); ++i) score += static_cast<double>(query_[i]) * k[t * stride_k + i];
    score *= scale_;
    weights[t] = softcap_ > 0 ? softcap_ * std::tanh(score / softcap_) : score;
  }
  const double most = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& w : weights) sum += w = std::exp(w - most);
  std::vector<double> out(static_cast<size_t>(shape().head_dim_v));
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < out.size(); ++i) out[i] += weights[t] / sum * v[t * stride_v + i];
  }
  return {out.begin(), out.end()};
}

double DriftProbe::Compare(std::span<const float> k, std::span<const float> v) const {
  const auto dk = static_cast<size_t>(shape().head_dim_k), dv = static_cast<size_t>(shape().head_dim_v);
  const auto heads = static_cast<size_t>(shape().kv_heads), head = static_cast<size_t>(head_);
  const std::vector<float> raw = Output(k_, v_, dk, dv);
  const std::vector<float> packed = Output(k.subspan(head * dk), v.subspan(head * dv), heads * dk, heads * dv);
  double error = 0, norm = 0;
  for (size_t i = 0; i < dv; ++i) {
    error += (static_cast<double>(packed[i]) - raw[i]) * (static_cast<double>(packed[i]) - raw[i]);
    norm += static_cast<double>(raw[i]) * raw[i];
  }
  return norm > 0 ? std::sqrt(error / norm) : 0;
}

std::string DriftProbe::Ended() {
  if (query_.empty()) return "";
  const KvSpec& spec = cache_->config().spec;
  const std::span<const int32_t> all = cache_->Positions(seq_);
  const auto first = std::lower_bound(all.begin(), all.end(), positions_.front());
  const auto behind = static_cast<size_t>(all.end() - first);
  if (behind < kTokens || !std::equal(positions_.begin(), positions_.end(), first)) {
    Forget();
    return "";
  }
  // What packs by pages packs when the page's last token has left the window.
  if (behind <= kTokens + static_cast<size_t>(spec.win) + static_cast<size_t>(spec.page)) return "";
  const auto width_k = static_cast<size_t>(shape().kv_heads * shape().head_dim_k);
  const auto width_v = static_cast<size_t>(shape().kv_heads * shape().head_dim_v);
  std::vector<float> k(kTokens * width_k), v(kTokens * width_v);
  const int64_t begin = first - all.begin();
  Status s =
      cache_->ReadRows(seq_, layer_, Kv::kK, begin, kTokens, k.data(), static_cast<ptrdiff_t>(width_k * sizeof(float)));
  if (s.ok()) {
    s = cache_->ReadRows(seq_, layer_, Kv::kV, begin, kTokens, v.data(),
                         static_cast<ptrdiff_t>(width_v * sizeof(float)));
  }
  std::string warning;
  if (s.ok()) {
    report_.last = Compare(k, v);
    report_.largest = std::max(report_.largest, report_.last);
    ++report_.checks;
    if (!(report_.last <= limit_)) {
      ++report_.warnings;
      warning = fmt::format(
          "drift: attention over {} packed tokens of sequence {} from position {} differs by {:.3g} from that over "
          "their "
          "raw rows in layer {}, KV head {} (limit {:.3g}): take more bits, a profile or mean=page",
          kTokens, seq_, positions_.front(), report_.last, layer_, head_, limit_);
    }
  }
  Forget();
  next_ = passes_ + period_;
  return warning;
}

}  // namespace tersekv::llama::preload
