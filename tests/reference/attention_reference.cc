// SPDX-License-Identifier: Apache-2.0
#include "tests/reference/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

namespace tersekv::reference {
namespace {

double Bf16(double x) {
  const float f = static_cast<float>(x);
  int exponent;
  std::frexp(f, &exponent);
  const double unit = std::ldexp(1.0, exponent - 8);
  return std::nearbyint(static_cast<double>(f) / unit) * unit;
}

// Row of `heads` vectors through one codec each: what comes back from its records.
std::vector<float> RoundTrip(const std::vector<std::shared_ptr<const VectorCodec>>& codecs, size_t d,
                             const std::vector<float>& row) {
  std::vector<float> out(row.size());
  for (size_t h = 0; h < codecs.size(); ++h) {
    std::vector<uint8_t> record(codecs[h]->record_bytes());
    if (!codecs[h]->Encode(row.data() + h * d, 1, record.data()).ok()) std::abort();
    codecs[h]->Decode(record.data(), 1, out.data() + h * d);
  }
  return out;
}

std::shared_ptr<const VectorCodec> MakeCodec(const KvSpec& spec, int side, int d, int layer, int head, RowStats stats) {
  auto codec = VectorCodec::Create(spec, side == 0 ? Kv::kK : Kv::kV, d, layer, head, std::move(stats));
  if (!codec) std::abort();
  return std::shared_ptr<const VectorCodec>(std::move(*codec));
}

}  // namespace

double AlibiSlope(int head, int heads, double max_bias) {
  int power = 1;
  while (2 * power <= heads) power *= 2;
  if (head < power) return std::pow(2.0, -max_bias * (head + 1) / power);
  return std::pow(2.0, -max_bias * (2 * (head - power) + 1) / (2 * power));
}

Sequence::Sequence(const CacheConfig& config, int layer)
    : spec_(config.spec),
      shape_(config.layers[static_cast<size_t>(layer)]),
      layer_(layer),
      needs_stats_(config.statistics.empty() && (spec_.mean == MeanMode::kStats || spec_.scale)),
      rollback_(config.rollback) {
  const size_t l = static_cast<size_t>(layer);
  if (!config.layer_bits.empty()) {
    spec_.k.bits = static_cast<float>(config.layer_bits[l].k);
    spec_.v.bits = static_cast<float>(config.layer_bits[l].v);
  }
  if (needs_stats_) return;
  std::vector<RowStats> stats[2];
  for (int side = 0; side < 2; ++side) {
    stats[side].resize(static_cast<size_t>(shape_.kv_heads));
    if (config.statistics.empty()) continue;
    const LayerStats& given = config.statistics[l];
    const std::vector<float>&mean = side == 0 ? given.k_mean : given.v_mean,
          &scale = side == 0 ? given.k_scale : given.v_scale;
    for (int h = 0; h < shape_.kv_heads; ++h) {
      const auto part = [&](const std::vector<float>& all) {
        const auto at = all.begin() + h * Dim(side);
        return std::vector<float>(at, at + Dim(side));
      };
      stats[side][static_cast<size_t>(h)].mean = part(mean);
      if (spec_.scale) stats[side][static_cast<size_t>(h)].scale = part(scale);
    }
  }
  MakeCodecs(stats);
}

void Sequence::MakeCodecs(const std::vector<RowStats> (&stats)[2]) {
  KvSpec spec = spec_;
  const bool page_mean = spec.mean == MeanMode::kPage;
  if (page_mean) spec.mean = MeanMode::kOff, spec.scale = false;
  for (int side = 0; side < 2; ++side) {
    codecs_[side].clear();
    page_stats_[side] = stats[side];
    for (int h = 0; h < shape_.kv_heads; ++h) {
      codecs_[side].push_back(
          MakeCodec(spec, side, Dim(side), layer_, h, page_mean ? RowStats() : stats[side][static_cast<size_t>(h)]));
    }
  }
}

void Sequence::Append(int32_t position, const float* k, const float* v) {
  Token token;
  token.position = position;
  const float* rows[] = {k, v};
  const KvSpec f16 = ParseSpec("f16").value();
  for (int side = 0; side < 2; ++side) {
    const size_t d = static_cast<size_t>(Dim(side));
    const std::vector<float> row(rows[side], rows[side] + d * static_cast<size_t>(shape_.kv_heads));
    const std::vector<std::shared_ptr<const VectorCodec>> half(static_cast<size_t>(shape_.kv_heads),
                                                               MakeCodec(f16, side, Dim(side), 0, 0, {}));
    token.stored[side] = spec_.raw() ? row : RoundTrip(half, d, row);
  }
  tokens_.push_back(std::move(token));
  if (needs_stats_ && measured_from_ == kNever && length() == spec_.sink + kMeasured) {
    Measure();
    measured_from_ = length() - 1;
  }
}

void Sequence::Measure() {
  std::vector<RowStats> stats[2];
  for (int side = 0; side < 2; ++side) {
    const size_t d = static_cast<size_t>(Dim(side));
    for (size_t h = 0; h < static_cast<size_t>(shape_.kv_heads); ++h) {
      RowStats& s = stats[side].emplace_back();
      std::vector<double> root_std(d);
      for (size_t c = 0; c < d; ++c) {
        const auto at = [&](int t) {
          return static_cast<double>(tokens_[static_cast<size_t>(spec_.sink + t)].stored[side][h * d + c]);
        };
        double sum = 0, squares = 0;
        for (int t = 0; t < kMeasured; ++t) sum += at(t);
        s.mean.push_back(static_cast<float>(sum / kMeasured));
        for (int t = 0; t < kMeasured; ++t)
          squares += (at(t) - static_cast<double>(s.mean[c])) * (at(t) - static_cast<double>(s.mean[c]));
        root_std[c] = std::sqrt(std::sqrt(squares / kMeasured));
      }
      if (side == 1 || !spec_.scale) continue;
      const double largest = *std::max_element(root_std.begin(), root_std.end());
      double logs = 0;
      for (double& v : root_std) {
        v = largest > 0 ? std::max(v, 1e-3 * largest) : 1.0;
        logs += std::log(v);
      }
      const double geometric_mean = std::exp(logs / static_cast<double>(d));
      for (const double v : root_std) s.scale.push_back(static_cast<float>(v / geometric_mean));
    }
  }
  MakeCodecs(stats);
}

void Sequence::Truncate(int64_t tokens) {
  const int64_t end = length();
  if (tokens >= end) return;
  const bool measured = !needs_stats_ || measured_from_ != kNever;
  if (WholePages() && measured) {
    const int64_t cut = std::min(std::max(PageStart(end - spec_.win), raw_begin_), tokens);
    for (int64_t j = std::max<int64_t>(PageStart(cut), spec_.sink); j < cut; ++j) {
      (void)Row(j, 0, true), (void)Row(j, 1, true);
    }
    tokens_.resize(static_cast<size_t>(tokens));
    return TruncatePages(end);
  }
  const bool early = rollback_ > 0 && needs_stats_ && end < spec_.sink + kMeasured + rollback_;
  const int64_t kept_raw = (measured && !early ? spec_.win : std::max(spec_.win, kMeasured)) + rollback_;
  const bool unmeasured = needs_stats_ && tokens < spec_.sink + kMeasured;
  bool any_packed = false;
  for (int64_t j = spec_.sink; j < tokens; ++j) {
    Token& token = tokens_[static_cast<size_t>(j)];
    token.lost |= end - j > kept_raw;
    any_packed |= measured && (token.lost || (!unmeasured && tokens - j > spec_.win));
  }
  tokens_.resize(static_cast<size_t>(tokens));
  if (!needs_stats_ || !measured) return;
  const bool remains = any_packed || tokens >= spec_.sink + kMeasured;
  measured_from_ = remains ? 0 : kNever;
  if (!remains) {
    for (Token& token : tokens_) token.decoded[0].clear(), token.decoded[1].clear();
  }
}

bool Sequence::IsPacked(int64_t j, int64_t order) const {
  if (j < spec_.sink || !Measured(order)) return false;
  if (WholePages()) return j < std::max(PageStart(order + 1 - spec_.win), raw_begin_);
  return order - j >= spec_.win || tokens_[static_cast<size_t>(j)].lost;
}

// Tokens are already cut; there were `end`.
void Sequence::TruncatePages(int64_t end) {
  const int64_t tokens = length(), sink = spec_.sink;
  const bool early = rollback_ > 0 && needs_stats_ && end < sink + kMeasured + rollback_;
  const int64_t rows = std::max<int64_t>(spec_.win + spec_.page, early ? kMeasured : 0) + rollback_;
  const int64_t first_raw = PageStart(std::max({raw_begin_, end - rows, sink}) + spec_.page - 1);
  const int64_t natural = needs_stats_ && tokens < sink + kMeasured ? sink : PageStart(tokens - spec_.win);
  const int64_t were_packed = std::min(std::max(PageStart(end - spec_.win), raw_begin_), tokens);
  const int64_t packed_end = std::min(were_packed, std::max(natural, first_raw));
  if (packed_end <= sink) {
    if (needs_stats_) measured_from_ = tokens >= sink + kMeasured ? 0 : kNever;
    raw_begin_ = 0;
    for (Token& token : tokens_) token.decoded[0].clear(), token.decoded[1].clear();
    return;
  }
  if (needs_stats_) measured_from_ = 0;
  const int64_t begin = PageStart(packed_end);
  const int64_t kept = PageStart(std::max({raw_begin_, std::min(end - rows, tokens), sink}) + spec_.page - 1);
  raw_begin_ = std::min(kept, begin);
  if (begin <= sink && needs_stats_) measured_from_ = kNever;
  const KvSpec f16 = ParseSpec("f16").value();
  for (int64_t j = begin; j < tokens; ++j) {
    Token& token = tokens_[static_cast<size_t>(j)];
    for (int side = 0; side < 2; ++side) {
      const std::vector<std::shared_ptr<const VectorCodec>> half(static_cast<size_t>(shape_.kv_heads),
                                                                 MakeCodec(f16, side, Dim(side), 0, 0, {}));
      if (kept > begin && j < packed_end) {
        token.stored[side] = RoundTrip(half, static_cast<size_t>(Dim(side)), token.decoded[side]);
      }
      token.decoded[side].clear();
    }
  }
}

void Sequence::DecodePage(int64_t first, int side) {
  const size_t d = static_cast<size_t>(Dim(side)), n = static_cast<size_t>(spec_.page);
  for (size_t t = 0; t < n; ++t) tokens_[static_cast<size_t>(first) + t].decoded[side].resize(d * codecs_[side].size());
  for (size_t h = 0; h < codecs_[side].size(); ++h) {
    const VectorCodec& codec = *codecs_[side][h];
    const RowStats& stats = page_stats_[side][h];
    std::vector<float> rows(n * d), mean(d, 0.0f);
    for (size_t c = 0; c < d; ++c) {
      double sum = 0;
      for (size_t t = 0; t < n; ++t) {
        float x = tokens_[static_cast<size_t>(first) + t].stored[side][h * d + c];
        if (spec_.mean == MeanMode::kPage && !stats.mean.empty()) x -= stats.mean[c];
        if (spec_.mean == MeanMode::kPage && !stats.scale.empty()) x *= 1.0f / stats.scale[c];
        rows[t * d + c] = x;
        sum += static_cast<double>(x);
      }
      if (spec_.mean != MeanMode::kPage) continue;
      mean[c] = static_cast<float>(Bf16(sum / static_cast<double>(n)));
      for (size_t t = 0; t < n; ++t) rows[t * d + c] -= mean[c];
    }
    std::vector<uint8_t> records(n / codec.record_rows() * codec.record_bytes());
    if (!codec.Encode(rows.data(), n, records.data()).ok()) std::abort();
    codec.Decode(records.data(), n, rows.data());
    for (size_t t = 0; t < n; ++t) {
      for (size_t c = 0; c < d; ++c) {
        float x = rows[t * d + c] + mean[c];
        if (spec_.mean == MeanMode::kPage && !stats.scale.empty()) x *= stats.scale[c];
        if (spec_.mean == MeanMode::kPage && !stats.mean.empty()) x += stats.mean[c];
        tokens_[static_cast<size_t>(first) + t].decoded[side][h * d + c] = x;
      }
    }
  }
}

const std::vector<float>& Sequence::Row(int64_t j, int side, bool packed) {
  Token& token = tokens_[static_cast<size_t>(j)];
  if (!packed) return token.stored[side];
  if (token.decoded[side].empty() && (codecs_[side][0]->record_rows() > 1 || spec_.mean == MeanMode::kPage)) {
    DecodePage(PageStart(j), side);
  } else if (token.decoded[side].empty()) {
    token.decoded[side] = RoundTrip(codecs_[side], static_cast<size_t>(Dim(side)), token.stored[side]);
  }
  return token.decoded[side];
}

Answer Sequence::Attend(int64_t order, int head, const float* q, const AttentionParams& params) {
  const size_t dk = static_cast<size_t>(shape_.head_dim_k), dv = static_cast<size_t>(shape_.head_dim_v);
  const size_t kv_head = static_cast<size_t>(head / (shape_.heads / shape_.kv_heads));
  const int64_t position = tokens_[static_cast<size_t>(order)].position;
  std::vector<int64_t> seen;
  std::vector<double> scores;
  double largest = params.sinks != nullptr ? static_cast<double>(params.sinks[head]) : -INFINITY;
  for (int64_t j = 0; j <= order; ++j) {
    const int64_t distance = tokens_[static_cast<size_t>(j)].position - position;
    if (tokens_[static_cast<size_t>(j)].removed) continue;
    if (params.window > 0 && -distance >= params.window) continue;
    const float* k = Row(j, 0, IsPacked(j, order)).data() + kv_head * dk;
    double score = 0;
    for (size_t c = 0; c < dk; ++c) score += static_cast<double>(q[c]) * static_cast<double>(k[c]);
    score *= static_cast<double>(params.scale);
    const double cap = static_cast<double>(params.softcap);
    if (cap > 0) score = cap * std::tanh(score / cap);
    if (params.max_alibi_bias > 0) {
      score +=
          AlibiSlope(head, shape_.heads, static_cast<double>(params.max_alibi_bias)) * static_cast<double>(distance);
    }
    seen.push_back(j);
    scores.push_back(score);
    largest = std::max(largest, score);
  }
  Answer answer;
  answer.out.resize(dv);
  double sum = params.sinks != nullptr ? std::exp(static_cast<double>(params.sinks[head]) - largest) : 0;
  for (size_t i = 0; i < seen.size(); ++i) {
    const double p = std::exp(scores[i] - largest);
    const float* v = Row(seen[i], 1, IsPacked(seen[i], order)).data() + kv_head * dv;
    for (size_t c = 0; c < dv; ++c) answer.out[c] += p * static_cast<double>(v[c]);
    sum += p;
  }
  for (double& o : answer.out) o /= sum;
  answer.lse = largest + std::log(sum);
  return answer;
}

}  // namespace tersekv::reference
