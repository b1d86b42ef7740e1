// SPDX-License-Identifier: Apache-2.0
// Sums of the collector -> statistics of a profile.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/base/check.h"
#include "src/calibration/collector.h"
#include "src/codec/row_statistics.h"

namespace tersekv {
namespace {

constexpr double kWeightFloor =
    1e-6;                         // of the head's largest; a channel that no query reads must not take all the range
constexpr double kSinkRatio = 4;  // a key twice as far from the mean as others are
constexpr size_t kSinkLayerShare = 8;  // in one layer of eight

void FillSide(const Moments& moments, const double* weight, size_t at, size_t d, ProfileSide* side) {
  std::vector<double> variance(d);
  for (size_t c = 0; c < d; ++c) {
    variance[c] = moments.variance(c);
    side->mean[at + c] = static_cast<float>(moments.mean()[c]);
    side->variance[at + c] = static_cast<float>(variance[c]);
  }
  BalancedScale(variance.data(), weight, d, side->scale.data() + at);
}

bool Finite(const ProfileSide& side) {
  return std::all_of(side.mean.begin(), side.mean.end(), [](float v) { return std::isfinite(v); }) &&
         std::all_of(side.variance.begin(), side.variance.end(), [](float v) { return std::isfinite(v); });
}

// E|k_p - mean|^2 of the first positions over that of the others, for one head.
void AddSinkRatio(const HeadSums& head, double share, std::vector<double>* ratio) {
  double typical = 0, mean_square = 0;
  for (size_t c = 0; c < head.k.mean().size(); ++c) {
    typical += head.k.variance(c);
    mean_square += head.k.mean()[c] * head.k.mean()[c];
  }
  if (!(typical > 0)) return;
  for (size_t p = 0; p < head.lead.size(); ++p) {
    const LeadSums& lead = head.lead[p];
    if (lead.count == 0) continue;
    double cross = 0;
    for (size_t c = 0; c < lead.sum.size(); ++c) cross += lead.sum[c] * head.k.mean()[c];
    const double distance = (lead.square - 2 * cross) / static_cast<double>(lead.count) + mean_square;
    (*ratio)[p] += share * std::max(distance, 0.0) / typical;
  }
}

// Up to the last position that is atypical in one layer of eight.
int SinkTokens(const std::vector<ProfileLayer>& layers) {
  const size_t least = std::max<size_t>(1, layers.size() / kSinkLayerShare);
  for (int p = kLeadPositions; p > 0; --p) {
    size_t atypical = 0;
    for (const ProfileLayer& layer : layers) {
      atypical += static_cast<double>(layer.sink_ratio[static_cast<size_t>(p - 1)]) > kSinkRatio ? 1 : 0;
    }
    if (atypical >= least) return p;
  }
  return 0;
}

ProfileLayer MakeLayer(const LayerShape& shape, const std::vector<HeadSums>& heads,
                       const std::vector<float>* output_square) {
  ProfileLayer layer;
  layer.shape = shape;
  const size_t dk = static_cast<size_t>(shape.head_dim_k), dv = static_cast<size_t>(shape.head_dim_v);
  for (auto* v : {&layer.k.mean, &layer.k.scale, &layer.k.variance, &layer.query_square}) v->resize(heads.size() * dk);
  for (auto* v : {&layer.v.mean, &layer.v.scale, &layer.v.variance}) v->resize(heads.size() * dv);
  std::vector<double> sink_ratio(kLeadPositions);
  double spread = 0, peak = 0;
  int64_t samples = 0;
  for (size_t h = 0; h < heads.size(); ++h) {
    const HeadSums& head = heads[h];
    std::vector<double> square(dk), output(dv);
    for (size_t c = 0; c < dk && head.queries > 0; ++c) {
      square[c] = head.query_square[c] / static_cast<double>(head.queries);
      layer.query_square[h * dk + c] = static_cast<float>(square[c]);
    }
    for (size_t c = 0; c < dv && output_square != nullptr; ++c) {
      output[c] = static_cast<double>((*output_square)[h * dv + c]);
    }
    FillSide(head.k, square.data(), h * dk, dk, &layer.k);
    FillSide(head.v, output.data(), h * dv, dv, &layer.v);
    AddSinkRatio(head, 1 / static_cast<double>(heads.size()), &sink_ratio);
    layer.attention_scale = head.attention_scale;
    spread += head.spread;
    peak += head.peak;
    samples += head.samples;
  }
  layer.sink_ratio.assign(sink_ratio.begin(), sink_ratio.end());
  if (samples > 0) {
    layer.attention_spread = static_cast<float>(spread / static_cast<double>(samples));
    layer.attention_peak = static_cast<float>(peak / static_cast<double>(samples));
  }
  return layer;
}

}  // namespace

void BalancedScale(const double* variance, const double* weight, size_t d, float* out) {
  const double heaviest = weight == nullptr ? 0 : *std::max_element(weight, weight + d);
  std::vector<double> scale(d);
  for (size_t c = 0; c < d; ++c) {
    const double w = heaviest > 0 ? std::max(weight[c], kWeightFloor * heaviest) : 1;
    scale[c] = std::sqrt(std::sqrt(variance[c] / w));
  }
  NormaliseScale(scale.data(), d, out);
}

Status Collector::MakeStatistics(const std::vector<std::vector<float>>& output_square, Profile* profile) const {
  if (!output_square.empty() && output_square.size() != layers_.size()) {
    return InvalidArgument(
        fmt::format("output_square has {} layers, the model has {}", output_square.size(), layers_.size()));
  }
  std::vector<ProfileLayer> made;
  for (size_t l = 0; l < layers_.size(); ++l) {
    const LayerShape& shape = layers_[l];
    for (const HeadSums& head : heads_[l]) {
      const int64_t seen = std::min(head.k.count(), head.v.count());
      if (seen >= kLeastTokens) continue;
      return InvalidArgument(fmt::format(
          "layer {} saw {} tokens after the first {} of each context, statistics need {}: give a longer text", l, seen,
          kLeadPositions, kLeastTokens));
    }
    const std::vector<float>* output = output_square.empty() ? nullptr : &output_square[l];
    if (output != nullptr && output->size() != static_cast<size_t>(shape.kv_heads * shape.head_dim_v)) {
      return InvalidArgument(fmt::format("output_square of layer {} has {} values, expected {}", l, output->size(),
                                         shape.kv_heads * shape.head_dim_v));
    }
    made.push_back(MakeLayer(shape, heads_[l], output));
    if (!Finite(made.back().k) || !Finite(made.back().v)) {
      return DataLoss(fmt::format("layer {}: keys or values are not finite; the model file may be damaged", l));
    }
  }
  profile->layers = std::move(made);
  profile->tokens = tokens_;
  profile->sink_tokens = SinkTokens(profile->layers);
  return {};
}

}  // namespace tersekv
