// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/cache_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/base/check.h"

namespace tersekv::llama {
namespace {

std::vector<LayerStats> StatisticsOf(const Profile& profile) {
  std::vector<LayerStats> statistics;
  for (const ProfileLayer& layer : profile.layers) {
    statistics.push_back(
        {layer.k.mean, layer.k.scale, layer.v.mean, layer.v.scale, layer.k.variance, layer.v.variance});
  }
  return statistics;
}

}  // namespace

ModelIdentity IdentityOf(const ModelInfo& model) { return {model.name, model.fingerprint, model.layers}; }

Result<std::string> RecommendedSpec(const Profile& profile) {
  if (const auto it = profile.metadata.find("recommended_spec"); it != profile.metadata.end()) return it->second;
  const Result<ProbeReport> report = Probe(profile);
  if (!report) return report.error();
  return report->advice.front().spec;
}

Result<CacheConfig> SessionCacheConfig(const ModelInfo& model, const std::string& kv,
                                       const std::shared_ptr<const Profile>& profile,
                                       const std::vector<LayerBits>& layer_bits) {
  CacheConfig config;
  TERSEKV_RETURN_IF_ERROR(ConfigureCache(model, kv, profile, layer_bits, &config));
  return config;
}

Status ConfigureCache(const ModelInfo& model, const std::string& kv, const std::shared_ptr<const Profile>& profile,
                      const std::vector<LayerBits>& layer_bits, CacheConfig* config) {
  Result<KvSpec> spec = ParseSpec(kv);
  if (!spec) return spec.error();
  if (profile != nullptr) TERSEKV_RETURN_IF_ERROR(CheckProfileModel(*profile, IdentityOf(model)));
  if (spec->k.family == Family::kAuto) {
    if (profile == nullptr) {
      return InvalidArgument(fmt::format(
          "'{}' is what a profile recommends and there is none: make one with `tersekv calibrate` and give it with "
          "--profile, or add --auto-calibrate",
          kv));
    }
    const Result<std::string> name = RecommendedSpec(*profile);
    if (!name) return name.error();
    spec = ParseSpec(*name);
    if (!spec) return spec.error();
  }
  TERSEKV_RETURN_IF_ERROR(CheckSupported(*spec));
  const bool uses =
      profile != nullptr && !spec->raw() && (spec->mean == MeanMode::kStats || spec->mean == MeanMode::kProfile);
  config->spec = *spec;
  config->layers = model.layers;
  for (size_t l = 0; l < model.latent.size(); ++l) config->layers[l].latent = model.latent[l] && HoldsLatents(*spec);
  config->windows.assign(model.windows.begin(), model.windows.end());
  config->layer_bits = layer_bits;
  config->statistics.clear();
  if (uses) {
    config->spec.mean = MeanMode::kProfile;
    Profile converted = *profile;
    ConvertChannelOrder(model.channel_order, &converted);
    config->statistics = StatisticsOf(converted);
  }
  return {};
}

}  // namespace tersekv::llama
