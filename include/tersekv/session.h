// SPDX-License-Identifier: Apache-2.0
// Sessions on disk: one sequence of a cache with its tokens, packed pages as they lie there, so that it goes on bit for
// bit. File format: docs/formats.md, "Session file". Functions are thread-safe as far as the cache is.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tersekv/cache.h"
#include "tersekv/profile.h"
#include "tersekv/status.h"

namespace tersekv {

inline constexpr std::string_view kSessionMagic = "TERSEKV\n";  // what a session file begins with

// A file, or bytes, that were checked whole. Copies share what they hold.
struct SavedSession {
  int version = 0;
  std::string tersekv_version;  // that wrote it
  std::string model_name, model_fingerprint;
  std::string spec;                   // canonical
  std::vector<LayerShape> layers;     // by KV layer
  std::vector<LayerBits> layer_bits;  // as CacheConfig's
  std::vector<int32_t> windows;       // as CacheConfig's
  std::vector<int32_t> tokens;        // one a token of the sequence, in order
  SequenceState state;                // views into `memory`
  size_t bytes = 0;                   // of the file
  std::shared_ptr<const void> memory;

  // How many of `wanted` are already there: the tokens both begin with.
  int64_t Reusable(std::span<const int32_t> wanted) const;
};

// The bytes of a session file. tokens: those of the sequence, Length(seq) of them. kNotFound: the sequence is empty.
Result<std::string> SerializeSession(const KvCache& cache, int32_t seq, std::span<const int32_t> tokens,
                                     const ModelIdentity& model);
// kDataLoss: truncated, damaged (every byte is under a checksum) or no session; kUnsupported: another version. name:
// for messages. The bytes must stay where they are while the session is used.
Result<SavedSession> ParseSession(std::string_view bytes, const std::string& name);

// Written atomically: a temporary file beside it, fsync, rename, fsync of the folder.
Status SaveSession(const std::string& path, const KvCache& cache, int32_t seq, std::span<const int32_t> tokens,
                   const ModelIdentity& model);
// Maps the file and checks all of it. kNotFound, and as ParseSession.
Result<SavedSession> OpenSession(const std::string& path);

// Puts it into the empty sequence `seq`. kInvalidArgument: another model, spec, widths or profile, both named. On
// failure nothing has changed. Not looked at: CacheConfig::first_layer, which must be the same.
Status RestoreSession(const SavedSession& session, const ModelIdentity& model, KvCache* cache, int32_t seq);

}  // namespace tersekv
