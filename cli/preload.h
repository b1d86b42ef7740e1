// SPDX-License-Identifier: Apache-2.0
// `tersekv exec` and `tersekv serve`: unmodified llama.cpp programs on packed KV, through libtersekv_preload.so.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "tersekv/status.h"

namespace tersekv::cli {

// Becomes TERSEKV_* variables of the program.
struct PreloadOptions {
  std::string kv = "k4v4", profile, kv_bytes, ctx;
  double bits = 0;
  bool strict = false;
  int status_port = -1;  // -1: none
  std::string status_host;
  std::string prefix;
  int64_t drift = -1;      // -1: as the environment says
  double drift_limit = 0;  // 0: as the environment says
};

struct ExecOptions {
  PreloadOptions preload;
  std::vector<std::string> command;
};

struct ServeOptions {
  PreloadOptions preload;
  std::string model, server = "llama-server", host = "127.0.0.1";
  int port = 8080, slots = 1;
  int64_t context = 0;            // tokens, of all slots; 0: llama-server's choice
  std::vector<std::string> more;  // of llama-server
};

CLI::App* AddExec(CLI::App* app, ExecOptions* options);
int Exec(const ExecOptions& options);                               // returns only on failure
int Start(const std::string& program, const ExecOptions& options);  // the same with a path of CheckProgram
CLI::App* AddServe(CLI::App* app, ServeOptions* options);
int Serve(const ServeOptions& options);  // the server's exit code, 128 + its signal

// Whether the options can work and the object is there.
Status CheckPreload(const PreloadOptions& options);
// The path of a program that can run under the object: its llama.cpp is in a shared library, or comes in another way,
// which is said on stderr. Errors as of FindDynamicProgram (program.h).
Result<std::string> CheckProgram(const std::string& name);
// libtersekv_preload.so beside this program: of a build or an installation.
Result<std::string> FindPreloadObject();

}  // namespace tersekv::cli
