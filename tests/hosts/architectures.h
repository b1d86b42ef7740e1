// SPDX-License-Identifier: Apache-2.0
// The table of docs/hosts.md: one row an architecture, each held by architectures_test.cc on a model with random f32
// weights.
#pragma once

#include <ostream>
#include <vector>

namespace tersekv::llama {

struct Architecture {
  const char* name;               // of llama.cpp, general.architecture
  const char* models;             // that use it
  const char* attention;          // what is special
  const char* arguments;          // of make_model.py random, beside --arch
  double limit = 1e-5;            // relative RMS of logits, f32 cache against llama.cpp's own without flash attention
  double kl_limit = 1e-3;         // mean KL of k8v8
  const char* refused = nullptr;  // in the error; null: it works
};

inline void PrintTo(const Architecture& a, std::ostream* out) { *out << a.name << " " << a.arguments; }

inline const std::vector<Architecture>& Architectures() {
  static const std::vector<Architecture> kTable = {
      {"llama", "Llama, SmolLM, Mistral", "GQA of any ratio", "--heads 8 --kv-heads 2"},
      {"qwen2", "Qwen2, Qwen2.5", "biases on Q, K and V", "--heads 6 --kv-heads 2"},
      {"qwen2vl", "Qwen2-VL and other M-RoPE models", "text only: a session takes tokens, no images",
       "--heads 4 --kv-heads 2"},
      {"qwen3", "Qwen3", "norms of Q and K", "--heads 8 --kv-heads 2 --embd 256"},
      {"mpt", "MPT", "ALiBi, large logits", "--heads 8", 1e-4},
      {"gemma2", "Gemma 2", "sliding window in every second layer, soft cap on scores",
       "--heads 4 --kv-heads 2 --window 256"},
      {"gemma3", "Gemma 3", "sliding window in most layers, head_dim 256, norms of Q and K",
       "--heads 4 --kv-heads 1 --head-dim 256 --embd 256 --window 256"},
      {"gemma3n", "Gemma 3n", "layers that read the KV of an earlier layer, which holds it once; sliding window",
       "--heads 2 --kv-heads 1 --embd 128 --window 256"},
      {"gpt-oss", "gpt-oss", "learned sinks, sliding window in every second layer, experts",
       "--heads 8 --kv-heads 2 --embd 256 --window 128"},
      {"phi3", "Phi-3, Phi-4", "LongRoPE: contexts above the trained length get a larger staging area",
       "--heads 4 --kv-heads 2"},
      {"deepseek2", "DeepSeek-V2, V3, R1", "MLA: the latent with its rotary part is K, V is the latent: kept once",
       "--heads 4 --embd 256 --latent 512"},
      {"lfm2", "LFM2", "hybrid: convolutions keep their state in llama.cpp", "--heads 4 --kv-heads 2"},
      {"qwen3next", "Qwen3-Next", "hybrid: gated delta nets keep their state in llama.cpp; experts",
       "--heads 4 --kv-heads 2 --embd 128"},
      {"llama4", "Llama 4", "attention in chunks", "--heads 4 --kv-heads 2 --embd 128", 0, 0,
       "masks its keys in another way than by a window"},
      {"grok", "Grok", "llama.cpp turns flash attention off", "--heads 4 --kv-heads 2", 0, 0,
       "runs without flash attention in llama.cpp"},
      {"deepseek32", "DeepSeek-V3.2, GLM-5 and others with sparse attention", "an indexer with a cache of its own",
       "--heads 4 --embd 256", 0, 0, "an indexer with a cache of its own picks the keys they attend to"},
      {"mamba", "Mamba, RWKV", "recurrent state only", "--heads 4", 0, 0,
       "they keep a recurrent state, not a KV cache"},
      {"t5", "T5 and other encoder-decoder models", "an encoder", "--heads 4", 0, 0, "they have an encoder"},
  };
  return kTable;
}

}  // namespace tersekv::llama
