// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/preload/abi.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <new>

#include "hosts/llama/preload/engine.h"

namespace tersekv::llama {
namespace {

struct Wide {
  unsigned char bytes[1024];
};
using MakeWide = Wide (*)();

// A function that returns a large struct writes it where the caller says, and no more than its own size.
__attribute__((noinline)) void CallInto(Wide* place, MakeWide function) { new (place) Wide(function()); }

// Bytes from the first to the last one that the function writes, whatever was there.
size_t WrittenBytes(MakeWide function) {
  static Wide a, b;
  std::memset(a.bytes, 0xa5, sizeof a.bytes);
  std::memset(b.bytes, 0x5a, sizeof b.bytes);
  CallInto(&a, function);
  CallInto(&b, function);
  size_t written = 0;
  for (size_t i = 0; i < sizeof a.bytes; ++i) {
    if (a.bytes[i] == b.bytes[i]) written = i + 1;
  }
  return written;
}

// A struct ends in padding that may not be written.
bool SizeFits(size_t written, size_t expected) { return written <= expected && written + alignof(void*) > expected; }

bool ContextDefaultsFit(const llama_context_params& p) {
  return p.n_ctx == 512 && p.n_batch == 2048 && p.n_ubatch == 512 && p.n_seq_max == 1 && p.cb_eval == nullptr &&
         p.type_k == GGML_TYPE_F16 && p.type_v == GGML_TYPE_F16 && p.yarn_ext_factor == -1.0f &&
         p.flash_attn_type == LLAMA_FLASH_ATTN_TYPE_AUTO && p.offload_kqv && !p.embeddings && !p.kv_unified;
}

Status Check() {
  const Engine& e = FillEngine();
  if (*MissingFunctions() != '\0') {
    return Unsupported(fmt::format("this libllama has no {}", MissingFunctions()));
  }
  const size_t context = WrittenBytes(Recast<MakeWide>(e.f_llama_context_default_params));
  const size_t model = WrittenBytes(Recast<MakeWide>(e.f_llama_model_default_params));
  if (!SizeFits(context, sizeof(llama_context_params)) || !SizeFits(model, sizeof(llama_model_params))) {
    return Unsupported(
        fmt::format("libllama {} has context parameters of {} bytes and model parameters of {}, this object was built "
                    "for {} and {}",
                    e.f_llama_version(), context, model, sizeof(llama_context_params), sizeof(llama_model_params)));
  }
  if (!ContextDefaultsFit(e.f_llama_context_default_params())) {
    return Unsupported(fmt::format(
        "the fields of libllama {}'s context parameters are not where this object expects them", e.f_llama_version()));
  }
  return {};
}

}  // namespace

const Status& CheckAbi() {
  static const Status status = Check();
  return status;
}

}  // namespace tersekv::llama
