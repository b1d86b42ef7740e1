// SPDX-License-Identifier: Apache-2.0
// What several commands share: engine flags, spec names, sizes with a suffix, files, and how an error ends a command.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tersekv/llama.h"
#include "tersekv/numbers.h"
#include "tersekv/status.h"

namespace tersekv::cli {

constexpr int kExitOk = 0;
constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

struct EngineOptions {
  std::string model;
  int64_t ctx = 0;
  int threads = 0;
  int ubatch = 512;
  std::string kv_bytes;  // with suffix; empty = no budget
  std::string mode = "auto";
  std::string arithmetic = "int16";
};

// -m, --ctx, --threads, --ubatch, --mode, --arithmetic.
void AddEngineOptions(CLI::App* app, EngineOptions* options, bool with_ctx = true);
void AddArithmeticOption(CLI::App* app, std::string* arithmetic);
Arithmetic ArithmeticOf(const std::string& name);  // "int16", "exact", "fast"
void AddKvBytesOption(CLI::App* app, EngineOptions* options);
void AddJsonOption(CLI::App* app, std::string* path);  // --json [FILE]; without a value "-"
Result<llama::SessionOptions> MakeSessionOptions(const EngineOptions& options, const std::string& kv);

// The canonical name of a spec of ours or of a cache of llama.cpp ("stock-q8_0"); says so when it is unknown or not in
// this build. "auto" passes: a profile decides when the session is opened.
Result<std::string> CheckKv(const std::string& kv);
// "a, b" -> a and b; an empty element is an error.
Result<std::vector<std::string>> ListElements(const std::string& list);
// CheckKv for a comma-separated list; a spec that is named twice is taken once.
Result<std::vector<std::string>> CheckKvList(const std::string& list);
bool IsStock(std::string_view kv);
const std::vector<std::string>& StockCaches();

// Code bits and scale a value, averaged over the model's layers.
double BitsOf(const std::string& kv, const llama::ModelInfo& model);

// A whole file; "-" is standard input. `what` names it in the error.
Result<std::string> ReadText(const std::string& path, const std::string& what);
// Asked before long work: whether WriteText will be able to write there. An empty path is fine.
Status CheckWritable(const std::string& path);
// A whole file or, on an error, nothing of it; "-" is standard output.
Status WriteText(const std::string& path, std::string_view text);

// 16 hexadecimal digits (FNV-1a) that tell contents apart: for names of files and keys, no checksum.
std::string HashOf(std::string_view bytes);

bool Blank(std::string_view text);  // empty or white space only
std::string Trim(std::string_view text);

// Prints "error: message" on stderr; the exit code: 2 when the input can never work, 1 otherwise.
int Fail(const Status& status);

}  // namespace tersekv::cli
