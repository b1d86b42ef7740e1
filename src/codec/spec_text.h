// SPDX-License-Identifier: Apache-2.0
// Text helpers of the spec parser: inputs may be any bytes of any length, messages stay short and printable.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tersekv {

// Printable form of at most 60 characters: other bytes as \xNN, a cut is marked with "...".
std::string Clip(std::string_view text);

// Clip in single quotes.
std::string Quote(std::string_view text);

// Strict decimal: digits only, no leading zero, at most `max`.
enum class NumberError : uint8_t { kNone, kMalformed, kTooLarge };
NumberError ParseNumber(std::string_view text, uint64_t max, uint64_t* out);

// "a, b or c".
std::string OneOf(std::span<const std::string_view> names);

// Levenshtein distance in bytes. Time and memory grow with the product of the lengths: clip first.
int EditDistance(std::string_view a, std::string_view b);

// Up to `count` of KnownSpecs() by edit distance; among equals those in this version, then V no wider than K.
std::vector<std::string> NearestKnown(std::string_view text, size_t count);

// ASCII lower case without white space.
std::string Normalized(std::string_view text);

}  // namespace tersekv
