// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "src/transform/sign_stream.h"
#include "tersekv/prefix.h"

namespace tersekv {

PrefixCache::PrefixCache(KvCache* cache, size_t most, int32_t first_id)
    : cache_(cache), most_(most), next_id_(first_id) {}

PrefixCache::~PrefixCache() {
  while (Evict()) continue;
}

std::vector<uint64_t> PrefixCache::Chain(std::span<const int32_t> tokens) const {
  const size_t page = static_cast<size_t>(cache_->config().spec.page);
  std::vector<uint64_t> chain;
  uint64_t hash = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    hash = Mix(hash ^ static_cast<uint32_t>(tokens[i]));
    if ((i + 1) % page == 0) chain.push_back(hash);
  }
  return chain;
}

// Tokens that both begin with. A chain is equal up to some page and different from there on.
int64_t PrefixCache::Common(const Start& start, std::span<const int32_t> tokens,
                            const std::vector<uint64_t>& chain) const {
  const auto differ = std::mismatch(start.chain.begin(), start.chain.end(), chain.begin(), chain.end()).first;
  const ptrdiff_t same = (differ - start.chain.begin()) * cache_->config().spec.page;
  if (!std::equal(start.tokens.begin(), start.tokens.begin() + same, tokens.begin())) return 0;  // hashes met
  const auto end = std::mismatch(start.tokens.begin() + same, start.tokens.end(), tokens.begin() + same, tokens.end());
  return end.first - start.tokens.begin();
}

bool PrefixCache::Evict() {
  if (starts_.empty()) return false;
  cache_->Remove(starts_.back().id);
  starts_.pop_back();
  return true;
}

void PrefixCache::ForgetRemoved() {
  starts_.remove_if([this](const Start& start) {
    if (cache_->Length(start.id) == static_cast<int64_t>(start.tokens.size())) return false;
    cache_->Remove(start.id);
    return true;
  });
}

Status PrefixCache::Keep(int32_t seq, std::span<const int32_t> tokens) {
  if (static_cast<int64_t>(tokens.size()) != cache_->Length(seq)) {
    return InvalidArgument(
        fmt::format("{} tokens are given for sequence {}, which has {}", tokens.size(), seq, cache_->Length(seq)));
  }
  if (tokens.empty() || most_ == 0) return {};
  ForgetRemoved();
  for (auto it = starts_.begin(); it != starts_.end(); ++it) {
    if (!std::equal(it->tokens.begin(), it->tokens.end(), tokens.begin(), tokens.end())) continue;
    starts_.splice(starts_.begin(), starts_, it);
    return {};
  }
  while (starts_.size() >= most_) Evict();
  Status status = cache_->Fork(seq, next_id_);
  while (status.code() == StatusCode::kOutOfBudget && Evict()) status = cache_->Fork(seq, next_id_);
  if (!status.ok()) return status;
  starts_.push_front({next_id_++, {tokens.begin(), tokens.end()}, Chain(tokens)});
  return {};
}

Result<int64_t> PrefixCache::Begin(int32_t seq, std::span<const int32_t> tokens, int64_t most) {
  if (cache_->Length(seq) != 0) {
    return InvalidArgument(fmt::format("sequence {} holds {} tokens: remove it first", seq, cache_->Length(seq)));
  }
  ForgetRemoved();
  const CacheConfig& config = cache_->config();
  const std::vector<uint64_t> chain = Chain(tokens);
  auto best = starts_.end();
  int64_t longest = 0;
  for (auto it = starts_.begin(); it != starts_.end(); ++it) {
    const int64_t common = std::min(Common(*it, tokens, chain), most);
    const int64_t cut = static_cast<int64_t>(it->tokens.size()) - common;
    if (common <= longest || (cut > config.rollback && !config.spec.raw())) continue;
    best = it;
    longest = common;
  }
  if (best == starts_.end()) return 0;
  starts_.splice(starts_.begin(), starts_, best);
  Status status = cache_->Fork(best->id, seq);
  while (status.code() == StatusCode::kOutOfBudget && starts_.size() > 1 && Evict()) {
    status = cache_->Fork(best->id, seq);
  }
  if (status.ok()) status = cache_->Truncate(seq, longest);
  if (status.code() == StatusCode::kUnsupported) {  // a windowed layer lacks what the cut brings into sight
    cache_->Remove(seq);
    return 0;
  }
  if (status.ok() && cache_->Length(seq) != longest) {
    status = Internal(fmt::format("{} tokens of a kept start were taken over, not {}", cache_->Length(seq), longest));
  }
  if (status.ok()) return longest;
  cache_->Remove(seq);
  return status;
}

}  // namespace tersekv
