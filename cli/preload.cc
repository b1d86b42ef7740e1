// SPDX-License-Identifier: Apache-2.0
#include "cli/preload.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "cli/options.h"
#include "cli/program.h"
#include "tersekv/numbers.h"

namespace tersekv::cli {
namespace {

namespace fs = std::filesystem;

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
  if (options.status_port >= 0) set("TERSEKV_STATUS_PORT", fmt::format("{}", options.status_port));
  set("TERSEKV_STATUS_HOST", options.status_host);
  set("TERSEKV_PREFIX", options.prefix);
  if (options.drift >= 0) set("TERSEKV_DRIFT", fmt::format("{}", options.drift));
  if (options.drift_limit > 0) set("TERSEKV_DRIFT_LIMIT", fmt::format("{}", options.drift_limit));
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
  app->add_option("--status-port", options->status_port,
                  "Show memory by slot and layer, ratio and speed at this port; 0: a free one, which is printed")
      ->check(CLI::Range(0, 65535));
  app->add_option("--status-host", options->status_host, "Address of the status port; 127.0.0.1 when not given");
  app->add_option("--prefix", options->prefix,
                  "on (default) or off: pages that slots have in common are held once; N: slots begin with the same N "
                  "tokens, count them once when sizing the context")
      ->check([](const std::string& text) {
        if (text == "on" || text == "off" || ParseWhole(text).value_or(0) > 0) return std::string();
        return "'" + text + "' is not on, off or a number of tokens";
      });
  app->add_option("--drift", options->drift, "Check packed rows against raw ones every N forward passes; 0: never")
      ->type_name("N")
      ->check(CLI::Range(int64_t{0}, int64_t{INT32_MAX}));
  app->add_option("--drift-limit", options->drift_limit, "Relative error that such a check warns above")
      ->type_name("X")
      ->check(CLI::PositiveNumber);
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
  if (!object) return object.error();
  // ld.so takes the list apart at these, expands $ORIGIN and its like, and goes on without what it does not find.
  if (object->find_first_of(" :$") != std::string::npos) {
    return Unsupported(
        fmt::format("LD_PRELOAD cannot name '{}': no blank, ':' or '$' may be in its path; build or install TerseKV in "
                    "another folder",
                    *object));
  }
  return {};
}

Result<std::string> CheckProgram(const std::string& name) {
  const Result<Program> program = FindDynamicProgram(name);
  if (!program) return program.error();
  switch (FindLibllama(*program)) {
    case Libllama::kInside:
      return Unsupported(
          fmt::format("{} has llama.cpp linked into it, so that nothing can be put in front: use a build with shared "
                      "libraries (BUILD_SHARED_LIBS=ON)",
                      program->path));
    case Libllama::kNone:
      if (!program->loader.empty()) {
        fmt::print(stderr, "note: {} brings no libllama: something is packed only if it loads one later\n",
                   program->path);
      }
      [[fallthrough]];
    case Libllama::kShared:
      return program->path;
  }
  return program->path;
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
  const Result<std::string> program = CheckProgram(options.command[0]);
  return program ? Start(*program, options) : Fail(program.error());
}

int Start(const std::string& program, const ExecOptions& options) {
  if (const Status s = SetVariables(options.preload); !s.ok()) return Fail(s);
  std::vector<char*> arguments;
  for (const std::string& a : options.command) arguments.push_back(const_cast<char*>(a.c_str()));
  arguments.push_back(nullptr);
  execv(program.c_str(), arguments.data());
  return Fail(Internal(fmt::format("{} does not start: {}", program, std::strerror(errno))));
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
