// SPDX-License-Identifier: Apache-2.0
// Sessions on disk: one sequence of a cache with its tokens, packed pages as they lie there, so that it goes on bit for
// bit. File format: docs/formats.md, "Session file". Functions that take a cache are for its thread; the others may run
// anywhere at once.
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

// A file, or bytes, that were checked whole: structure and checksums. Whether it fits a cache, RestoreSession says.
// Copies view the same memory: that of the file, which lives as long as one of them, or the bytes given to
// ParseSession.
struct SavedSession {
  int version = 0;
  std::string tersekv_version;  // that wrote it
  std::string model_name, model_fingerprint;
  std::string spec;                    // canonical
  std::vector<LayerShape> layers;      // by KV layer
  std::vector<LayerBits> layer_bits;   // as CacheConfig's
  std::vector<int32_t> windows;        // as CacheConfig's
  std::vector<int32_t> tokens;         // one a token of the sequence, in order
  SequenceState state;                 // views into the file or the bytes
  size_t bytes = 0;                    // of the file
  std::shared_ptr<const void> memory;  // of OpenSession: the mapped file

  // How many of `wanted` are already there: the tokens both begin with. Positions are not looked at: a sequence from
  // which ranges were removed, or that was shifted, is not what a fresh run of these tokens gives.
  int64_t Reusable(std::span<const int32_t> wanted) const;
};

// The bytes of a session file. tokens: those of the sequence, Length(seq) of them (kInvalidArgument); they are stored
// as they are. kNotFound: the sequence is empty; kUnsupported: it has more than 2^24 pages over all layers.
Result<std::string> SerializeSession(const KvCache& cache, int32_t seq, std::span<const int32_t> tokens,
                                     const ModelIdentity& model);
// Of a state, or of what is left of one: pages may be empty from the first on, as those that were given back.
Result<std::string> SerializeSession(const CacheConfig& config, const SequenceState& state,
                                     std::span<const int32_t> tokens, const ModelIdentity& model);
// kDataLoss: truncated, damaged (every byte is under a checksum) or no session; kUnsupported: another version. name:
// for messages. The bytes, aligned to 4 bytes or more, must stay where they are while the session is used. A checksum
// is no signature: what was changed on purpose may pass, and is refused where it cannot be a sequence of the cache.
Result<SavedSession> ParseSession(std::string_view bytes, const std::string& name);

// Written atomically: a temporary file beside it, fsync, rename, fsync of the folder. Several threads or processes may
// save to one path at once: the last rename stays, whole. Bytes are made in memory first.
Status SaveSession(const std::string& path, const KvCache& cache, int32_t seq, std::span<const int32_t> tokens,
                   const ModelIdentity& model);
// Maps the file and checks all of it. kNotFound, and as ParseSession.
Result<SavedSession> OpenSession(const std::string& path);

// Puts it into the empty sequence `seq`. kInvalidArgument: another model, spec, shape, first_layer, widths, windows or
// profile, both named, or no state of such a cache; kOutOfBudget. On failure nothing has changed. May differ: rollback,
// budget, arithmetic, prefill and workers. What a host limits (sequences, tokens, positions) it checks itself.
Status RestoreSession(const SavedSession& session, const ModelIdentity& model, KvCache* cache, int32_t seq);

}  // namespace tersekv
