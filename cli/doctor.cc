// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "cli/json_envelope.h"
#include "tersekv/cache.h"
#include "tersekv/codec.h"
#include "tersekv/cuda_api.h"
#include "tersekv/version.h"

namespace tersekv::cli {
namespace {

using State = Check::State;

struct Variable {
  const char* name;
  const char* use;  // empty: this version does not read it
};
constexpr Variable kVariables[] = {
    {"TERSEKV_KV", "default of --kv"},
    {"TERSEKV_PROFILE", "default of --profile"},
    {"TERSEKV_BITS", "default of --bits of run and eval"},
    {"TERSEKV_PREFILL", "decode: the one kind of the llama.cpp hosts"},
    {"TERSEKV_KV_BYTES", "default of run --kv-bytes, and the budget under libtersekv_preload.so"},
    {"TERSEKV_CTX", "default of --ctx; auto under libtersekv_preload.so: as many tokens as the budget holds"},
    {"TERSEKV_STRICT", "1: libtersekv_preload.so refuses what it cannot pack"},
    {"TERSEKV_STATUS_PORT", "where libtersekv_preload.so shows memory and speed; 0: a free port"},
    {"TERSEKV_STATUS_HOST", "the address of that port, 127.0.0.1 when not given"},
    {"TERSEKV_PREFIX",
     "off: each slot holds pages of its own; N: slots begin with the same N tokens, sizes count them "
     "once"},
    {"TERSEKV_DRIFT", "forward passes between two checks of packed rows under libtersekv_preload.so; 0: none"},
    {"TERSEKV_DRIFT_LIMIT", "the relative error that such a check warns above"},
    {"TERSEKV_CACHE_DIR", "where --auto-calibrate keeps profiles, and scripts/ llama.cpp and the demo model"},
    {"TERSEKV_LOG", "1 prints llama.cpp's log"},
    {"TERSEKV_FORCE_ISA", "picks the SIMD target"},
    {"TERSEKV_DETERMINISTIC", ""},
};

Check CodecCheck() {
  if (const Status status = SelfTestCodecs(); !status.ok()) return {"codecs", State::kFailed, status.message()};
  return {"codecs", State::kOk, fmt::format("self-test passed: {} codecs", ListCodecs().size())};
}

// Which CPU kernels attend --shape with --kv, and why; or why none does.
Check AttentionCheck(const DoctorOptions& options) {
  const std::string shape = fmt::format("{}/{} heads of {}", options.shape[0], options.shape[1], options.shape[2]);
  const auto info = [&](const std::string& text) { return Check{"attention", State::kInfo, shape + ": " + text}; };
  if (IsStock(options.kv)) return info(options.kv + " is llama.cpp's own attention");
  const auto spec = ParseSpec(options.kv);
  if (!spec) return info(spec.error().message());
  CacheConfig config;
  config.spec = *spec;
  config.layers = {{options.shape[0], options.shape[1], options.shape[2], options.shape[2]}};
  config.arithmetic = ArithmeticOf(options.engine.arithmetic);
  const auto kernel = DescribeAttention(config);
  return info(kernel ? fmt::format("{} with {} (llama.cpp's host attends on the CPU)", *kernel, options.kv)
                     : kernel.error().message());
}

// Which CUDA kernel does, for engines that call tersekv/cuda_api.h.
Check CudaCheck(const DoctorOptions& options) {
  const auto info = [](const std::string& text) { return Check{"cuda", State::kInfo, text}; };
  if (*tersekv_cuda_kernels() == '\0') {
    return info("not in this build: -DTERSEKV_CUDA=ON (nvcc 13) builds the kernels of tersekv/cuda_api.h");
  }
  auto spec = ParseSpec(options.kv);
  if (!spec) return info(fmt::format("no kernel for {}; this build has {}", options.kv, tersekv_cuda_kernels()));
  spec->sink = spec->win = 0;  // the engine keeps raw tokens
  const std::string packed = FormatSpec(*spec);
  tersekv_cuda_format format = {};
  char text[512];
  if (tersekv_cuda_format_of(packed.c_str(), options.shape[2], &format) != TERSEKV_OK ||
      tersekv_cuda_describe(&format, options.shape[0], options.shape[1], 1, text, sizeof text) != TERSEKV_OK) {
    return info(fmt::format("no kernel for {}: {}", packed, tersekv_last_error()));
  }
  return info(fmt::format("{}: {}", packed, text));
}

// Opens the model with the self-test against a stock context and runs a few tokens.
Check HostCheck(const DoctorOptions& options) {
  if (options.engine.model.empty()) {
    return {"host", State::kInfo, "not tested: -m MODEL.gguf tests it with that model"};
  }
  auto session_options = MakeSessionOptions(options.engine, options.kv);
  if (!session_options) return {"host", State::kFailed, session_options.error().message()};
  session_options->self_test = true;
  auto opened = llama::Session::Open(*session_options);
  if (!opened) return {"host", State::kFailed, opened.error().message()};
  llama::Session& session = **opened;
  const auto tokens = session.Tokenize("TerseKV keeps the attention cache packed.", true, false);
  if (!tokens) return {"host", State::kFailed, tokens.error().message()};
  if (Status status = session.Prefill(*tokens, 0, nullptr); !status.ok()) {
    return {"host", State::kFailed, status.message()};
  }
  return {"host", State::kOk,
          fmt::format("mode {} with {}, {} threads, self-test passed on {} ({})", llama::HostModeName(session.mode()),
                      session.kv(), session.threads(), options.engine.model, session.model().description)};
}

std::vector<Check> RunChecks(const DoctorOptions& options) {
  std::vector<Check> checks;
  checks.push_back({"tersekv", State::kInfo, fmt::format("{} ({})", Version(), Commit())});
  checks.push_back({"machine", State::kInfo, Machine()});
  const auto targets = SimdTargets();
  if (targets.empty()) {
    checks.push_back({"simd", State::kFailed, "no SIMD target runs here: build TerseKV on this machine"});
  } else {
    const std::vector<std::string> others(targets.begin() + 1, targets.end());
    checks.push_back({"simd", State::kOk,
                      targets.front() + " in use" +
                          (others.empty() ? std::string() : fmt::format("; also {}", fmt::join(others, ", ")))});
  }
  checks.push_back({"llama.cpp", State::kOk, llama::LlamaVersion()});
  checks.push_back(CodecCheck());
  checks.push_back(AttentionCheck(options));
  checks.push_back(CudaCheck(options));
  checks.push_back(HostCheck(options));
  for (const Variable& variable : kVariables) {
    const char* value = std::getenv(variable.name);
    const std::string use = *variable.use ? variable.use : "not used by this version";
    checks.push_back({variable.name, State::kInfo, fmt::format("{} ({})", value ? value : "not set", use)});
  }
  return checks;
}

const char* StateName(State state) { return state == State::kInfo ? "info" : state == State::kOk ? "ok" : "FAILED"; }

}  // namespace

std::string Verdict(const std::vector<Check>& checks) {
  std::vector<std::string> reasons;
  for (const Check& check : checks) {
    if (check.state == State::kFailed) reasons.push_back(check.name + ": " + check.detail);
  }
  return reasons.empty() ? "verdict: ready" : fmt::format("verdict: NOT ready: {}", fmt::join(reasons, "; "));
}

CLI::App* AddDoctor(CLI::App* app, DoctorOptions* options) {
  options->engine.ctx = 512;
  CLI::App* sub = app->add_subcommand("doctor", "Check processor, codecs, llama.cpp and, with a model, the host");
  AddEngineOptions(sub, &options->engine);
  sub->add_option("--kv", options->kv, "Spec that the host is tested with")
      ->envname("TERSEKV_KV")
      ->type_name("SPEC")
      ->capture_default_str();
  sub->add_option("--shape", options->shape, "Heads, KV heads and head_dim whose attention kernels are named")
      ->type_name("H,KV,D")
      ->delimiter(',')
      ->expected(3)
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  AddJsonOption(sub, &options->json);
  sub->footer(
      "Ends with a verdict; the exit code is 0 when everything that was tested works, 1 otherwise.\n\n"
      "Examples:\n  tersekv doctor -m model.gguf\n  tersekv doctor --kv k3v3 --shape 40,8,128");
  return sub;
}

int Doctor(const DoctorOptions& options) {
  if (Status status = CheckWritable(options.json); !status.ok()) return Fail(status);
  DoctorOptions checked = options;
  auto kv = CheckKv(options.kv);
  if (!kv) return Fail(kv.error());
  checked.kv = *kv;
  const std::vector<Check> checks = RunChecks(checked);
  const std::string verdict = Verdict(checks);
  const int exit_code = verdict == "verdict: ready" ? kExitOk : kExitFailure;
  std::string text;
  Json json = Json::array();
  for (const Check& check : checks) {
    text += fmt::format("{:<7}{:<22}{}\n", check.state == State::kInfo ? "" : StateName(check.state), check.name,
                        check.detail);
    json.push_back({{"check", check.name}, {"state", StateName(check.state)}, {"detail", check.detail}});
  }
  json.push_back({{"check", "verdict"},
                  {"state", exit_code == kExitOk ? "ok" : "FAILED"},
                  {"detail", verdict.substr(std::string("verdict: ").size())}});
  text += verdict + "\n";
  const Status status = options.json.empty() ? WriteText("-", text) : WriteText(options.json, Dump(Envelope(json)));
  return status.ok() ? exit_code : Fail(status);
}

}  // namespace tersekv::cli
