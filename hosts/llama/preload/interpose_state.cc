// SPDX-License-Identifier: Apache-2.0
// llama_state_*: the real functions would save a staging area.
#include <cstring>

#include "hosts/llama/preload/interpose.h"
#include "hosts/llama/preload/say.h"

namespace tersekv::llama::preload {
namespace {

constexpr int32_t kAll = StateCodec::kAll;

bool Partial(llama_state_seq_flags flags) { return (flags & LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) != 0; }

size_t Size(Context* ours, int32_t seq, bool partial) {
  const Result<std::string_view> state = ours->state().Save(seq, partial);
  if (!state) Say(0, "{}", state.error().message());
  return state ? state->size() : 0;
}

size_t Save(Context* ours, uint8_t* out, size_t size, int32_t seq, bool partial) {
  const Result<std::string_view> state = ours->state().Save(seq, partial);
  if (!state || state->size() > size) {
    Say(0, "{}", state ? "there is no room for the state" : state.error().message());
    return 0;
  }
  std::memcpy(out, state->data(), state->size());
  return state->size();
}

size_t Load(Context* ours, const uint8_t* bytes, size_t size, int32_t seq) {
  const Result<size_t> read = ours->state().Load({reinterpret_cast<const char*>(bytes), size}, seq);
  if (!read) Say(0, "not restored: {}", read.error().message());
  return read ? *read : 0;
}

size_t SaveFile(Context* ours, const char* path, int32_t seq, const llama_token* tokens, size_t n) {
  const Result<size_t> written = ours->state().SaveFile(path, seq, {tokens, n});
  if (!written) Say(0, "not saved: {}", written.error().message());
  return written ? *written : 0;
}

// tokens null: only how many there are.
size_t LoadFile(Context* ours, const char* path, int32_t seq, llama_token* tokens, size_t room, size_t* n) {
  const auto file = StateCodec::ReadFile(path);
  if (!file) {
    Say(0, "not restored: {}", file.error().message());
    return 0;
  }
  *n = file->tokens.size();
  if (tokens == nullptr) return file->bytes.size();
  if (file->tokens.size() > room) {
    Say(0, "not restored: {} has {} tokens and there is room for {}", path, file->tokens.size(), room);
    return 0;
  }
  const std::string_view state = file->state();
  if (Load(ours, reinterpret_cast<const uint8_t*>(state.data()), state.size(), seq) == 0) return 0;
  std::memcpy(tokens, file->tokens.data(), file->tokens.size() * sizeof *tokens);
  return file->bytes.size();
}

}  // namespace

TERSEKV_INTERPOSED size_t llama_state_seq_get_size_ext(llama_context* c, llama_seq_id seq,
                                                       llama_state_seq_flags flags) {
  if (Context* ours = Ours(c)) return On(__func__, ours, size_t{0}, [&] { return Size(ours, seq, Partial(flags)); });
  return TERSEKV_REAL(llama_state_seq_get_size_ext)(c, seq, flags);
}
TERSEKV_INTERPOSED size_t llama_state_seq_get_data_ext(llama_context* c, uint8_t* out, size_t size, llama_seq_id seq,
                                                       llama_state_seq_flags flags) {
  if (Context* ours = Ours(c))
    return On(__func__, ours, size_t{0}, [&] { return Save(ours, out, size, seq, Partial(flags)); });
  return TERSEKV_REAL(llama_state_seq_get_data_ext)(c, out, size, seq, flags);
}
TERSEKV_INTERPOSED size_t llama_state_seq_set_data_ext(llama_context* c, const uint8_t* bytes, size_t size,
                                                       llama_seq_id seq, llama_state_seq_flags flags) {
  if (Context* ours = Ours(c)) return On(__func__, ours, size_t{0}, [&] { return Load(ours, bytes, size, seq); });
  return TERSEKV_REAL(llama_state_seq_set_data_ext)(c, bytes, size, seq, flags);
}
TERSEKV_INTERPOSED size_t llama_state_seq_get_size(llama_context* c, llama_seq_id seq) {
  if (Context* ours = Ours(c)) return On(__func__, ours, size_t{0}, [&] { return Size(ours, seq, false); });
  return TERSEKV_REAL(llama_state_seq_get_size)(c, seq);
}
TERSEKV_INTERPOSED size_t llama_state_seq_get_data(llama_context* c, uint8_t* out, size_t size, llama_seq_id seq) {
  if (Context* ours = Ours(c)) return On(__func__, ours, size_t{0}, [&] { return Save(ours, out, size, seq, false); });
  return TERSEKV_REAL(llama_state_seq_get_data)(c, out, size, seq);
}
TERSEKV_INTERPOSED size_t llama_state_seq_set_data(llama_context* c, const uint8_t* bytes, size_t size,
                                                   llama_seq_id seq) {
  if (Context* ours = Ours(c)) return On(__func__, ours, size_t{0}, [&] { return Load(ours, bytes, size, seq); });
  return TERSEKV_REAL(llama_state_seq_set_data)(c, bytes, size, seq);
}
TERSEKV_INTERPOSED size_t llama_state_get_size(llama_context* c) {
  if (Context* ours = Ours(c)) return On(__func__, ours, size_t{0}, [&] { return Size(ours, kAll, false); });
  return TERSEKV_REAL(llama_state_get_size)(c);
}
TERSEKV_INTERPOSED size_t llama_state_get_data(llama_context* c, uint8_t* out, size_t size) {
  if (Context* ours = Ours(c)) return On(__func__, ours, size_t{0}, [&] { return Save(ours, out, size, kAll, false); });
  return TERSEKV_REAL(llama_state_get_data)(c, out, size);
}
TERSEKV_INTERPOSED size_t llama_state_set_data(llama_context* c, const uint8_t* bytes, size_t size) {
  if (Context* ours = Ours(c)) return On(__func__, ours, size_t{0}, [&] { return Load(ours, bytes, size, kAll); });
  return TERSEKV_REAL(llama_state_set_data)(c, bytes, size);
}
TERSEKV_INTERPOSED size_t llama_state_seq_save_file(llama_context* c, const char* path, llama_seq_id seq,
                                                    const llama_token* tokens, size_t n) {
  if (Context* ours = Ours(c))
    return On(__func__, ours, size_t{0}, [&] { return SaveFile(ours, path, seq, tokens, n); });
  return TERSEKV_REAL(llama_state_seq_save_file)(c, path, seq, tokens, n);
}
TERSEKV_INTERPOSED size_t llama_state_seq_load_file(llama_context* c, const char* path, llama_seq_id seq,
                                                    llama_token* tokens, size_t room, size_t* n) {
  if (Context* ours = Ours(c))
    return On(__func__, ours, size_t{0}, [&] { return LoadFile(ours, path, seq, tokens, room, n); });
  return TERSEKV_REAL(llama_state_seq_load_file)(c, path, seq, tokens, room, n);
}
TERSEKV_INTERPOSED bool llama_state_save_file(llama_context* c, const char* path, const llama_token* tokens, size_t n) {
  if (Context* ours = Ours(c))
    return On(__func__, ours, false, [&] { return SaveFile(ours, path, kAll, tokens, n) > 0; });
  return TERSEKV_REAL(llama_state_save_file)(c, path, tokens, n);
}
TERSEKV_INTERPOSED bool llama_state_load_file(llama_context* c, const char* path, llama_token* tokens, size_t room,
                                              size_t* n) {
  if (Context* ours = Ours(c))
    return On(__func__, ours, false, [&] { return LoadFile(ours, path, kAll, tokens, room, n) > 0; });
  return TERSEKV_REAL(llama_state_load_file)(c, path, tokens, room, n);
}

// Former names.
TERSEKV_INTERPOSED size_t llama_get_state_size(llama_context* c) { return llama_state_get_size(c); }
TERSEKV_INTERPOSED size_t llama_copy_state_data(llama_context* c, uint8_t* out) {
  return llama_state_get_data(c, out, SIZE_MAX);
}
TERSEKV_INTERPOSED size_t llama_set_state_data(llama_context* c, const uint8_t* bytes) {
  return llama_state_set_data(c, bytes, SIZE_MAX);
}
TERSEKV_INTERPOSED bool llama_save_session_file(llama_context* c, const char* path, const llama_token* tokens,
                                                size_t n) {
  return llama_state_save_file(c, path, tokens, n);
}
TERSEKV_INTERPOSED bool llama_load_session_file(llama_context* c, const char* path, llama_token* tokens, size_t room,
                                                size_t* n) {
  return llama_state_load_file(c, path, tokens, room, n);
}

}  // namespace tersekv::llama::preload
