// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/preload/state_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <utility>

#include "src/base/check.h"
#include "src/io/crc64.h"
#include "src/io/file.h"
#include "tersekv/session.h"

namespace tersekv::llama::preload {
namespace {

constexpr uint32_t kStateMagic = 0x4c564b54, kFileMagic = 0x46564b54;  // "TKVL", "TKVF"
constexpr uint32_t kVersion = 1;

struct StateHead {
  uint32_t magic = kStateMagic, version = kVersion, partial = 0, sequences = 0;
};
struct SequenceHead {
  int32_t seq = 0;
  uint32_t zero = 0;
  uint64_t bytes = 0;
};
struct FileHead {
  uint32_t magic = kFileMagic, version = kVersion;
  uint64_t tokens = 0;
};

template <class T>
void Put(const T& value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
bool Get(std::string_view* in, T* value) {
  if (in->size() < sizeof *value) return false;
  std::memcpy(value, in->data(), sizeof *value);
  in->remove_prefix(sizeof *value);
  return true;
}

struct SavedPart {
  int32_t seq = 0;
  std::shared_ptr<std::string> bytes;  // the session has views into them
  SavedSession session;
  std::deque<std::string> pages = {};  // and into these
};

// Gives a partial state the pages of layers without a window that the sequence holds, copied.
Status Complete(const KvCache& cache, int32_t seq, SequenceState* state, std::deque<std::string>* pages) {
  const std::vector<int32_t>& windows = cache.config().windows;
  const Result<SequenceState> now = cache.State(seq);
  const size_t places = state->positions.size();
  if (!now || state->layers.size() != now->layers.size() || state->layers.size() != windows.size() ||
      now->positions.size() < places || now->packed_end < state->packed_end ||
      !std::equal(state->positions.begin(), state->positions.end(), now->positions.begin())) {
    return InvalidArgument(
        fmt::format("a checkpoint of {} tokens, which sequence {} does not begin with any more", state->tokens(), seq));
  }
  for (size_t l = 0; l < windows.size(); ++l) {
    SequenceState::Layer& layer = state->layers[l];
    const SequenceState::Layer& from = now->layers[l];
    if (windows[l] != 0 || layer.pages.empty()) continue;
    for (int i = 0; i < 6; ++i) {
      if (std::ranges::equal(layer.statistics[i / 3][i % 3], from.statistics[i / 3][i % 3])) continue;
      return InvalidArgument(fmt::format("a checkpoint of a sequence {} that has been emptied since", seq));
    }
    if (from.pages.size() < layer.pages.size()) return Internal("a sequence with fewer pages than its checkpoint");
    pages->emplace_back();
    std::string& bytes = pages->back();
    for (size_t p = 0; p < layer.pages.size(); ++p) {
      bytes.append(reinterpret_cast<const char*>(from.pages[p].data()), from.pages[p].size());
    }
    size_t at = 0;
    for (size_t p = 0; p < layer.pages.size(); ++p) {
      layer.pages[p] = {reinterpret_cast<const uint8_t*>(bytes.data()) + at, from.pages[p].size()};
      at += from.pages[p].size();
    }
  }
  return {};
}

Status Damaged(const char* what) { return DataLoss(fmt::format("a saved state of TerseKV {}", what)); }

}  // namespace

Result<std::string> StateCodec::Part(int32_t id, bool partial) const {
  const KvCache& cache = *history_->cache();
  // The program keeps the tokens itself.
  const std::vector<int32_t> tokens(static_cast<size_t>(cache.Length(id)), 0);
  if (!partial) return SerializeSession(cache, id, tokens, model_);
  Result<SequenceState> state = cache.State(id);
  if (!state) return state.error();
  for (size_t l = 0; l < state->layers.size(); ++l) {
    if (cache.config().windows[l] != 0) continue;
    for (std::span<const uint8_t>& page : state->layers[l].pages) page = {};
  }
  return SerializeSession(cache.config(), *state, tokens, model_);
}

Result<std::string_view> StateCodec::Save(int32_t seq, bool partial) {
  const KvCache& cache = *history_->cache();
  StateHead head;
  head.partial = partial ? 1 : 0;
  if (saved_at_ != 0 && saved_at_ == history_->changes() && saved_seq_ == seq && saved_partial_ == partial) {
    return std::string_view(saved_);
  }
  std::vector<int32_t> sequences = cache.Sequences();
  if (partial && cache.config().windows.empty()) {
    sequences.clear();
  } else if (seq != kAll) {
    const bool holds = cache.Length(seq) > 0;
    sequences.assign(holds ? 1 : 0, seq);
  }
  head.sequences = static_cast<uint32_t>(sequences.size());
  saved_.clear();
  saved_at_ = 0;
  Put(head, &saved_);
  for (const int32_t id : sequences) {
    const Result<std::string> bytes = Part(id, partial);
    if (!bytes) return bytes.error();
    Put(SequenceHead{id, 0, bytes->size()}, &saved_);
    saved_ += *bytes;
  }
  saved_seq_ = seq;
  saved_partial_ = partial;
  saved_at_ = history_->changes();
  return std::string_view(saved_);
}

Result<size_t> StateCodec::Load(std::string_view bytes, int32_t seq) {
  std::string_view rest = bytes;
  StateHead head;
  if (!Get(&rest, &head) || head.magic != kStateMagic) {
    return DataLoss("a saved state that TerseKV has not written (llama.cpp's own states cannot be packed)");
  }
  if (head.version != kVersion) return Unsupported(fmt::format("a saved state of version {}", head.version));
  if (head.partial != 0 && head.sequences == 0) return bytes.size() - rest.size();
  if (seq != kAll && head.sequences > 1) {
    return InvalidArgument(fmt::format("a saved state of {} sequences for one sequence", head.sequences));
  }
  std::vector<SavedPart> parts;
  for (uint32_t i = 0; i < head.sequences; ++i) {
    SequenceHead one;
    if (!Get(&rest, &one) || one.bytes > rest.size()) return Damaged("is cut off");
    SavedPart part{seq != kAll ? seq : one.seq, std::make_shared<std::string>(rest.substr(0, one.bytes)), {}};
    rest.remove_prefix(one.bytes);
    Result<SavedSession> session = ParseSession(*part.bytes, "a saved state");
    if (!session) return session.error();
    part.session = std::move(*session);
    if (part.seq < 0 || part.seq >= sizes_.sequences) {
      return InvalidArgument(
          fmt::format("a saved state of sequence {}: the context has {} (n_seq_max)", part.seq, sizes_.sequences));
    }
    for (const SavedPart& other : parts) {
      if (other.seq == part.seq) return Damaged("holds a sequence twice");
    }
    if (part.session.tokens.size() > sizes_.ctx_seq) {
      return InvalidArgument(fmt::format("a saved state of {} tokens: a sequence of this context takes {} (n_ctx)",
                                         part.session.tokens.size(), sizes_.ctx_seq));
    }
    if (head.partial != 0) {
      if (const Status s = Complete(*history_->cache(), part.seq, &part.session.state, &part.pages); !s.ok()) return s;
    }
    parts.push_back(std::move(part));
  }
  if (head.partial == 0) history_->Remove(seq, -1, -1);
  for (const SavedPart& part : parts) {
    history_->Remove(part.seq, -1, -1);
    const Status s = RestoreSession(part.session, model_, history_->cache(), part.seq);
    history_->Changed();
    if (s.ok()) continue;
    history_->Remove(seq, -1, -1);
    return s;
  }
  return bytes.size() - rest.size();
}

Result<size_t> StateCodec::SaveFile(const std::string& path, int32_t seq, std::span<const int32_t> tokens) {
  const Result<std::string_view> state = Save(seq, false);
  if (!state) return state.error();
  std::string bytes;
  Put(FileHead{kFileMagic, kVersion, tokens.size()}, &bytes);
  bytes.append(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  Put(uint64_t{Crc64(bytes)}, &bytes);
  bytes += *state;
  TERSEKV_RETURN_IF_ERROR(WriteFileAtomically(path, bytes, "the saved state"));
  return bytes.size();
}

Result<StateCodec::File> StateCodec::ReadFile(const std::string& path) {
  Result<std::string> bytes = tersekv::ReadFile(path, "the saved state", std::numeric_limits<size_t>::max());
  if (!bytes) return bytes.error();
  std::string_view rest = *bytes;
  FileHead head;
  if (!Get(&rest, &head) || head.magic != kFileMagic) {
    return DataLoss(fmt::format("{} was not saved by TerseKV", path));
  }
  if (head.version != kVersion) return Unsupported(fmt::format("{} is of version {}", path, head.version));
  if (head.tokens > rest.size() / sizeof(int32_t)) return DataLoss(fmt::format("{} is cut off", path));
  File file;
  file.tokens.resize(head.tokens);
  std::memcpy(file.tokens.data(), rest.data(), head.tokens * sizeof(int32_t));
  rest.remove_prefix(head.tokens * sizeof(int32_t));
  const uint64_t crc = Crc64(std::string_view(*bytes).substr(0, bytes->size() - rest.size()));
  uint64_t stored = 0;
  if (!Get(&rest, &stored) || stored != crc) return DataLoss(fmt::format("{} is damaged: its checksum differs", path));
  file.state_at = bytes->size() - rest.size();
  file.bytes = std::move(*bytes);
  return file;
}

}  // namespace tersekv::llama::preload
