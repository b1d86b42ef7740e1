// SPDX-License-Identifier: Apache-2.0
#include "tests/reference/token_list.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "tests/reference/attention_reference.h"

namespace tersekv::reference {
namespace {

constexpr Kv kSides[] = {Kv::kK, Kv::kV};

int Dim(const LayerShape& shape, int side) { return side == 0 ? shape.head_dim_k : shape.head_dim_v; }

}  // namespace

TokenLists::TokenLists(const Model& model) : model_(model) {
  const CacheConfig& config = model.config;
  for (int side = 0; side < 2; ++side) {
    for (size_t l = 0; l < config.layers.size(); ++l) {
      const int d = Dim(config.layers[l], side);
      for (int h = 0; h < config.layers[l].kv_heads; ++h) {
        RowStats stats;
        if (!config.statistics.empty() && !config.spec.raw()) {
          const LayerStats& given = config.statistics[l];
          const auto part = [&](const std::vector<float>& all) {
            return std::vector<float>(all.begin() + h * d, all.begin() + (h + 1) * d);
          };
          stats.mean = part(side == 0 ? given.k_mean : given.v_mean);
          if (config.spec.scale) stats.scale = part(side == 0 ? given.k_scale : given.v_scale);
        }
        const KvSpec half = config.spec.raw() ? config.spec : ParseSpec("f16").value();
        auto codec = VectorCodec::Create(config.spec, kSides[side], d, static_cast<int>(l), h, stats);
        auto raw = VectorCodec::Create(half, kSides[side], d, 0, 0, {});
        if (!codec || !raw) std::abort();
        codecs_[side].push_back(std::move(*codec));
        half_[side].push_back(std::move(*raw));
      }
    }
  }
}

std::vector<float> TokenLists::Stored(int layer, int side, const std::vector<float>& row, bool packed) const {
  size_t codec = 0;
  for (int l = 0; l < layer; ++l) codec += static_cast<size_t>(model_.config.layers[static_cast<size_t>(l)].kv_heads);
  const LayerShape& shape = model_.config.layers[static_cast<size_t>(layer)];
  const size_t d = static_cast<size_t>(Dim(shape, side));
  std::vector<float> out(row.size());
  for (size_t h = 0; h < static_cast<size_t>(shape.kv_heads); ++h, ++codec) {
    const VectorCodec& c = packed ? *codecs_[side][codec] : *half_[side][codec];
    std::vector<uint8_t> record(c.record_bytes());
    if (!c.Encode(row.data() + h * d, 1, record.data()).ok()) std::abort();
    c.Decode(record.data(), 1, out.data() + h * d);
  }
  return out;
}

void TokenLists::Append(const Token& token) {
  List& list = lists_[token.seq];
  Item item;
  item.position = token.pos;
  const int64_t packed = std::count_if(list.begin(), list.end(), [](const Item& i) { return i.form == Form::kPacked; });
  if (packed == 0 && static_cast<int64_t>(list.size()) < model_.config.spec.sink) item.form = Form::kSink;
  for (int l = 0; l < static_cast<int>(model_.config.layers.size()); ++l) {
    item.rows[0].push_back(Stored(l, 0, model_.K(l, token.content), false));
    item.rows[1].push_back(Stored(l, 1, model_.V(l, token.content), false));
  }
  list.push_back(std::move(item));
  Settle(&list);
}

void TokenLists::Settle(List* list) {
  if (model_.config.spec.raw()) return;
  int64_t newest = 0;
  for (size_t i = list->size(); i-- > 0;) {
    Item& item = (*list)[i];
    if (item.form != Form::kRaw || ++newest <= model_.config.spec.win) continue;
    item.form = Form::kPacked;
    for (int side = 0; side < 2; ++side) {
      for (size_t l = 0; l < item.rows[side].size(); ++l) {
        item.rows[side][l] = Stored(static_cast<int>(l), side, item.rows[side][l], true);
      }
    }
  }
}

void TokenLists::Unpacked(List* list) {
  const bool packed = std::any_of(list->begin(), list->end(), [](const Item& i) { return i.form == Form::kPacked; });
  for (size_t i = 0; i < list->size() && !packed; ++i) {
    (*list)[i].form = static_cast<int64_t>(i) < model_.config.spec.sink ? Form::kSink : Form::kRaw;
  }
}

void TokenLists::Truncate(int32_t seq, int64_t tokens) {
  const auto it = lists_.find(seq);
  if (it == lists_.end() || tokens >= static_cast<int64_t>(it->second.size())) return;
  it->second.resize(static_cast<size_t>(tokens));
  if (tokens == 0) return Remove(seq);
  Unpacked(&it->second);
}

void TokenLists::RemoveRange(int32_t seq, int64_t begin, int64_t end) {
  const auto it = lists_.find(seq);
  if (it == lists_.end()) return;
  std::erase_if(it->second, [&](const Item& i) { return i.position >= begin && (end < 0 || i.position < end); });
  if (it->second.empty()) return Remove(seq);
  Unpacked(&it->second);
}

void TokenLists::Copy(int32_t from, int32_t to, int64_t begin, int64_t end) {
  const auto it = lists_.find(from);
  if (it == lists_.end()) return;
  lists_[to] = it->second;
  if (end >= 0) RemoveRange(to, end, -1);
  RemoveRange(to, 0, begin);
}

void TokenLists::Shift(int32_t seq, int64_t begin, int64_t end, int64_t delta, const KeyRotation& rotation) {
  const auto it = lists_.find(seq);
  if (it == lists_.end()) return;
  std::erase_if(it->second, [&](const Item& i) {
    return i.position >= begin && (end < 0 || i.position < end) && i.position + delta < 0;
  });
  if (it->second.empty()) return Remove(seq);
  Unpacked(&it->second);
  for (Item& item : it->second) {
    if (item.position < begin || (end >= 0 && item.position >= end)) continue;
    item.position = static_cast<int32_t>(item.position + delta);
    for (size_t l = 0; l < item.rows[0].size(); ++l) {
      std::vector<float>& row = item.rows[0][l];
      const size_t d = static_cast<size_t>(model_.config.layers[l].head_dim_k), pairs = rotation.frequency.size();
      for (size_t at = static_cast<size_t>(rotation.first_channel); at < row.size(); at += d) {
        for (size_t i = 0; i < pairs; ++i) {
          const float c = static_cast<float>(std::cos(rotation.frequency[i] * static_cast<double>(delta)));
          const float s = static_cast<float>(std::sin(rotation.frequency[i] * static_cast<double>(delta)));
          float& a = row[at + (rotation.interleaved ? 2 * i : i)];
          float& b = row[at + (rotation.interleaved ? 2 * i + 1 : i + pairs)];
          const float x = a, y = b;
          a = x * c - y * s;
          b = x * s + y * c;
        }
      }
      row = Stored(static_cast<int>(l), 0, row, item.form == Form::kPacked);
    }
  }
}

void TokenLists::Keep(int32_t seq) {
  std::erase_if(lists_, [seq](const auto& entry) { return entry.first != seq; });
}

std::vector<int32_t> TokenLists::Positions(int32_t seq) const {
  std::vector<int32_t> positions;
  if (const auto it = lists_.find(seq); it != lists_.end()) {
    for (const Item& item : it->second) positions.push_back(item.position);
  }
  return positions;
}

int64_t TokenLists::Packed(int32_t seq) const {
  const auto it = lists_.find(seq);
  if (it == lists_.end()) return 0;
  if (model_.config.spec.raw()) return static_cast<int64_t>(it->second.size());
  return std::count_if(it->second.begin(), it->second.end(), [](const Item& i) { return i.form == Form::kPacked; });
}

std::vector<int32_t> TokenLists::Sequences() const {
  std::vector<int32_t> ids;
  for (const auto& [id, list] : lists_) ids.push_back(id);
  return ids;
}

Errors TokenLists::AppendAndCompare(const std::vector<Token>& tokens, const StepResult& result, size_t stride) {
  Errors worst;
  for (size_t i = 0; i < tokens.size(); ++i) {
    Append(tokens[i]);
    if (i % stride != 0 && i + 1 != tokens.size()) continue;
    const Errors errors = Compare(tokens[i], result, i);
    worst.out = std::max(worst.out, errors.out);
    worst.lse = std::max(worst.lse, errors.lse);
  }
  return worst;
}

// The newest token of its sequence.
Errors TokenLists::Compare(const Token& token, const StepResult& result, size_t row) const {
  Errors errors;
  const List& list = lists_.at(token.seq);
  for (size_t l = 0; l < result.size(); ++l) {
    const AttentionParams params = model_.Params(static_cast<int>(l));
    const LayerShape& shape = model_.config.layers[l];
    const size_t dk = static_cast<size_t>(shape.head_dim_k), dv = static_cast<size_t>(shape.head_dim_v);
    const std::vector<float> q = model_.Q(static_cast<int>(l), token.content);
    for (int h = 0; h < shape.heads; ++h) {
      const size_t kv_head = static_cast<size_t>(h / (shape.heads / shape.kv_heads));
      std::vector<double> scores, out(dv);
      double largest = -INFINITY, sum = 0, worst = 0, most = 0;
      for (const Item& item : list) {
        double score = 0;
        const float* k = item.rows[0][l].data() + kv_head * dk;
        for (size_t c = 0; c < dk; ++c) {
          score += static_cast<double>(q[static_cast<size_t>(h) * dk + c]) * static_cast<double>(k[c]);
        }
        score *= static_cast<double>(params.scale);
        const double distance = static_cast<double>(item.position - token.pos);
        if (params.max_alibi_bias > 0) {
          score += reference::AlibiSlope(h, shape.heads, static_cast<double>(params.max_alibi_bias)) * distance;
        }
        scores.push_back(params.window > 0 && -distance >= params.window ? -INFINITY : score);
        largest = std::max(largest, scores.back());
      }
      for (size_t i = 0; i < list.size(); ++i) {
        const double p = std::exp(scores[i] - largest);
        const float* v = list[i].rows[1][l].data() + kv_head * dv;
        for (size_t c = 0; c < dv; ++c) out[c] += p * static_cast<double>(v[c]);
        sum += p;
      }
      const size_t at = row * static_cast<size_t>(shape.heads) + static_cast<size_t>(h);
      for (size_t c = 0; c < dv; ++c) {
        worst = std::max(worst, std::fabs(out[c] / sum - static_cast<double>(result[l].out[at * dv + c])));
        most = std::max(most, std::fabs(out[c] / sum));
      }
      errors.out = std::max(errors.out, worst / most);
      const double lse = largest + std::log(sum);
      errors.lse =
          std::max(errors.lse, std::fabs(static_cast<double>(result[l].lse[at]) - lse) / std::max(1.0, std::fabs(lse)));
    }
  }
  return errors;
}

}  // namespace tersekv::reference
