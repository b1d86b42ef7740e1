// SPDX-License-Identifier: Apache-2.0
// Parameters of the one attention family: GQA of any ratio, causal by position, sliding window, softcap, ALiBi, learned
// sinks, K dim != V dim, any number of query tokens. A host fills what its model has and leaves the rest.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tersekv {

struct AttentionParams {
  float scale = 1.0f;            // of q.k, usually 1/sqrt(head_dim)
  int32_t window = 0;            // query at position p sees p - window < pos <= p; 0 = all
  float softcap = 0.0f;          // cap * tanh(score / cap) after `scale`; 0 = off (Gemma 2)
  float max_alibi_bias = 0.0f;   // ALiBi: slope_h * (pos - p), slopes as in Press et al. 2022, section 3; 0 = off
  const float* sinks = nullptr;  // [heads] learned sink logits, one more term of each softmax's sum (gpt-oss); or null
};

// q: fp32, value c of head h of token t at data + t*token_stride + h*head_stride + c*4 (strides in bytes);
// heads is a multiple of the layer's kv_heads, heads of one KV head are neighbours.
// out: fp32, value c of head h of token t at out + t*out_token_stride + h*out_head_stride + c*4.
// lse: [tokens, heads] log of the softmax's sum, or null.
struct Queries {
  const float* data = nullptr;
  ptrdiff_t token_stride = 0, head_stride = 0;
  int heads = 0;
  float* out = nullptr;
  ptrdiff_t out_token_stride = 0, out_head_stride = 0;
  float* lse = nullptr;
};

// ALiBi slope of head h of n (max_bias = 8 in most models).
float AlibiSlope(int head, int heads, float max_bias);

}  // namespace tersekv
