// SPDX-License-Identifier: Apache-2.0
// `tersekv eval`: what a packed cache costs in quality, bytes and speed, against an f16 cache in the same run.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/profiles.h"

namespace tersekv::cli {

constexpr int64_t kLeastContext = 16;

struct EvalOptions {
  EngineOptions engine;
  ProfileOptions profile;
  std::string text;
  std::string kv = "k4v4";
  std::string reference = "f16";
  int64_t tokens = 4096;  // scored at least
  std::string json, csv;
  std::string resume;  // file that keeps the contexts done; empty = none
  bool quiet = false;
};

CLI::App* AddEval(CLI::App* app, EvalOptions* options);
int Eval(const EvalOptions& options);

// The text cut into contexts: [bos] + consecutive tokens, `length` in all. Positions first_scored .. length - 1 are
// scored: the logits of a position predict the text's next token.
struct EvalPlan {
  int64_t length = 0;        // tokens a context
  int64_t first_scored = 0;  // length / 2
  int contexts = 0;
  std::vector<int32_t> bos;   // none or one
  std::vector<int32_t> text;  // all tokens of the file

  int64_t scored() const { return contexts * (length - first_scored); }
  std::vector<int32_t> Context(int c) const;
  // Token that follows position `pos` of context c (pos >= first_scored).
  int32_t Next(int c, int64_t pos) const;
  // n tokens to go on with after context c; starts over when the text ends.
  std::vector<int32_t> Continuation(int c, int n) const;
};
// kInvalidArgument names the tokens that the text has and needs. Fewer contexts than `tokens` asks for is no error.
Result<EvalPlan> MakePlan(std::vector<int32_t> text, std::vector<int32_t> bos, int64_t length, int64_t tokens);

}  // namespace tersekv::cli
