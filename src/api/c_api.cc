// SPDX-License-Identifier: Apache-2.0
#include "tersekv/c_api.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <string>

#include "src/api/c_status.h"
#include "src/api/shapes.h"
#include "tersekv/cache.h"
#include "tersekv/codec.h"
#include "tersekv/version.h"

using tersekv::KvCache;
using tersekv::Result;
using tersekv::Status;
using tersekv::c::CheckSize;
using tersekv::c::Guard;
using tersekv::c::Null;
using tersekv::c::Report;

struct tersekv_codec {
  std::unique_ptr<tersekv::VectorCodec> codec;
};
struct tersekv_cache {
  std::unique_ptr<KvCache> cache;
};

namespace {

// tersekv_cache_config of the first callers. Where `rollback` lies now it ended in 4 bytes of padding, which hold
// anything.
struct FirstCacheConfig {
  uint32_t struct_size;
  const char* spec;
  const tersekv_layer_shape* layers;
  int32_t n_layers;
  int32_t max_workers;
  uint64_t byte_budget;
  int32_t arithmetic;
};
static_assert(offsetof(FirstCacheConfig, arithmetic) == offsetof(tersekv_cache_config, arithmetic));

tersekv::Kv Side(tersekv_side side) { return side == TERSEKV_V ? tersekv::Kv::kV : tersekv::Kv::kK; }

tersekv_status CheckPlace(const tersekv_cache* cache, int32_t layer, int32_t worker, int32_t workers) {
  const auto& config = cache->cache->config();
  if (layer < 0 || static_cast<size_t>(layer) >= config.layers.size()) {
    return Report(tersekv::InvalidArgument(fmt::format("layer {} of {}", layer, config.layers.size())));
  }
  if (workers < 1 || workers > config.max_workers || worker < 0 || worker >= workers) {
    return Report(tersekv::InvalidArgument(
        fmt::format("worker {} of {}: the cache was made for at most {}", worker, workers, config.max_workers)));
  }
  return TERSEKV_OK;
}

}  // namespace

extern "C" {

const char* tersekv_version(void) { return tersekv::Version(); }
int32_t tersekv_abi_version(void) { return TERSEKV_ABI_VERSION; }

tersekv_status tersekv_spec_canonical(const char* spec, char* out, size_t size) {
  return Guard([&] {
    if (spec == nullptr || out == nullptr) return Null("spec or out");
    const Result<tersekv::KvSpec> parsed = tersekv::ParseSpec(spec);
    if (!parsed) return Report(parsed.error());
    const std::string text = tersekv::FormatSpec(*parsed);
    if (text.size() >= size) {
      return Report(
          tersekv::InvalidArgument(fmt::format("out has {} bytes, the text needs {}", size, text.size() + 1)));
    }
    std::memcpy(out, text.c_str(), text.size() + 1);
    return TERSEKV_OK;
  });
}

tersekv_status tersekv_codec_create(const char* spec, tersekv_side side, int32_t head_dim, int32_t layer,
                                    int32_t kv_head, const float* mean, const float* scale, tersekv_codec** out) {
  return Guard([&] {
    if (spec == nullptr || out == nullptr) return Null("spec or out");
    const Result<tersekv::KvSpec> parsed = tersekv::ParseSpec(spec);
    if (!parsed) return Report(parsed.error());
    tersekv::RowStats stats;
    const bool sized = head_dim > 0 && head_dim <= tersekv::kMaxHeadDim;  // else refused below, before they are read
    if (sized && mean != nullptr) stats.mean.assign(mean, mean + head_dim);
    if (sized && scale != nullptr) stats.scale.assign(scale, scale + head_dim);
    auto codec = tersekv::VectorCodec::Create(*parsed, Side(side), head_dim, layer, kv_head, std::move(stats));
    if (!codec) return Report(codec.error());
    *out = new tersekv_codec{std::move(*codec)};
    return TERSEKV_OK;
  });
}

void tersekv_codec_destroy(tersekv_codec* codec) { delete codec; }

size_t tersekv_codec_record_bytes(const tersekv_codec* codec) {
  return Guard([&] { return codec != nullptr ? codec->codec->record_bytes() : 0; }, size_t{0});
}

size_t tersekv_codec_record_rows(const tersekv_codec* codec) {
  return Guard([&] { return codec != nullptr ? codec->codec->record_rows() : 0; }, size_t{0});
}

tersekv_status tersekv_codec_encode(const tersekv_codec* codec, const float* rows, size_t n, uint8_t* records) {
  return Guard([&] {
    if (codec == nullptr || rows == nullptr || records == nullptr) return Null("codec, rows or records");
    return Report(codec->codec->Encode(rows, n, records));
  });
}

tersekv_status tersekv_codec_decode(const tersekv_codec* codec, const uint8_t* records, size_t n, float* rows) {
  return Guard([&] {
    if (codec == nullptr || rows == nullptr || records == nullptr) return Null("codec, rows or records");
    codec->codec->Decode(records, n, rows);
    return TERSEKV_OK;
  });
}

tersekv_status tersekv_cache_create(const tersekv_cache_config* config, tersekv_cache** out) {
  return Guard([&] {
    if (config == nullptr || out == nullptr) return Null("config or out");
    const bool newer = config->struct_size != sizeof(FirstCacheConfig);
    const size_t known = newer ? sizeof *config : sizeof(FirstCacheConfig);
    if (auto s = CheckSize("tersekv_cache_config", config->struct_size, known); s != TERSEKV_OK) return s;
    if (config->spec == nullptr || config->layers == nullptr) return Null("config.spec or config.layers");
    const Result<tersekv::KvSpec> parsed = tersekv::ParseSpec(config->spec);
    if (!parsed) return Report(parsed.error());
    tersekv::CacheConfig c;
    c.spec = *parsed;
    for (int32_t l = 0; l < config->n_layers; ++l) {
      const tersekv_layer_shape& s = config->layers[l];
      c.layers.push_back({s.heads, s.kv_heads, s.head_dim_k, s.head_dim_v});
    }
    if (newer) {
      c.rollback = config->rollback;
      if (config->windows != nullptr) c.windows.assign(config->windows, config->windows + c.layers.size());
    }
    c.byte_budget = config->byte_budget;
    c.max_workers = config->max_workers;
    if (config->arithmetic < TERSEKV_INT16 || config->arithmetic > TERSEKV_FAST) {
      return Report(tersekv::InvalidArgument(
          fmt::format("arithmetic is {}: 0 (int16), 1 (exact) and 2 (fast) are known", config->arithmetic)));
    }
    c.arithmetic = static_cast<tersekv::Arithmetic>(config->arithmetic);
    auto cache = KvCache::Create(c);
    if (!cache) return Report(cache.error());
    *out = new tersekv_cache{std::move(*cache)};
    return TERSEKV_OK;
  });
}

void tersekv_cache_destroy(tersekv_cache* cache) { delete cache; }

tersekv_status tersekv_step_begin(tersekv_cache* cache, const tersekv_step_token* tokens, size_t n) {
  return Guard([&] {
    if (cache == nullptr || tokens == nullptr) return Null("cache or tokens");
    std::vector<tersekv::StepToken> step(n);
    for (size_t i = 0; i < n; ++i) step[i] = {tokens[i].seq, tokens[i].pos};
    return Report(cache->cache->BeginStep(step));
  });
}

tersekv_status tersekv_step_write_rows(tersekv_cache* cache, int32_t layer, tersekv_side side, const float* rows,
                                       int64_t row_stride, int32_t worker, int32_t workers) {
  return Guard([&] {
    if (cache == nullptr || rows == nullptr) return Null("cache or rows");
    if (auto s = CheckPlace(cache, layer, worker, workers); s != TERSEKV_OK) return s;
    cache->cache->WriteRows(layer, Side(side), rows, row_stride, worker, workers);
    return TERSEKV_OK;
  });
}

tersekv_status tersekv_step_attend(tersekv_cache* cache, int32_t layer, const tersekv_attention* a, int32_t worker,
                                   int32_t workers) {
  return Guard([&] {
    if (cache == nullptr || a == nullptr) return Null("cache or attention");
    if (auto s = CheckSize("tersekv_attention", a->struct_size, sizeof *a); s != TERSEKV_OK) return s;
    if (a->q == nullptr || a->out == nullptr) return Null("attention.q or attention.out");
    if (auto s = CheckPlace(cache, layer, worker, workers); s != TERSEKV_OK) return s;
    const int32_t heads = cache->cache->config().layers[static_cast<size_t>(layer)].heads;
    if (a->heads != heads) {
      return Report(
          tersekv::InvalidArgument(fmt::format("attention.heads is {}, layer {} has {}", a->heads, layer, heads)));
    }
    const std::vector<int32_t>& windows = cache->cache->config().windows;
    const int32_t window = windows.empty() ? 0 : windows[static_cast<size_t>(layer)];
    if (window > 0 && (a->window <= 0 || a->window > window)) {
      return Report(tersekv::InvalidArgument(
          fmt::format("attention.window is {}, layer {} was made with windows of up to {}", a->window, layer, window)));
    }
    tersekv::Queries queries;
    queries.data = a->q;
    queries.token_stride = a->q_token_stride;
    queries.head_stride = a->q_head_stride;
    queries.heads = a->heads;
    queries.out = a->out;
    queries.out_token_stride = a->out_token_stride;
    queries.out_head_stride = a->out_head_stride;
    queries.lse = a->lse;
    cache->cache->Attend(layer, {a->scale, a->window, a->softcap, a->max_alibi_bias, a->sinks}, queries, worker,
                         workers);
    return TERSEKV_OK;
  });
}

tersekv_status tersekv_step_end(tersekv_cache* cache) {
  return Guard([&] { return cache == nullptr ? Null("cache") : Report(cache->cache->EndStep()); });
}
void tersekv_step_abort(tersekv_cache* cache) {
  Guard([&] {
    if (cache != nullptr) cache->cache->AbortStep();
    return TERSEKV_OK;
  });
}

int64_t tersekv_sequence_length(const tersekv_cache* cache, int32_t seq) {
  return Guard([&] { return cache != nullptr ? cache->cache->Length(seq) : 0; }, int64_t{0});
}
int32_t tersekv_sequence_first_position(const tersekv_cache* cache, int32_t seq) {
  return Guard([&] { return cache != nullptr ? cache->cache->FirstPosition(seq) : -1; }, int32_t{-1});
}
int32_t tersekv_sequence_last_position(const tersekv_cache* cache, int32_t seq) {
  return Guard([&] { return cache != nullptr ? cache->cache->LastPosition(seq) : -1; }, int32_t{-1});
}
tersekv_status tersekv_sequence_truncate(tersekv_cache* cache, int32_t seq, int64_t tokens) {
  return Guard([&] { return cache == nullptr ? Null("cache") : Report(cache->cache->Truncate(seq, tokens)); });
}
tersekv_status tersekv_sequence_fork(tersekv_cache* cache, int32_t from, int32_t to) {
  return Guard([&] { return cache == nullptr ? Null("cache") : Report(cache->cache->Fork(from, to)); });
}
void tersekv_sequence_remove(tersekv_cache* cache, int32_t seq) {
  Guard([&] {
    if (cache != nullptr) cache->cache->Remove(seq);
    return TERSEKV_OK;
  });
}

tersekv_status tersekv_sequence_remove_range(tersekv_cache* cache, int32_t seq, int64_t begin, int64_t end) {
  return Guard([&] { return cache == nullptr ? Null("cache") : Report(cache->cache->RemoveRange(seq, begin, end)); });
}
tersekv_status tersekv_sequence_copy(tersekv_cache* cache, int32_t from, int32_t to, int64_t begin, int64_t end) {
  return Guard([&] { return cache == nullptr ? Null("cache") : Report(cache->cache->Copy(from, to, begin, end)); });
}
void tersekv_sequence_keep(tersekv_cache* cache, int32_t seq) {
  Guard([&] {
    if (cache != nullptr) cache->cache->Keep(seq);
    return TERSEKV_OK;
  });
}
tersekv_status tersekv_sequence_shift(tersekv_cache* cache, int32_t seq, int64_t begin, int64_t end, int64_t delta,
                                      const tersekv_key_rotation* rotations, size_t n) {
  return Guard([&] {
    if (cache == nullptr || (n > 0 && rotations == nullptr)) return Null("cache or rotations");
    std::vector<tersekv::KeyRotation> turns(n);
    for (size_t i = 0; i < n; ++i) {
      if (rotations[i].pairs < 0 || (rotations[i].pairs > 0 && rotations[i].frequency == nullptr)) {
        return Null("rotations.frequency");
      }
      turns[i].frequency.assign(rotations[i].frequency, rotations[i].frequency + rotations[i].pairs);
      turns[i].interleaved = rotations[i].interleaved != 0;
      turns[i].first_channel = rotations[i].first_channel;
    }
    return Report(cache->cache->Shift(seq, begin, end, delta, turns));
  });
}

tersekv_status tersekv_cache_usage(const tersekv_cache* cache, tersekv_usage* usage) {
  return Guard([&] {
    if (cache == nullptr || usage == nullptr) return Null("cache or usage");
    if (auto s = CheckSize("tersekv_usage", usage->struct_size, sizeof *usage); s != TERSEKV_OK) return s;
    const tersekv::CacheUsage u = cache->cache->Usage();
    *usage = {static_cast<uint32_t>(sizeof *usage),
              u.bytes_used,
              u.bytes_reserved,
              u.bytes_f16,
              u.scratch,
              u.tokens,
              u.tokens_packed,
              u.bits_effective};
    return TERSEKV_OK;
  });
}

}  // extern "C"
