// SPDX-License-Identifier: Apache-2.0
// `tersekv bench codec`: how fast vectors are encoded and decoded, beside llama.cpp's quantisers; or, on given rows,
// how well.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace tersekv::cli {

struct BenchCodecOptions {
  std::string kv =
      "k2v2,k3v3,k4v4,k5v5,k8v8,k3tv3t,k4tv4t,k4qv4q,k4pv4p,kivi-k4v4,fp8,int8,mxfp4,nvfp4,q8_0,q5_0,q4_0,iq4_nl";
  std::string dims = "64,128";
  std::string rows;  // .npy; empty = speed on made-up rows
  int repeat = 7;
  std::string json;
  bool quiet = false;
};

CLI::App* AddBenchCodec(CLI::App* app, BenchCodecOptions* options);
int BenchCodec(const BenchCodecOptions& options);

}  // namespace tersekv::cli
