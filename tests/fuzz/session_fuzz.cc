// SPDX-License-Identifier: Apache-2.0
// Bytes as a session file, whose checksums are made right: what parses either goes into a cache and is attended, or is
// refused with a reason.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "src/io/crc64.h"
#include "tersekv/session.h"
#include "tests/fuzz/fuzz.h"

namespace tersekv::fuzz {
namespace {

std::unique_ptr<KvCache> MakeCache(int which) {
  constexpr const char* kSpecs[] = {"k4v4+sink=1+win=2", "kivi-k2v2+win=1", "f16", "k2v2+mean=off+scale=off+win=3"};
  CacheConfig config;
  config.spec = ParseSpec(kSpecs[which % 4]).value();
  config.layers = {{1, 1, 32, 32}};
  if (which >= 4) config.windows = {40};
  config.byte_budget = 1u << 20;
  return KvCache::Create(config).value();
}

void Step(KvCache* cache, int32_t position) {
  const StepToken token = {0, position};
  if (!cache->BeginStep({&token, 1}).ok()) return;
  float row[32], out[32];
  for (int c = 0; c < 32; ++c) row[c] = static_cast<float>(c % 5) - 2;
  cache->WriteRows(0, Kv::kK, row, 0, 0, 1);
  cache->WriteRows(0, Kv::kV, row, 0, 0, 1);
  AttentionParams params;
  if (!cache->config().windows.empty()) params.window = cache->config().windows[0];
  Queries queries;
  queries.data = row;
  queries.heads = 1;
  queries.out = out;
  cache->Attend(0, params, queries, 0, 1);
  (void)cache->EndStep();
}

// The session that byte 0 of an input stands for.
std::string Made(int which) {
  auto cache = MakeCache(which);
  for (int32_t i = 0; i < 140; ++i) Step(cache.get(), i);
  if (which % 2 == 1) TERSEKV_CHECK(cache->RemoveRange(0, 9, 30).ok());
  const std::vector<int32_t> tokens(static_cast<size_t>(cache->Length(0)), 7);
  return SerializeSession(*cache, 0, tokens, {"m", "f", {}}).value();
}

// Checksums where the header says that they are.
void MakeRight(std::string* bytes) {
  uint64_t n;
  if (bytes->size() < 64) return;
  std::memcpy(&n, bytes->data() + 16, 8);
  if (n > bytes->size()) return;
  const size_t data = (24 + n + 8 + 63) / 64 * 64;
  if (data > bytes->size()) return;
  const uint64_t crc = Crc64(std::string_view(*bytes).substr(0, data - 8));
  std::memcpy(bytes->data() + data - 8, &crc, 8);
}

}  // namespace

// Byte 0: which session; then triples: place (two bytes, over the header or the positions), value.
void FuzzSession(std::span<const uint8_t> data_in) {
  Input in(data_in);
  const int which = in.Byte() % 8;
  static const std::vector<std::string> kMade = [] {
    std::vector<std::string> made;
    for (int i = 0; i < 8; ++i) made.push_back(Made(i));
    return made;
  }();
  std::string bytes = kMade[static_cast<size_t>(which)];
  uint64_t header;
  std::memcpy(&header, bytes.data() + 16, 8);
  const size_t data = (24 + header + 8 + 63) / 64 * 64, positions = (140 * 4 + 8 + 63) / 64 * 64;
  bool whole = true;
  for (int i = 0; i < 20 && !in.empty(); ++i) {
    const size_t at = (static_cast<size_t>(in.Byte()) << 8 | in.Byte()) % (data + positions);
    const uint8_t value = in.Byte();
    whole = whole && static_cast<uint8_t>(bytes[at]) == value;
    bytes[at] = static_cast<char>(value);
  }
  if (in.Byte() % 4 == 1) bytes.resize(bytes.size() - in.Byte() % 200 - 1);
  MakeRight(&bytes);
  if (data + positions <= bytes.size()) {
    const uint64_t crc = Crc64(std::string_view(bytes).substr(data, positions - 8));
    std::memcpy(bytes.data() + data + positions - 8, &crc, 8);
  }
  const Result<SavedSession> session = ParseSession(bytes, "it");
  if (!session) {
    TERSEKV_CHECK(!session.error().message().empty());
    return;
  }
  auto cache = MakeCache(which);
  const Status status = RestoreSession(*session, {"m", "f", {}}, cache.get(), 0);
  if (!status.ok()) {
    TERSEKV_CHECK(!status.message().empty() && cache->Usage().bytes_used == 0);
    return;
  }
  const auto next = [&] {
    return static_cast<int32_t>(std::min<int64_t>(int64_t{cache->LastPosition(0)} + 1, INT32_MAX));
  };
  for (int i = 0; i < 3; ++i) Step(cache.get(), next());
  (void)cache->RemoveRange(0, 5, 60);
  (void)cache->Truncate(0, cache->Length(0) / 2);
  Step(cache.get(), next());
  cache->Remove(0);
  TERSEKV_CHECK(cache->Usage().pages == 0);
}

}  // namespace tersekv::fuzz
