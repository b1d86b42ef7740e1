// SPDX-License-Identifier: Apache-2.0
// A model with its KV cache packed to 4 bits: session MODEL.gguf ["PROMPT"]. Link tersekv::llama.
#include <tersekv/llama.h>

#include <algorithm>
#include <cstdio>

namespace {

int Fail(const tersekv::Status& status) {
  std::fprintf(stderr, "error: %s\n", status.message().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return Fail(tersekv::InvalidArgument("usage: session MODEL.gguf [PROMPT]"));
  tersekv::llama::SessionOptions options;
  options.model_path = argv[1];
  options.kv = "k4v4";  // any spec of `tersekv codecs`
  options.ctx = 2048;
  auto opened = tersekv::llama::Session::Open(options);
  if (!opened) return Fail(opened.error());
  tersekv::llama::Session& session = **opened;

  auto prompt = session.Tokenize(argc > 2 ? argv[2] : "The three primary colours are", true, false);
  if (!prompt) return Fail(prompt.error());
  if (tersekv::Status s = session.Prefill(*prompt, 0, nullptr); !s.ok()) return Fail(s);
  for (int n = 0; n < 32; ++n) {  // greedy
    const auto logits = session.Logits(0);
    const auto token = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (session.IsEndOfGeneration(token)) break;
    std::printf("%s", session.Piece(token).c_str());
    const tersekv::llama::BatchToken next = {token, static_cast<int32_t>(session.Length(0)), 0, true};
    if (tersekv::Status s = session.Decode({&next, 1}); !s.ok()) return Fail(s);
  }
  // The newest 128 tokens stay raw: a text must be longer than that for its cache to shrink.
  const tersekv::CacheUsage usage = session.Usage();
  std::printf("\n%lld tokens: %zu bytes, as f16 %zu\n", static_cast<long long>(usage.tokens), usage.bytes_used,
              usage.bytes_f16);
  return 0;
}
