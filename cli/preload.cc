// SPDX-License-Identifier: Apache-2.0
#include "cli/preload.h"

#include <elf.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/options.h"

namespace tersekv::cli {
namespace {

namespace fs = std::filesystem;

// Whether the dynamic loader will read LD_PRELOAD for it; scripts are run by a program that may.
Status CheckDynamic(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  Elf64_Ehdr head = {};
  in.read(reinterpret_cast<char*>(&head), sizeof head);
  if (in.gcount() >= 2 && std::memcmp(&head, "#!", 2) == 0) return {};
  if (in.gcount() != sizeof head || std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
      head.e_ident[EI_CLASS] != ELFCLASS64) {
    return Unsupported(fmt::format("{} is no 64-bit program", path));
  }
  for (int i = 0; i < head.e_phnum; ++i) {
    Elf64_Phdr part = {};
    in.seekg(static_cast<std::streamoff>(head.e_phoff + static_cast<uint64_t>(i) * head.e_phentsize));
    in.read(reinterpret_cast<char*>(&part), sizeof part);
    if (in && part.p_type == PT_INTERP) return {};
  }
  return Unsupported(
      fmt::format("{} is linked statically, so that nothing can be put in front of its llama.cpp: use a build with "
                  "shared libraries (BUILD_SHARED_LIBS=ON)",
                  path));
}

// In our own environment, for the program that takes our place.
Status SetVariables(const PreloadOptions& options) {
  if (Status status = CheckPreload(options); !status.ok()) return status;
  const auto set = [](const char* name, const std::string& value) {
    if (!value.empty()) setenv(name, value.c_str(), 1);
  };
  const char* before = std::getenv("LD_PRELOAD");
  set("LD_PRELOAD", *FindPreloadObject() + (before != nullptr && *before != '\0' ? std::string(":") + before : ""));
  set("TERSEKV_KV", *CheckKv(options.kv));
  set("TERSEKV_PROFILE", options.profile);
  set("TERSEKV_KV_BYTES", options.kv_bytes);
  set("TERSEKV_CTX", options.ctx);
  if (options.bits != 0) set("TERSEKV_BITS", fmt::format("{}", options.bits));
  if (options.strict) set("TERSEKV_STRICT", "1");
  return {};
}

void AddPreloadOptions(CLI::App* app, PreloadOptions* options) {
  app->add_option("--kv", options->kv, "How the history is stored: a spec string, see `tersekv codecs`")
      ->envname("TERSEKV_KV")
      ->capture_default_str();
  app->add_option("--profile", options->profile, "Profile of the model, made by `tersekv calibrate`");
  app->add_option("--bits", options->bits, "Average bits, laid out over the layers as the profile says");
  app->add_option("--kv-bytes", options->kv_bytes,
                  "Bytes of the history (512M); default: what f16 takes for the context");
  app->add_option("--kv-ctx", options->ctx,
                  "Tokens of the context whatever the program asks for, or auto: what the bytes hold");
  app->add_flag("--strict", options->strict, "Refuse what cannot be packed instead of leaving it to llama.cpp");
}

}  // namespace

Result<std::string> FindPreloadObject() {
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* place : {"../lib/libtersekv_preload.so", "../lib64/libtersekv_preload.so",
                            "../lib/x86_64-linux-gnu/libtersekv_preload.so",
                            "../hosts/llama/preload/libtersekv_preload.so", "libtersekv_preload.so"}) {
    const fs::path path = fs::weakly_canonical(folder / place, error);
    if (fs::exists(path, error)) return path.string();
  }
  return NotFound(
      fmt::format("libtersekv_preload.so is not beside {}: build the target tersekv_preload", folder.string()));
}

Status CheckPreload(const PreloadOptions& options) {
  if (IsStock(options.kv)) {
    return InvalidArgument(fmt::format("--kv {}: for llama.cpp's own caches start the program by itself", options.kv));
  }
  const Result<std::string> kv = CheckKv(options.kv);
  if (!kv) return kv.error();
  const Result<std::string> object = FindPreloadObject();
  return object.status();
}

Result<std::string> FindDynamicProgram(const std::string& name) {
  std::vector<std::string> candidates = {name};
  if (name.find('/') == std::string::npos) {
    candidates.clear();
    const char* path = std::getenv("PATH");
    std::stringstream folders(path != nullptr ? path : "");
    for (std::string folder; std::getline(folders, folder, ':');) candidates.push_back(folder + "/" + name);
  }
  for (const std::string& candidate : candidates) {
    if (access(candidate.c_str(), X_OK) != 0 || fs::is_directory(candidate)) continue;
    if (const Status s = CheckDynamic(candidate); !s.ok()) return s;
    return candidate;
  }
  return NotFound(fmt::format("{} is not in PATH and no program: give its path", name));
}

CLI::App* AddExec(CLI::App* app, ExecOptions* options) {
  CLI::App* exec = app->add_subcommand("exec", "Run an unmodified llama.cpp program on packed KV");
  AddPreloadOptions(exec, &options->preload);
  exec->add_option("command", options->command, "The program and its arguments, after --")->required();
  exec->footer(
      "The start-up lines on stderr say what was packed, or why not.\n\n"
      "Example:\n  tersekv exec --kv k4v4 -- llama-bench -m model.gguf -p 512 -n 64");
  return exec;
}

int Exec(const ExecOptions& options) {
  const Result<std::string> program = FindDynamicProgram(options.command[0]);
  if (!program) return Fail(program.error());
  if (const Status s = SetVariables(options.preload); !s.ok()) return Fail(s);
  std::vector<char*> arguments;
  for (const std::string& a : options.command) arguments.push_back(const_cast<char*>(a.c_str()));
  arguments.push_back(nullptr);
  execv(program->c_str(), arguments.data());
  return Fail(Internal(fmt::format("{} does not start: {}", *program, std::strerror(errno))));
}

CLI::App* AddServe(CLI::App* app, ServeOptions* options) {
  CLI::App* serve = app->add_subcommand("serve", "Serve a model with llama-server on packed KV");
  serve->add_option("-m,--model", options->model, "GGUF file")->required();
  serve->add_option("--server", options->server, "llama-server, by name or path")->capture_default_str();
  serve->add_option("--host", options->host, "Address to listen at")->capture_default_str();
  serve->add_option("--port", options->port, "Port to listen at")->capture_default_str()->check(CLI::Range(1, 65535));
  serve->add_option("--slots", options->slots, "Requests served at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  serve->add_option("--ctx", options->context, "Tokens of the context, of all slots together; 0: llama-server's choice")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{INT32_MAX}));
  AddPreloadOptions(serve, &options->preload);
  serve->add_option("arguments", options->more, "More arguments of llama-server, after --");
  serve->footer(
      "llama-server itself, found in PATH or by --server, with libtersekv_preload.so in front of it: its endpoints, "
      "its\n"
      "web page, its exit code. Signals are passed on.\n\n"
      "Example:\n  tersekv serve -m model.gguf --kv k4v4 --slots 4 --ctx 32768 -- -t 8");
  return serve;
}

}  // namespace tersekv::cli
