// SPDX-License-Identifier: Apache-2.0
// Parses a spec, round-trips a row, appends and attends: the C++ API from outside.
#include <tersekv/tersekv.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace {

int Fail(const std::string& what) {
  std::printf("failed: %s\n", what.c_str());
  return 1;
}

}  // namespace

int main() {
  auto spec = tersekv::ParseSpec("k4v4+win=16");
  if (!spec) return Fail(spec.error().ToString());
  if (tersekv::FormatSpec(*spec) != "k4v4+win=16") return Fail("FormatSpec");
  if (tersekv::ParseSpec("k9v4")) return Fail("k9v4 was taken");

  constexpr int kDim = 64;
  auto codec = tersekv::VectorCodec::Create(*spec, tersekv::Kv::kK, kDim);
  if (!codec) return Fail(codec.error().ToString());
  std::vector<float> row(kDim), back(kDim);
  for (int c = 0; c < kDim; ++c) row[c] = std::sin(static_cast<float>(3 * c + 1));
  std::vector<uint8_t> record((*codec)->record_bytes());
  if (tersekv::Status s = (*codec)->Encode(row.data(), 1, record.data()); !s.ok()) return Fail(s.ToString());
  (*codec)->Decode(record.data(), 1, back.data());
  float error = 0, norm = 0;
  for (int c = 0; c < kDim; ++c) {
    error += (row[c] - back[c]) * (row[c] - back[c]);
    norm += row[c] * row[c];
  }
  if (!(error < 0.02f * norm)) return Fail("a 4-bit row is further off than 2%");

  tersekv::CacheConfig config;
  config.spec = *spec;
  config.layers = {{2, 1, kDim, kDim}};  // two query heads on one KV head
  auto cache = tersekv::KvCache::Create(config);
  if (!cache) return Fail(cache.error().ToString());
  std::vector<float> q(2 * kDim, 0.1f), out(2 * kDim);
  for (int pos = 0; pos < 300; ++pos) {
    const tersekv::StepToken token{0, pos};
    if (tersekv::Status s = (*cache)->BeginStep({&token, 1}); !s.ok()) return Fail(s.ToString());
    (*cache)->WriteRows(0, tersekv::Kv::kK, row.data(), 0, 0, 1);
    (*cache)->WriteRows(0, tersekv::Kv::kV, row.data(), 0, 0, 1);
    tersekv::AttentionParams params;
    params.scale = 0.125f;
    tersekv::Queries queries;
    queries.data = q.data();
    queries.heads = 2;
    queries.out = out.data();
    queries.head_stride = queries.out_head_stride = kDim * sizeof(float);
    (*cache)->Attend(0, params, queries, 0, 1);
    if (tersekv::Status s = (*cache)->EndStep(); !s.ok()) return Fail(s.ToString());
  }
  // All values are the same row, so their weighted mean is that row.
  for (int c = 0; c < kDim; ++c) {
    if (!(std::fabs(out[c] - row[c]) < 0.02f)) return Fail("attention over equal rows");
  }
  const tersekv::CacheUsage usage = (*cache)->Usage();
  if (usage.tokens != 300 || usage.tokens_packed < 200) return Fail("usage");
  std::printf("tersekv %s: %zu bytes for %lld tokens\n", tersekv::Version(), usage.bytes_used,
              static_cast<long long>(usage.tokens));
  return 0;
}
