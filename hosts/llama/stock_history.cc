// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/stock_history.h"

#include <algorithm>
#include <cstring>

namespace tersekv::llama {
namespace {

Status Unknown() { return Unsupported("llama.cpp's sequence state is laid out in a way this version does not know"); }

class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  template <class T>
  bool Read(T* value) {
    if (bytes_.size() < sizeof(T)) return false;
    std::memcpy(value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return true;
  }
  bool Take(size_t n, std::span<const uint8_t>* taken) {
    if (bytes_.size() < n) return false;
    *taken = bytes_.first(n);
    bytes_ = bytes_.subspan(n);
    return true;
  }
  bool empty() const { return bytes_.empty(); }
  size_t left() const { return bytes_.size(); }

 private:
  std::span<const uint8_t> bytes_;
};

template <class T>
void Append(const T& value, std::vector<uint8_t>* out) {
  out->resize(out->size() + sizeof(T));
  std::memcpy(out->data() + out->size() - sizeof(T), &value, sizeof(T));
}

// One side of one layer: type, bytes a row, rows.
bool RepeatSide(Reader* reader, uint32_t cells, int64_t tokens, std::vector<uint8_t>* out) {
  int32_t type = 0;
  uint64_t row = 0;
  std::span<const uint8_t> rows;
  if (!reader->Read(&type) || !reader->Read(&row) || row == 0 || !reader->Take(row * cells, &rows)) return false;
  Append(type, out);
  Append(row, out);
  for (int64_t t = 0; t < tokens; t += cells) {
    const auto n = static_cast<size_t>(std::min<int64_t>(cells, tokens - t)) * row;
    out->insert(out->end(), rows.begin(), rows.begin() + static_cast<ptrdiff_t>(n));
  }
  return true;
}

}  // namespace

Result<std::vector<uint8_t>> RepeatState(std::span<const uint8_t> state, int32_t seq, int64_t tokens) {
  Reader reader(state);
  uint32_t magic = 0, streams = 0, cells = 0, transposed = 0, layers = 0;
  int32_t from = 0;
  if (!reader.Read(&magic) || !reader.Read(&from) || !reader.Read(&streams) || streams != 1 || !reader.Read(&cells) ||
      cells == 0)
    return Unknown();
  std::vector<uint8_t> out;
  out.reserve(state.size() / cells * static_cast<size_t>(tokens) + state.size());
  Append(magic, &out);
  Append(seq, &out);
  Append(streams, &out);
  Append(static_cast<uint32_t>(tokens), &out);
  for (uint32_t i = 0; i < cells; ++i) {
    int32_t position = 0, owner = 0;
    uint32_t owners = 0;
    if (!reader.Read(&position) || !reader.Read(&owners) || owners != 1 || !reader.Read(&owner)) return Unknown();
  }
  for (int64_t t = 0; t < tokens; ++t) {
    Append(static_cast<int32_t>(t), &out);
    Append(uint32_t{1}, &out);
    Append(seq, &out);
  }
  if (!reader.Read(&transposed) || transposed != 0 || !reader.Read(&layers)) return Unknown();
  Append(transposed, &out);
  Append(layers, &out);
  for (uint32_t side = 0; side < 2 * layers; ++side) {
    if (!RepeatSide(&reader, cells, tokens, &out)) return Unknown();
  }
  if (reader.empty()) return out;
  // A hybrid: what its recurrent layers keep, of the last token alone, which is now the last of the repeated ones.
  uint32_t states = 0, owners = 0;
  int32_t position = 0;
  std::span<const uint8_t> rest;
  if (!reader.Read(&states) || states != 1 || !reader.Read(&position) || position + 1 != static_cast<int32_t>(cells) ||
      !reader.Read(&owners) || owners != 0 || !reader.Take(reader.left(), &rest)) {
    return Unknown();
  }
  Append(states, &out);
  Append(static_cast<int32_t>(tokens - 1), &out);
  Append(owners, &out);
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

}  // namespace tersekv::llama
