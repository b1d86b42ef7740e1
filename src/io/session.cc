// SPDX-License-Identifier: Apache-2.0
// Sessions as bytes and files.
#include "tersekv/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "src/base/check.h"
#include "src/io/crc64.h"
#include "src/io/file.h"
#include "src/io/session_header.h"
#include "tersekv/version.h"

namespace tersekv {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr size_t kAlign = 64;

size_t Padded(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Sections one after another: data, zeros, and in the last 8 bytes the CRC-64 of both; a multiple of 64 bytes together.
class Writer {
 public:
  explicit Writer(std::string* out) : out_(*out) {}
  void Add(const void* data, size_t bytes) {
    if (bytes == 0) return;
    const size_t at = out_.size();
    out_.append(static_cast<const char*>(data), bytes);
    out_.resize(at + Padded(bytes + 8) - 8);
    const uint64_t crc = Crc64({out_.data() + at, out_.size() - at});
    out_.append(reinterpret_cast<const char*>(&crc), 8);
  }
  template <class T>
  void Add(std::span<const T> values) {
    Add(values.data(), values.size() * sizeof(T));
  }

 private:
  std::string& out_;
};

class Reader {
 public:
  Reader(std::string_view bytes, size_t at) : bytes_(bytes), at_(at) {}
  // False: not there, or damaged.
  bool Take(size_t bytes, const char** data) {
    *data = nullptr;
    if (bytes == 0) return true;
    if (bytes > bytes_.size()) return false;
    const size_t whole = Padded(bytes + 8);
    if (whole > bytes_.size() - at_) return false;
    uint64_t crc;
    std::memcpy(&crc, bytes_.data() + at_ + whole - 8, 8);
    if (Crc64(bytes_.substr(at_, whole - 8)) != crc) return false;
    *data = bytes_.data() + at_;
    at_ += whole;
    return true;
  }
  template <class T>
  bool Take(size_t count, std::span<const T>* values) {
    const char* data = nullptr;
    if (count > bytes_.size() || !Take(count * sizeof(T), &data)) return false;
    *values = {reinterpret_cast<const T*>(data), count};
    return true;
  }
  size_t at() const { return at_; }

 private:
  std::string_view bytes_;
  size_t at_;
};

Status Mismatch(const std::string& what, const std::string& saved, const std::string& here) {
  return InvalidArgument(
      fmt::format("the session was saved with {} {}, this cache has {}: use the same", what, saved, here));
}

std::string Text(const LayerShape& s) {
  return fmt::format("{} heads over {} KV heads of {} / {}{}", s.heads, s.kv_heads, s.head_dim_k, s.head_dim_v,
                     s.latent ? ", a latent kept once" : "");
}

}  // namespace

int64_t SavedSession::Reusable(std::span<const int32_t> wanted) const {
  const auto [a, b] = std::mismatch(tokens.begin(), tokens.end(), wanted.begin(), wanted.end());
  (void)b;
  return a - tokens.begin();
}

Result<std::string> SerializeSession(const KvCache& cache, int32_t seq, std::span<const int32_t> tokens,
                                     const ModelIdentity& model) {
  const Result<SequenceState> state = cache.State(seq);
  return state ? SerializeSession(cache.config(), *state, tokens, model) : state.error();
}

Result<std::string> SerializeSession(const CacheConfig& config, const SequenceState& state,
                                     std::span<const int32_t> tokens, const ModelIdentity& model) {
  if (static_cast<int64_t>(tokens.size()) != state.tokens()) {
    return InvalidArgument(
        fmt::format("{} tokens are given for a sequence that has {}", tokens.size(), state.tokens()));
  }
  SessionHeader header;
  header.tersekv_version = Version();
  header.model_name = model.name;
  header.model_fingerprint = model.fingerprint;
  header.spec = FormatSpec(config.spec);
  header.layers = config.layers;
  header.layer_bits = config.layer_bits;
  header.windows = config.windows;
  header.places = static_cast<int64_t>(state.positions.size());
  header.tokens = static_cast<int64_t>(tokens.size());
  header.packed_end = state.packed_end;
  header.raw_begin = state.raw_begin;
  header.ring_capacity = state.ring_capacity;
  header.first_layer = state.first_layer;
  for (const SequenceState::Layer& layer : state.layers) {
    SessionHeader::Layer& l = header.sections.emplace_back();
    for (int i = 0; i < 6; ++i) l.statistics[i] = layer.statistics[i / 3][i % 3].size();
    for (int i = 0; i < 2; ++i) l.sink_bytes[i] = layer.sinks[i].size();
    for (int i = 0; i < 2; ++i) l.ring_bytes[i] = layer.ring[i].size();
    l.pages = layer.pages.size();
    while (l.gone < l.pages && layer.pages[l.gone].empty()) ++l.gone;
    l.page_bytes = l.gone < l.pages ? layer.pages.back().size() : 0;
  }
  const Result<std::string> json = FormatSessionHeader(header);
  if (!json) return json.error();
  std::string out(kSessionMagic);
  const uint64_t numbers[2] = {kSessionVersion, json->size()};
  out.append(reinterpret_cast<const char*>(numbers), sizeof numbers);
  size_t pages = 0;
  for (const SessionHeader::Layer& l : header.sections) pages += (l.pages - l.gone) * Padded(l.page_bytes + 8);
  out.reserve(out.size() + json->size() + pages + pages / 8);
  out += *json;
  out.resize(Padded(out.size() + 8) - 8, ' ');
  const uint64_t crc = Crc64(out);
  out.append(reinterpret_cast<const char*>(&crc), 8);
  Writer writer(&out);
  writer.Add(std::span<const int32_t>(state.positions));
  writer.Add(tokens);
  for (const SequenceState::Layer& layer : state.layers) {
    for (int i = 0; i < 6; ++i) writer.Add(layer.statistics[i / 3][i % 3]);
    for (int i = 0; i < 2; ++i) writer.Add(layer.sinks[i]);
    for (int i = 0; i < 2; ++i) writer.Add(layer.ring[i]);
    for (const std::span<const uint8_t>& page : layer.pages) writer.Add(page);
  }
  return out;
}

Result<SavedSession> ParseSession(std::string_view bytes, const std::string& name) {
  const auto damaged = [&](const std::string& what) {
    return DataLoss(fmt::format("session '{}' {}: it is truncated or damaged; make it again", name, what));
  };
  constexpr size_t kFixed = 24;
  if (bytes.size() < kFixed) return damaged(fmt::format("has {} bytes", bytes.size()));
  if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(int32_t) != 0) {
    return InvalidArgument(fmt::format("session '{}' is not aligned to {} bytes: copy it", name, alignof(int32_t)));
  }
  if (!bytes.starts_with(kSessionMagic)) {
    return DataLoss(
        fmt::format("'{}' is no session file: it does not begin with {}", name, kSessionMagic.substr(0, 7)));
  }
  uint64_t numbers[2];
  std::memcpy(numbers, bytes.data() + 8, sizeof numbers);
  if (numbers[0] != kSessionVersion) {
    return Unsupported(fmt::format("session '{}' has format version {}, this build reads {}: make it again", name,
                                   numbers[0], kSessionVersion));
  }
  if (numbers[1] > kMostSessionHeader) return damaged(fmt::format("has a header of {} bytes", numbers[1]));
  if (numbers[1] > bytes.size() - kFixed) return damaged("ends within its header");
  const size_t data = Padded(kFixed + numbers[1] + 8);
  if (data > bytes.size()) return damaged("ends within its header");
  uint64_t crc;
  std::memcpy(&crc, bytes.data() + data - 8, 8);
  if (Crc64(bytes.substr(0, data - 8)) != crc) return damaged("has a header that does not fit its checksum");
  const Result<SessionHeader> header = ParseSessionHeader(bytes.substr(kFixed, numbers[1]), name);
  if (!header) return header.error();

  uint64_t held = 0;
  for (const SessionHeader::Layer& layer : header->sections) held += layer.pages - layer.gone;
  if (held > bytes.size() / kAlign) return damaged(fmt::format("has {} bytes for {} pages", bytes.size(), held));

  SavedSession session;
  session.version = static_cast<int>(numbers[0]);
  session.tersekv_version = header->tersekv_version;
  session.model_name = header->model_name;
  session.model_fingerprint = header->model_fingerprint;
  session.spec = header->spec;
  session.layers = header->layers;
  session.layer_bits = header->layer_bits;
  session.windows = header->windows;
  session.bytes = bytes.size();
  session.state.packed_end = header->packed_end;
  session.state.raw_begin = header->raw_begin;
  session.state.ring_capacity = header->ring_capacity;
  session.state.first_layer = header->first_layer;
  Reader reader(bytes, data);
  std::span<const int32_t> positions, tokens;
  if (!reader.Take(static_cast<size_t>(header->places), &positions) ||
      !reader.Take(static_cast<size_t>(header->tokens), &tokens)) {
    return damaged("does not hold its positions and tokens");
  }
  session.state.positions.assign(positions.begin(), positions.end());
  session.tokens.assign(tokens.begin(), tokens.end());
  if (header->tokens == 0) return damaged("holds no tokens");
  if (session.state.tokens() != header->tokens) return damaged("has other tokens than positions");
  for (size_t l = 0; l < header->sections.size(); ++l) {
    const SessionHeader::Layer& from = header->sections[l];
    SequenceState::Layer& layer = session.state.layers.emplace_back();
    bool good = true;
    for (int i = 0; i < 6; ++i) good = good && reader.Take(from.statistics[i], &layer.statistics[i / 3][i % 3]);
    for (int i = 0; i < 2; ++i) good = good && reader.Take(from.sink_bytes[i], &layer.sinks[i]);
    for (int i = 0; i < 2; ++i) good = good && reader.Take(from.ring_bytes[i], &layer.ring[i]);
    if (!good) return damaged(fmt::format("has statistics or raw rows of layer {} that do not fit their checksum", l));
    for (size_t p = 0; p < from.pages; ++p) {
      std::span<const uint8_t>& page = layer.pages.emplace_back();
      if (p < from.gone) continue;
      if (from.page_bytes == 0 || !reader.Take(from.page_bytes, &page)) {
        return damaged(fmt::format("has page {} of layer {} that does not fit its checksum", p, l));
      }
    }
  }
  if (reader.at() != bytes.size()) return damaged(fmt::format("has {} bytes too many", bytes.size() - reader.at()));
  return session;
}

Status SaveSession(const std::string& path, const KvCache& cache, int32_t seq, std::span<const int32_t> tokens,
                   const ModelIdentity& model) {
  const Result<std::string> bytes = SerializeSession(cache, seq, tokens, model);
  return bytes ? WriteFileAtomically(path, *bytes, "session") : bytes.error();
}

Result<SavedSession> OpenSession(const std::string& path) {
  Result<std::shared_ptr<const MappedFile>> file = MapFile(path, "session");
  if (!file) return file.error();
  Result<SavedSession> session = ParseSession((*file)->bytes(), path);
  if (session) session->memory = *file;
  return session;
}

Status RestoreSession(const SavedSession& session, const ModelIdentity& model, KvCache* cache, int32_t seq) {
  if (session.model_fingerprint != model.fingerprint) {
    return InvalidArgument(
        fmt::format("the session is of model '{}' ({}), this is '{}' ({}): a history fits only the "
                    "weights it was made with",
                    session.model_name, session.model_fingerprint, model.name, model.fingerprint));
  }
  const CacheConfig& config = cache->config();
  if (const std::string spec = FormatSpec(config.spec); session.spec != spec) {
    return Mismatch("--kv", session.spec, spec);
  }
  if (session.layers.size() != config.layers.size()) {
    return Mismatch("layers", fmt::format("{}", session.layers.size()), fmt::format("{}", config.layers.size()));
  }
  for (size_t l = 0; l < config.layers.size(); ++l) {
    if (session.layers[l] == config.layers[l]) continue;
    return Mismatch(fmt::format("layer {} of", l), Text(session.layers[l]), Text(config.layers[l]));
  }
  if (session.layer_bits != config.layer_bits) return Mismatch("other widths a layer (--bits),", "its own", "others");
  if (session.windows != config.windows) return Mismatch("sliding windows", "of its own", "others");
  return cache->Restore(seq, session.state);
}

}  // namespace tersekv
