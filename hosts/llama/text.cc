// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/text.h"

#include <fmt/format.h>

#include <limits>

namespace tersekv::llama {

Result<std::vector<int32_t>> TokenizeText(const Model& model, std::string_view text, bool add_special,
                                          bool parse_special) {
  if (text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max() / 2)) {
    return InvalidArgument(fmt::format("the text has {} bytes, the limit is 1 GiB", text.size()));
  }
  std::vector<int32_t> tokens(text.size() + 8);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const int32_t n = llama_tokenize(model.vocab(), text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                                     static_cast<int32_t>(tokens.size()), add_special, parse_special);
    if (n >= 0) {
      tokens.resize(static_cast<size_t>(n));
      return tokens;
    }
    if (n == std::numeric_limits<int32_t>::min()) break;
    tokens.resize(static_cast<size_t>(-n));
  }
  return InvalidArgument("the text has more tokens than the engine counts");
}

std::string PieceOf(const Model& model, int32_t token) {
  std::string piece(32, '\0');
  int32_t n = llama_token_to_piece(model.vocab(), token, piece.data(), static_cast<int32_t>(piece.size()), 0, false);
  if (n < 0) {
    piece.resize(static_cast<size_t>(-n));
    n = llama_token_to_piece(model.vocab(), token, piece.data(), static_cast<int32_t>(piece.size()), 0, false);
  }
  piece.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return piece;
}

Result<std::string> ChatPrompt(const Model& model, std::span<const ChatMessage> messages) {
  if (model.info.chat_template.empty()) {
    return Unsupported("the model file has no chat template: give the prompt as plain text (--no-chat)");
  }
  std::vector<llama_chat_message> chat;
  size_t size = 1024;
  for (const ChatMessage& m : messages) {
    chat.push_back({m.role.c_str(), m.content.c_str()});
    size += 2 * (m.role.size() + m.content.size());
  }
  std::string prompt(size, '\0');
  for (int attempt = 0; attempt < 2; ++attempt) {
    const int32_t n = llama_chat_apply_template(model.info.chat_template.c_str(), chat.data(), chat.size(), true,
                                                prompt.data(), static_cast<int32_t>(prompt.size()));
    if (n < 0) break;
    const bool fits = static_cast<size_t>(n) <= prompt.size();
    prompt.resize(static_cast<size_t>(n));
    if (fits) return prompt;
  }
  return Unsupported("llama.cpp does not know the model's chat template: give the prompt as plain text (--no-chat)");
}

}  // namespace tersekv::llama
