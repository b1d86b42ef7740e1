// SPDX-License-Identifier: Apache-2.0
// What statistics alone say about a model's cache (docs/calibration.md, "Probe").
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "src/base/check.h"
#include "src/calibration/distortion.h"
#include "tersekv/calibration.h"

namespace tersekv {
namespace {

// Attention that k4 reaches on keys without surprises (0.008 nats) and k3 (0.034), rounded; a single layer may be four
// times worse. Outputs: the share of D(4) = 0.0093 and D(3) = 0.034 that averaging over tokens leaves.
struct Mode {
  const char* name;
  double kl_mean, kl_worst, v_mean, v_worst;
};
constexpr Mode kModes[] = {{"quality", .01, .04, .01, .02}, {"balanced", .04, .16, .04, .08}};
constexpr int kDefaultSinks = 4;
constexpr double kLoudMeanDb = 3;  // worth a sentence

double Decibel(double ratio) { return ratio > 0 ? 10 * std::log10(ratio) : 0; }
double Ratio(double a, double b) { return b > 0 ? a / b : (a > 0 ? HUGE_VAL : 1); }

// Energies of one layer, means over its KV heads.
struct Energies {
  double k_square = 0, k_variance = 0, v_square = 0, v_mean_square = 0, v_variance = 0;
  double v_scaled = 0;  // E|S^-1(v - mean)|^2 |S|^2 / d: what the codec's relative error applies to
  // E|x|^2 E|y|^2 of the two factors of a logit's error: raw keys, centred, centred and scaled.
  double raw = 0, centred = 0, scaled = 0;
};

Energies EnergiesOf(const ProfileLayer& layer) {
  Energies e;
  const size_t heads = static_cast<size_t>(layer.shape.kv_heads);
  const size_t dk = static_cast<size_t>(layer.shape.head_dim_k), dv = static_cast<size_t>(layer.shape.head_dim_v);
  const auto at = [](const std::vector<float>& values, size_t i) { return static_cast<double>(values[i]); };
  for (size_t h = 0; h < heads; ++h) {
    double square = 0, variance = 0, query = 0, scaled_key = 0, scaled_query = 0;
    for (size_t i = h * dk; i < (h + 1) * dk; ++i) {
      const double var = at(layer.k.variance, i), mean = at(layer.k.mean, i), s = at(layer.k.scale, i);
      const double q = at(layer.query_square, i);
      square += var + mean * mean;
      variance += var;
      query += q;
      scaled_key += var / (s * s);
      scaled_query += q * s * s;
    }
    double v_variance = 0, v_mean = 0, v_key = 0, v_scale = 0;
    for (size_t i = h * dv; i < (h + 1) * dv; ++i) {
      const double var = at(layer.v.variance, i), s = at(layer.v.scale, i);
      v_variance += var;
      v_mean += at(layer.v.mean, i) * at(layer.v.mean, i);
      v_key += var / (s * s);
      v_scale += s * s;
    }
    const double share = 1 / static_cast<double>(heads);
    e.k_square += square * share;
    e.k_variance += variance * share;
    e.v_variance += v_variance * share;
    e.v_mean_square += v_mean * share;
    e.v_square += (v_variance + v_mean) * share;
    e.v_scaled += v_key * v_scale / static_cast<double>(dv) * share;
    e.raw += square * query * share;
    e.centred += variance * query * share;
    e.scaled += scaled_key * scaled_query * share;
  }
  return e;
}

// KL of attention weights, half the variance of the logits under p: (tau^2 D / 2d) E sum p(1-p) E|k'|^2 E|Sq|^2.
double AttentionKl(const ProfileLayer& layer, double energy, double distortion) {
  const double tau = static_cast<double>(layer.attention_scale);
  return .5 * tau * tau * distortion / layer.shape.head_dim_k * static_cast<double>(layer.attention_spread) * energy;
}

ProbeSpec PredictSpec(const Profile& profile, const std::vector<Energies>& energies, int k_bits, int v_bits) {
  ProbeSpec spec;
  spec.spec = fmt::format("k{}v{}", k_bits, v_bits);
  spec.bits = .5 * (k_bits + v_bits);
  const double share = 1 / static_cast<double>(energies.size());
  for (size_t l = 0; l < energies.size(); ++l) {
    const ProfileLayer& layer = profile.layers[l];
    const Energies& e = energies[l];
    const double dk = LloydMaxDistortion(k_bits, layer.shape.head_dim_k);
    const double dv = LloydMaxDistortion(v_bits, layer.shape.head_dim_v);
    const double peak = static_cast<double>(layer.attention_peak);
    const double output = e.v_mean_square + peak * e.v_variance;  // E|o|^2 when tokens' values are independent
    spec.k_kl.push_back(AttentionKl(layer, e.scaled, dk));
    spec.v_error.push_back(output > 0 ? dv * peak * e.v_scaled / output : 0);
    spec.k_kl_mean += spec.k_kl.back() * share;
    spec.k_kl_mean_off += AttentionKl(layer, e.raw, dk) * share;
    spec.k_kl_worst = std::max(spec.k_kl_worst, spec.k_kl.back());
    spec.v_error_mean += spec.v_error.back() * share;
    spec.v_error_worst = std::max(spec.v_error_worst, spec.v_error.back());
  }
  return spec;
}

bool Meets(const Mode& mode, const ProbeSpec& spec) {
  return spec.k_kl_mean <= mode.kl_mean && spec.k_kl_worst <= mode.kl_worst && spec.v_error_mean <= mode.v_mean &&
         spec.v_error_worst <= mode.v_worst;
}

size_t LoudestMean(const std::vector<ProbeLayer>& layers) {
  size_t loudest = 0;
  for (size_t l = 1; l < layers.size(); ++l) {
    if (layers[l].k_mean_gain_db > layers[loudest].k_mean_gain_db) loudest = l;
  }
  return loudest;
}

ProbeAdvice Advise(const Profile& profile, const ProbeReport& report, const Mode& mode) {
  const ProbeSpec* best = nullptr;  // the fewest bits that meet the mode; of equal ones the least KL
  for (const ProbeSpec& spec : report.specs) {
    if (!Meets(mode, spec)) continue;
    if (best == nullptr || spec.bits < best->bits || (spec.bits == best->bits && spec.k_kl_mean < best->k_kl_mean)) {
      best = &spec;
    }
  }
  const bool met = best != nullptr;
  if (!met) best = &report.specs.back();
  ProbeAdvice advice;
  advice.mode = mode.name;
  advice.spec = best->spec;
  if (profile.sink_tokens > kDefaultSinks) advice.spec += fmt::format("+sink={}", profile.sink_tokens);
  advice.reasons.push_back(
      met ? fmt::format("{} is the smallest whose predicted attention KL is at most {} nats on average and {} in the "
                        "worst layer: {:.2g} and {:.2g}",
                        best->spec, mode.kl_mean, mode.kl_worst, best->k_kl_mean, best->k_kl_worst)
          : fmt::format(
                "no width keeps the predicted attention KL below {} nats: {} comes nearest with {:.2g}; measure "
                "with `tersekv eval` and consider f16",
                mode.kl_mean, best->spec, best->k_kl_mean));
  advice.reasons.push_back(fmt::format("values: predicted error of attention output {:.2g} (worst layer {:.2g})",
                                       best->v_error_mean, best->v_error_worst));
  const size_t loudest = LoudestMean(report.layers);
  const ProbeLayer& layer = report.layers[loudest];
  if (layer.k_mean_gain_db >= kLoudMeanDb) {
    advice.reasons.push_back(fmt::format(
        "keys carry a constant, most in layer {}: taking it off saves {:.1f} dB there, the scale {:.1f} dB; "
        "with mean=off,scale=off the predicted KL would be {:.2g}",
        loudest, layer.k_mean_gain_db, layer.k_scale_gain_db, best->k_kl_mean_off));
  }
  if (profile.sink_tokens > 0) {
    advice.reasons.push_back(fmt::format("the first {} position(s) have atypical keys: sink={} keeps them raw",
                                         profile.sink_tokens, std::max(profile.sink_tokens, kDefaultSinks)));
  }
  return advice;
}

}  // namespace

Result<ProbeReport> Probe(const Profile& profile) {
  TERSEKV_RETURN_IF_ERROR(ValidateProfile(profile));
  ProbeReport report;
  std::vector<Energies> energies;
  for (size_t l = 0; l < profile.layers.size(); ++l) {
    const ProfileLayer& layer = profile.layers[l];
    if (!(layer.attention_scale > 0) || !(layer.attention_peak > 0)) {
      return InvalidArgument(
          fmt::format("layer {} of the profile of '{}' has no attention statistics: contexts of more than 64 tokens "
                      "with queries are needed",
                      l, profile.model_name));
    }
    const Energies e = EnergiesOf(layer);
    energies.push_back(e);
    report.layers.push_back({.kv_norm_ratio = std::sqrt(Ratio(e.k_square, e.v_square)),
                             .k_uncentred = Ratio(e.k_square, e.k_variance),
                             .k_mean_gain_db = Decibel(Ratio(e.raw, e.centred)),
                             .k_scale_gain_db = Decibel(Ratio(e.centred, e.scaled)),
                             .v_uncentred = Ratio(e.v_square, e.v_variance)});
  }
  for (int k = kLeastCodeBits; k <= kMostCodeBits; ++k) {
    for (int v = kLeastCodeBits; v <= k; ++v) report.specs.push_back(PredictSpec(profile, energies, k, v));
  }
  for (const Mode& mode : kModes) report.advice.push_back(Advise(profile, report, mode));
  return report;
}

}  // namespace tersekv
