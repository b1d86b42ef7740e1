// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/preload/sizes.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/check.h"
#include "tersekv/capacity.h"

namespace tersekv::llama::preload {
namespace {

constexpr uint32_t kPad = 256;
uint32_t PadUp(uint32_t n) { return (n + kPad - 1) / kPad * kPad; }

// As llama.cpp computes n_ctx and n_ctx_seq.
void SetContext(uint32_t tokens, Sizes* sizes) {
  sizes->ctx = sizes->ctx_seq = PadUp(tokens);
  if (sizes->shared) return;
  const auto n = static_cast<uint32_t>(sizes->sequences);
  sizes->ctx_seq = PadUp(sizes->ctx / n);
  sizes->ctx = sizes->ctx_seq * n;
}

}  // namespace

Result<Sizes> PlanSizes(const llama_context_params& params, int ctx_train, const CacheConfig& config,
                        const Settings& settings) {
  Sizes sizes;
  sizes.sequences = static_cast<int>(std::max(1u, params.n_seq_max));
  sizes.shared = params.kv_unified;
  uint32_t wanted = params.n_ctx != 0 ? params.n_ctx : static_cast<uint32_t>(ctx_train);
  SetContext(wanted, &sizes);
  sizes.requested = sizes.ctx;
  sizes.f16 = F16Bytes(config.layers, sizes.requested);
  if (settings.ctx > 0) SetContext(wanted = static_cast<uint32_t>(settings.ctx), &sizes);
  const bool fit = settings.ctx == Settings::kAutoCtx && params.ctx_other == nullptr;
  sizes.budget = settings.kv_bytes != 0 ? settings.kv_bytes : sizes.f16;
  const Result<int64_t> tokens = CapacityTokens(config, sizes.budget, sizes.sequences, settings.prefix);
  if (!tokens) return tokens.error();
  sizes.total_tokens = *tokens * sizes.sequences;
  if (fit) {
    const int64_t most = sizes.shared ? sizes.total_tokens : *tokens * sizes.sequences;
    const int64_t unit = static_cast<int64_t>(kPad) * (sizes.shared ? 1 : sizes.sequences);
    if (most < unit) {
      return OutOfBudget(fmt::format("{} bytes hold {} tokens as {} in {} sequences: the least is {}", sizes.budget,
                                     sizes.total_tokens, FormatSpec(config.spec), sizes.sequences, unit));
    }
    SetContext(wanted = static_cast<uint32_t>(std::min<int64_t>(most / unit * unit, INT32_MAX / 2)), &sizes);
  }
  const auto n = static_cast<uint32_t>(sizes.sequences);
  const int64_t each = (sizes.ctx + n - 1) / n;
  const Result<size_t> needed = CapacityBytes(config, each, sizes.sequences, settings.prefix);
  if (!needed) return needed.error();
  const bool fits = fit || *tokens >= each;  // CapacityBytes may be above the least
  sizes.needed = fits ? std::min(*needed, sizes.budget) : *needed;
  if (!fits) {
    if (settings.kv_bytes != 0) {
      return OutOfBudget(fmt::format(
          "{} tokens in {} sequences take {} bytes as {}, TERSEKV_KV_BYTES is {}: that holds {} "
          "tokens. Lower the context or the sequences, raise it or set TERSEKV_CTX=auto",
          sizes.ctx, sizes.sequences, sizes.needed, FormatSpec(config.spec), sizes.budget, sizes.total_tokens));
    }
    sizes.budget = sizes.needed;  // a raw window of each of many short sequences can take more than f16
    sizes.total_tokens = sizes.ctx;
  }
  sizes.batch = std::min(wanted, params.n_batch);
  sizes.staging = PadUp(std::max(sizes.batch, n));
  return sizes;
}

}  // namespace tersekv::llama::preload
