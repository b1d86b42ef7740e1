// SPDX-License-Identifier: Apache-2.0
// A profile: what calibration found out about one model's keys and values, and the bits of each layer for several
// averages. File format: docs/formats.md, "Profile file"; what is measured and why: docs/calibration.md. Layers count
// by KV-layer ordinal. All functions are thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tersekv/cache.h"
#include "tersekv/codec.h"
#include "tersekv/spec.h"
#include "tersekv/status.h"

namespace tersekv {

// Which channels RoPE turns together: (2i, 2i + 1) in GGUF files of the llama family, whose Q and K rows are permuted;
// (i, i + d/2) in Hugging Face checkpoints. Values know no RoPE.
enum class ChannelOrder : uint8_t { kInterleaved, kHalf };
const char* ChannelOrderName(ChannelOrder order);  // "interleaved", "half"

struct ProfileSide {
  std::vector<float> mean, scale, variance;  // each [kv_heads, head_dim]; scale > 0, geometric mean 1 a head
  bool operator==(const ProfileSide&) const = default;
};

struct ProfileLayer {
  LayerShape shape;
  ProfileSide k, v;
  std::vector<float> query_square;  // [kv_heads, head_dim_k]: E q^2 over tokens and the query heads of the group
  std::vector<float> sink_ratio;    // [first positions]: E|k - mean|^2 there over that of later tokens, mean over heads
  float attention_scale = 0;        // of q.k
  // Over sampled queries and heads, p = softmax over all visible tokens. 0, 0: not measured.
  float attention_spread = 0;  // E sum_t p_t (1 - p_t)
  float attention_peak = 0;    // E sum_t p_t^2
  bool operator==(const ProfileLayer&) const = default;
};

// What quantising one unit (layer, K or V) alone costs: forward KL in nats a token, at a few widths.
struct UnitSensitivity {
  struct Anchor {
    int bits = 0;
    double kl = 0;
    bool operator==(const Anchor&) const = default;
  };
  int layer = 0;
  Kv side = Kv::kK;
  std::vector<Anchor> anchors;  // ascending bits
  bool operator==(const UnitSensitivity&) const = default;
};

// One row of byte_budget_table: the bits of each layer that cost least within the bytes of uniform k<bits>v<bits>.
struct BudgetEntry {
  double bits = 0;
  std::vector<int> k_bits, v_bits;    // by layer
  int64_t bytes_per_token = 0;        // of canonical records, all layers
  double predicted_kl = 0;            // by the additive model, nats a token
  std::optional<double> measured_kl;  // of the whole choice together
  bool operator==(const BudgetEntry&) const = default;
};

// Which model is loaded. fingerprint: any text that differs for different weights or tokenisers; the host makes it.
struct ModelIdentity {
  std::string name, fingerprint;
  std::vector<LayerShape> layers;
};

struct Profile {
  std::string tersekv_version;  // that made it
  std::string model_name, model_fingerprint;
  ChannelOrder channel_order = ChannelOrder::kInterleaved;
  int64_t tokens = 0;   // measured
  int sink_tokens = 0;  // leading positions with atypical keys
  std::vector<ProfileLayer> layers;
  std::vector<UnitSensitivity> sensitivities;   // may be empty
  std::vector<BudgetEntry> byte_budget_table;   // ascending bits; may be empty
  std::map<std::string, std::string> metadata;  // free text: text file, date, machine
  bool operator==(const Profile&) const = default;
};

// kInvalidArgument names the field that is wrong, what it is and what it must be.
Status ValidateProfile(const Profile& profile);

// The file's bytes and back. `name` stands in messages (a path). ParseProfile: kDataLoss for anything that is not
// exactly what SerializeProfile wrote (each byte is under a checksum), kUnsupported for a format version of later.
Result<std::string> SerializeProfile(const Profile& profile);
Result<Profile> ParseProfile(std::string_view bytes, const std::string& name);

// SaveProfile is atomic: a temporary file beside `path`, fsync, rename. An existing file is replaced.
Status SaveProfile(const Profile& profile, const std::string& path);
Result<Profile> LoadProfile(const std::string& path);  // kNotFound, kDataLoss, kUnsupported

// kInvalidArgument names both models when the profile is of another one, or the layer whose shape differs.
Status CheckProfileModel(const Profile& profile, const ModelIdentity& model);

// Reorders the K statistics (and E q^2, which turns with them). A host calls it with the order of its own rows.
void ConvertChannelOrder(ChannelOrder to, Profile* profile);

// Mean and scale of one head, as VectorCodec takes them.
RowStats ProfileRowStats(const Profile& profile, int layer, Kv side, int kv_head);

// The entry of `--bits F`; kNotFound lists those present.
Result<BudgetEntry> FindBudget(const Profile& profile, double bits);

// `base` (a kNvN) with the bits of each layer, in layer order.
std::vector<KvSpec> LayerSpecs(const KvSpec& base, const BudgetEntry& entry);
std::vector<LayerBits> LayerBitsOf(const BudgetEntry& entry);  // as CacheConfig::layer_bits

}  // namespace tersekv
