// SPDX-License-Identifier: Apache-2.0
// What a profile must be, and what is asked of one.
#include "tersekv/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/base/check.h"

namespace tersekv {
namespace {

constexpr int kMostHeads = 4096, kMostHeadDim = 4096, kMostLayers = 4096;
constexpr int kLeastBits = 2, kMostBits = 8;

Status Fault(const std::string& field, const std::string& found, const std::string& expected) {
  return InvalidArgument(fmt::format("profile: field '{}' is {}, expected {}", field, found, expected));
}

Status CheckNumber(const std::string& field, double value) {
  if (std::isfinite(value) && value >= 0) return {};
  return Fault(field, fmt::format("{}", value), "a finite number of at least 0");
}

enum class Sign { kAny, kNotNegative, kPositive };

Status CheckTensor(const std::string& field, const std::vector<float>& values, size_t count, Sign sign) {
  if (values.size() != count) {
    return Fault(field, fmt::format("{} values", values.size()), fmt::format("{}", count));
  }
  for (const float v : values) {
    const bool good = std::isfinite(v) && (sign == Sign::kAny || (sign == Sign::kPositive ? v > 0 : v >= 0));
    if (good) continue;
    const char* expected = sign == Sign::kAny           ? "finite values"
                           : sign == Sign::kNotNegative ? "finite values of at least 0"
                                                        : "finite values above 0";
    return Fault(field, fmt::format("{} somewhere", v), expected);
  }
  return {};
}

Status CheckSide(const std::string& path, const ProfileSide& side, size_t count) {
  TERSEKV_RETURN_IF_ERROR(CheckTensor(path + ".mean", side.mean, count, Sign::kAny));
  TERSEKV_RETURN_IF_ERROR(CheckTensor(path + ".scale", side.scale, count, Sign::kPositive));
  return CheckTensor(path + ".variance", side.variance, count, Sign::kNotNegative);
}

std::string ShapeText(const LayerShape& s) {
  return fmt::format("{} heads, {} KV heads, head_dim {} / {}", s.heads, s.kv_heads, s.head_dim_k, s.head_dim_v);
}

Status CheckLayer(size_t l, const ProfileLayer& layer) {
  const std::string path = fmt::format("layers[{}]", l);
  const LayerShape& s = layer.shape;
  const bool good = s.kv_heads >= 1 && s.heads >= s.kv_heads && s.heads <= kMostHeads && s.heads % s.kv_heads == 0 &&
                    s.head_dim_k >= 2 && s.head_dim_k <= kMostHeadDim && s.head_dim_k % 2 == 0 && s.head_dim_v >= 1 &&
                    s.head_dim_v <= kMostHeadDim;
  if (!good) {
    return Fault(path, ShapeText(s),
                 fmt::format("heads a multiple of KV heads up to {}, head_dim up to {} and even for K", kMostHeads,
                             kMostHeadDim));
  }
  const size_t k = static_cast<size_t>(s.kv_heads) * static_cast<size_t>(s.head_dim_k);
  const size_t v = static_cast<size_t>(s.kv_heads) * static_cast<size_t>(s.head_dim_v);
  TERSEKV_RETURN_IF_ERROR(CheckSide(path + ".k", layer.k, k));
  TERSEKV_RETURN_IF_ERROR(CheckSide(path + ".v", layer.v, v));
  TERSEKV_RETURN_IF_ERROR(CheckTensor(path + ".query_square", layer.query_square, k, Sign::kNotNegative));
  TERSEKV_RETURN_IF_ERROR(
      CheckTensor(path + ".sink_ratio", layer.sink_ratio, layer.sink_ratio.size(), Sign::kNotNegative));
  TERSEKV_RETURN_IF_ERROR(CheckNumber(path + ".attention_scale", static_cast<double>(layer.attention_scale)));
  TERSEKV_RETURN_IF_ERROR(CheckNumber(path + ".attention_spread", static_cast<double>(layer.attention_spread)));
  return CheckNumber(path + ".attention_peak", static_cast<double>(layer.attention_peak));
}

Status CheckUnit(const Profile& profile, size_t u) {
  const UnitSensitivity& unit = profile.sensitivities[u];
  const std::string path = fmt::format("sensitivities[{}]", u);
  if (unit.layer < 0 || static_cast<size_t>(unit.layer) >= profile.layers.size()) {
    return Fault(path + ".layer", fmt::format("{}", unit.layer), fmt::format("0 to {}", profile.layers.size() - 1));
  }
  int before = 0;
  for (const auto& anchor : unit.anchors) {
    if (anchor.bits <= before || anchor.bits < kLeastBits || anchor.bits > kMostBits) {
      return Fault(path + ".anchors.bits", fmt::format("{}", anchor.bits),
                   fmt::format("{} to {}, ascending", kLeastBits, kMostBits));
    }
    before = anchor.bits;
    TERSEKV_RETURN_IF_ERROR(CheckNumber(path + ".anchors.kl", anchor.kl));
  }
  return {};
}

Status CheckBudget(const Profile& profile, size_t i) {
  const BudgetEntry& entry = profile.byte_budget_table[i];
  const std::string path = fmt::format("byte_budget_table[{}]", i);
  if (!(entry.bits >= kLeastBits && entry.bits <= kMostBits) ||
      (i > 0 && entry.bits <= profile.byte_budget_table[i - 1].bits)) {
    return Fault(path + ".bits", fmt::format("{}", entry.bits),
                 fmt::format("{} to {}, ascending", kLeastBits, kMostBits));
  }
  for (const auto& [field, bits] : {std::pair(".k_bits", &entry.k_bits), std::pair(".v_bits", &entry.v_bits)}) {
    if (bits->size() != profile.layers.size()) {
      return Fault(path + field, fmt::format("{} numbers", bits->size()), fmt::format("{}", profile.layers.size()));
    }
    for (const int b : *bits) {
      if (b < kLeastBits || b > kMostBits) {
        return Fault(path + field, fmt::format("{}", b), fmt::format("{} to {}", kLeastBits, kMostBits));
      }
    }
  }
  if (entry.bytes_per_token < 1) {
    return Fault(path + ".bytes_per_token", fmt::format("{}", entry.bytes_per_token), "at least 1");
  }
  TERSEKV_RETURN_IF_ERROR(CheckNumber(path + ".predicted_kl", entry.predicted_kl));
  return CheckNumber(path + ".measured_kl", entry.measured_kl.value_or(0));
}

// values: [rows, d]. interleaved index 2i + j is half index i + j * d/2 (j = 0, 1).
void Reorder(ChannelOrder to, size_t d, std::vector<float>* values) {
  std::vector<float> head(d);
  for (size_t row = 0; row + d <= values->size(); row += d) {
    const auto begin = values->begin() + static_cast<ptrdiff_t>(row);
    std::copy_n(begin, d, head.begin());
    for (size_t c = 0; c < d; ++c) {
      const size_t half = c / 2 + c % 2 * (d / 2);  // of the interleaved channel c
      if (to == ChannelOrder::kHalf) {
        (*values)[row + half] = head[c];
      } else {
        (*values)[row + c] = head[half];
      }
    }
  }
}

std::string Identity(const std::string& name, const std::string& fingerprint) {
  return fmt::format("'{}' (fingerprint {})", name, fingerprint.empty() ? "none" : fingerprint);
}

}  // namespace

const char* ChannelOrderName(ChannelOrder order) { return order == ChannelOrder::kHalf ? "half" : "interleaved"; }

Status ValidateProfile(const Profile& profile) {
  if (profile.layers.empty() || profile.layers.size() > kMostLayers) {
    return Fault("layers", fmt::format("{} layers", profile.layers.size()), fmt::format("1 to {}", kMostLayers));
  }
  if (profile.tokens < 0) return Fault("tokens", fmt::format("{}", profile.tokens), "at least 0");
  if (profile.sink_tokens < 0) return Fault("sink_tokens", fmt::format("{}", profile.sink_tokens), "at least 0");
  for (size_t l = 0; l < profile.layers.size(); ++l) TERSEKV_RETURN_IF_ERROR(CheckLayer(l, profile.layers[l]));
  for (size_t u = 0; u < profile.sensitivities.size(); ++u) TERSEKV_RETURN_IF_ERROR(CheckUnit(profile, u));
  for (size_t i = 0; i < profile.byte_budget_table.size(); ++i) TERSEKV_RETURN_IF_ERROR(CheckBudget(profile, i));
  return {};
}

Status CheckProfileModel(const Profile& profile, const ModelIdentity& model) {
  const std::string remedy = "calibrate this model, or load the profile's own";
  if (profile.model_fingerprint != model.fingerprint) {
    return InvalidArgument(fmt::format("the profile is of {}, the model is {}: {}",
                                       Identity(profile.model_name, profile.model_fingerprint),
                                       Identity(model.name, model.fingerprint), remedy));
  }
  if (profile.layers.size() != model.layers.size()) {
    return InvalidArgument(fmt::format("the profile of '{}' has {} KV layers, the model '{}' has {}: {}",
                                       profile.model_name, profile.layers.size(), model.name, model.layers.size(),
                                       remedy));
  }
  for (size_t l = 0; l < model.layers.size(); ++l) {
    if (profile.layers[l].shape == model.layers[l]) continue;
    return InvalidArgument(fmt::format("KV layer {}: the profile of '{}' has {}, the model '{}' has {}: {}", l,
                                       profile.model_name, ShapeText(profile.layers[l].shape), model.name,
                                       ShapeText(model.layers[l]), remedy));
  }
  return {};
}

void ConvertChannelOrder(ChannelOrder to, Profile* profile) {
  if (profile->channel_order == to) return;
  for (ProfileLayer& layer : profile->layers) {
    const size_t d = static_cast<size_t>(layer.shape.head_dim_k);
    for (auto* values : {&layer.k.mean, &layer.k.scale, &layer.k.variance, &layer.query_square}) {
      Reorder(to, d, values);
    }
  }
  profile->channel_order = to;
}

RowStats ProfileRowStats(const Profile& profile, int layer, Kv side, int kv_head) {
  const ProfileLayer& l = profile.layers[static_cast<size_t>(layer)];
  TERSEKV_CHECK(kv_head >= 0 && kv_head < l.shape.kv_heads);
  const ProfileSide& s = side == Kv::kK ? l.k : l.v;
  const ptrdiff_t d = side == Kv::kK ? l.shape.head_dim_k : l.shape.head_dim_v;
  const ptrdiff_t at = d * kv_head;
  return {{s.mean.begin() + at, s.mean.begin() + at + d}, {s.scale.begin() + at, s.scale.begin() + at + d}};
}

Result<BudgetEntry> FindBudget(const Profile& profile, double bits) {
  std::vector<double> there;
  for (const BudgetEntry& entry : profile.byte_budget_table) {
    if (entry.bits == bits) return entry;
    there.push_back(entry.bits);
  }
  return NotFound(
      fmt::format("the profile of '{}' has no allocation for {} bits, only for {}: choose one of these or "
                  "calibrate with {} in the list",
                  profile.model_name, bits, there.empty() ? "none" : fmt::format("{}", fmt::join(there, ", ")), bits));
}

std::vector<LayerBits> LayerBitsOf(const BudgetEntry& entry) {
  std::vector<LayerBits> bits;
  for (size_t l = 0; l < entry.k_bits.size(); ++l) bits.push_back({entry.k_bits[l], entry.v_bits[l]});
  return bits;
}

std::vector<KvSpec> LayerSpecs(const KvSpec& base, const BudgetEntry& entry) {
  std::vector<KvSpec> specs(entry.k_bits.size(), base);
  for (size_t l = 0; l < specs.size(); ++l) {
    specs[l].k.bits = static_cast<float>(entry.k_bits[l]);
    specs[l].v.bits = static_cast<float>(entry.v_bits[l]);
  }
  return specs;
}

}  // namespace tersekv
