// SPDX-License-Identifier: Apache-2.0
// Counter-based random bits: the signs before the Hadamard transform (docs/decisions/0001-contract.md, section 3).
#pragma once

#include <cstdint>

namespace tersekv {

// SplitMix64's output function on x + 0x9E3779B97F4A7C15 (Steele, Lea, Flood: Fast splittable pseudorandom number
// generators, OOPSLA 2014).
constexpr uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Bit j%64 of word j/64 is the sign of channel j: 0 is +1, 1 is -1. layer: KV-layer ordinal.
constexpr uint64_t SignWord(uint64_t seed, int layer, int kv_head, bool value_side, int word) {
  const uint64_t stream = 2 * static_cast<uint64_t>(kv_head) + (value_side ? 1 : 0);
  return Mix(Mix(Mix(Mix(seed) ^ static_cast<uint64_t>(layer)) ^ stream) ^ static_cast<uint64_t>(word));
}

// The seed of a stream of its own beside that of `seed`.
constexpr uint64_t DerivedSeed(uint64_t seed, uint64_t purpose) { return Mix(seed ^ purpose); }
inline constexpr uint64_t kSecondRound = 0x6832;   // "h2": signs of the second Hadamard round
inline constexpr uint64_t kProjection = 0x514a4c;  // "QJL": signs or entries of prod's projection

// signs: [d] of +1.0f / -1.0f.
void FillSigns(uint64_t seed, int layer, int kv_head, bool value_side, int d, float* signs);

}  // namespace tersekv
