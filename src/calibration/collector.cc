// SPDX-License-Identifier: Apache-2.0
#include "src/calibration/collector.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/base/check.h"

namespace tersekv {
namespace {

const float* RowAt(const float* data, ptrdiff_t stride, size_t row) {
  return reinterpret_cast<const float*>(reinterpret_cast<const char*>(data) + stride * static_cast<ptrdiff_t>(row));
}

void AddLead(const float* k, size_t d, LeadSums* lead) {
  ++lead->count;
  for (size_t c = 0; c < d; ++c) {
    const double value = static_cast<double>(k[c]);
    lead->sum[c] += value;
    lead->square += value * value;
  }
}

// Softmax of one query over the keys it sees; adds sum p(1-p) and sum p^2.
void AddSample(const AttentionParams& params, const float* q, int query_head, int heads, size_t d, int64_t position,
               HeadSums* head) {
  const int64_t first = params.window > 0 ? std::max<int64_t>(0, position - params.window + 1) : 0;
  const double slope =
      params.max_alibi_bias > 0 ? static_cast<double>(AlibiSlope(query_head, heads, params.max_alibi_bias)) : 0;
  std::vector<double>& weights = head->weights;
  weights.clear();
  for (int64_t t = first; t <= position; ++t) {
    const float* k = head->keys.data() + static_cast<size_t>(t) * d;
    double score = 0;
    for (size_t c = 0; c < d; ++c) score += static_cast<double>(q[c]) * static_cast<double>(k[c]);
    score *= static_cast<double>(params.scale);
    const double cap = static_cast<double>(params.softcap);
    if (cap > 0) score = cap * std::tanh(score / cap);
    weights.push_back(score + slope * static_cast<double>(t - position));
  }
  double largest = *std::max_element(weights.begin(), weights.end());
  if (params.sinks != nullptr) largest = std::max(largest, static_cast<double>(params.sinks[query_head]));
  double sum = 0, square = 0;
  for (double& w : weights) {
    w = std::exp(w - largest);
    sum += w;
    square += w * w;
  }
  double total = sum;
  if (params.sinks != nullptr) total += std::exp(static_cast<double>(params.sinks[query_head]) - largest);
  ++head->samples;
  head->spread += sum / total - square / (total * total);
  head->peak += square / (total * total);
}

}  // namespace

HeadSums::HeadSums(const LayerShape& shape)
    : k(shape.head_dim_k),
      v(shape.head_dim_v),
      lead(kLeadPositions),
      query_square(static_cast<size_t>(shape.head_dim_k)) {
  for (LeadSums& l : lead) l.sum.resize(static_cast<size_t>(shape.head_dim_k));
}

void HeadSums::Merge(const HeadSums& other) {
  k.Merge(other.k);
  v.Merge(other.v);
  for (size_t p = 0; p < lead.size(); ++p) {
    lead[p].count += other.lead[p].count;
    lead[p].square += other.lead[p].square;
    for (size_t c = 0; c < lead[p].sum.size(); ++c) lead[p].sum[c] += other.lead[p].sum[c];
  }
  queries += other.queries;
  for (size_t c = 0; c < query_square.size(); ++c) query_square[c] += other.query_square[c];
  samples += other.samples;
  spread += other.spread;
  peak += other.peak;
  if (other.queries > 0) attention_scale = other.attention_scale;
}

Result<std::unique_ptr<StatisticsCollector>> StatisticsCollector::Create(const std::vector<LayerShape>& layers) {
  if (layers.empty()) return InvalidArgument("statistics need at least one layer");
  for (size_t l = 0; l < layers.size(); ++l) {
    const LayerShape& s = layers[l];
    if (s.kv_heads < 1 || s.heads < s.kv_heads || s.heads % s.kv_heads != 0 || s.head_dim_k < 1 || s.head_dim_v < 1) {
      return InvalidArgument(
          fmt::format("layer {} has {} query heads over {} KV heads of {} / {}: the first must be a "
                      "multiple of the second, dimensions positive",
                      l, s.heads, s.kv_heads, s.head_dim_k, s.head_dim_v));
    }
  }
  return std::unique_ptr<StatisticsCollector>(std::make_unique<Collector>(layers));
}

Collector::Collector(const std::vector<LayerShape>& layers) : layers_(layers) {
  for (const LayerShape& shape : layers_) heads_.emplace_back(static_cast<size_t>(shape.kv_heads), HeadSums(shape));
}

Status Collector::BeginStep(std::span<const StepToken> tokens) {
  if (tokens.empty()) return InvalidArgument("a step needs at least one token");
  const int64_t first = tokens[0].pos;
  if (first != 0 && first != end_) {
    return InvalidArgument(fmt::format(
        "statistics: position {} follows {}; contexts run one after the other from position 0", first, end_ - 1));
  }
  for (size_t t = 1; t < tokens.size(); ++t) {
    if (tokens[t].pos != tokens[t - 1].pos + 1 || tokens[t].seq != tokens[0].seq) {
      return InvalidArgument("statistics: the tokens of a step must be neighbours of one sequence");
    }
  }
  if (first == 0) {
    for (auto& layer : heads_) {
      for (HeadSums& head : layer) head.keys.clear();
    }
  }
  begin_ = first;
  end_ = first + static_cast<int64_t>(tokens.size());
  tokens_ += static_cast<int64_t>(tokens.size());
  return {};
}

void Collector::WriteRows(int layer, Kv side, const float* rows, ptrdiff_t row_stride, int worker, int workers) {
  const LayerShape& shape = layers_[static_cast<size_t>(layer)];
  const size_t d = static_cast<size_t>(side == Kv::kK ? shape.head_dim_k : shape.head_dim_v);
  for (int h = worker; h < shape.kv_heads; h += workers) {
    HeadSums& head = heads_[static_cast<size_t>(layer)][static_cast<size_t>(h)];
    for (int64_t position = begin_; position < end_; ++position) {
      const float* row = RowAt(rows, row_stride, static_cast<size_t>(position - begin_)) + static_cast<size_t>(h) * d;
      if (side == Kv::kV) {
        if (position >= kLeadPositions) head.v.Add(row);
        continue;
      }
      if (position >= kLeadPositions) {
        head.k.Add(row);
      } else {
        AddLead(row, d, &head.lead[static_cast<size_t>(position)]);
      }
      if (position < kSampleTokens) head.keys.insert(head.keys.end(), row, row + d);
    }
  }
}

void Collector::Attend(int layer, const AttentionParams& params, const Queries& queries, int worker, int workers) {
  const LayerShape& shape = layers_[static_cast<size_t>(layer)];
  TERSEKV_CHECK(queries.heads == shape.heads);
  const size_t d = static_cast<size_t>(shape.head_dim_k);
  const int group = shape.heads / shape.kv_heads;
  for (int h = worker; h < shape.kv_heads; h += workers) {
    HeadSums& head = heads_[static_cast<size_t>(layer)][static_cast<size_t>(h)];
    head.attention_scale = params.scale;
    for (int64_t position = std::max<int64_t>(begin_, kLeadPositions); position < end_; ++position) {
      const float* token = RowAt(queries.data, queries.token_stride, static_cast<size_t>(position - begin_));
      const bool sampled = position >= kSampleFrom && position < kSampleTokens && position % kSampleEvery == 0;
      for (int g = 0; g < group; ++g) {
        const float* q = RowAt(token, queries.head_stride, static_cast<size_t>(h * group + g));
        ++head.queries;
        for (size_t c = 0; c < d; ++c) head.query_square[c] += static_cast<double>(q[c]) * static_cast<double>(q[c]);
        if (sampled) AddSample(params, q, h * group + g, shape.heads, d, position, &head);
      }
    }
  }
}

Status Collector::Merge(const StatisticsCollector& other) {
  const auto* from = dynamic_cast<const Collector*>(&other);
  if (from == nullptr || from == this || from->layers_ != layers_) {
    return InvalidArgument("statistics of other layers, or the same ones, cannot be merged");
  }
  for (size_t l = 0; l < heads_.size(); ++l) {
    for (size_t h = 0; h < heads_[l].size(); ++h) heads_[l][h].Merge(from->heads_[l][h]);
  }
  tokens_ += from->tokens_;
  return {};
}

}  // namespace tersekv
