// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/bench_attend.h"
#include "cli/bench_codec.h"
#include "cli/bench_e2e.h"
#include "cli/calibrate.h"
#include "cli/codecs.h"
#include "cli/doctor.h"
#include "cli/dump_kv.h"
#include "cli/eval.h"
#include "cli/inspect.h"
#include "cli/options.h"
#include "cli/plan.h"
#include "cli/preload.h"
#include "cli/probe.h"
#include "cli/run.h"
#include "tersekv/version.h"

namespace tersekv::cli {
namespace {

constexpr const char* kCommands[] = {"run",    "eval",    "calibrate", "probe", "inspect", "bench",
                                     "codecs", "dump-kv", "doctor",    "plan",  "serve",   "exec"};

// One line that names what is wrong and where to look.
int UsageError(std::string message, const std::string& help) {
  while (!message.empty() && (message.back() == '\n' || message.back() == '.')) message.pop_back();
  return Fail(InvalidArgument(fmt::format("{} (see `{} --help`)", message, help)));
}

// A wrong value that was not typed: the variable that it comes from.
std::string FromEnvironment(const std::string& message, int argc, const char* const* argv) {
  constexpr std::pair<const char*, const char*> kVariables[] = {{"--ctx", "TERSEKV_CTX"}, {"--bits", "TERSEKV_BITS"}};
  for (const auto& [option, variable] : kVariables) {
    if (!message.starts_with(std::string(option) + ":") || std::getenv(variable) == nullptr) continue;
    for (int i = 1; i < argc; ++i) {
      if (std::string_view(argv[i]).starts_with(option)) return "";
    }
    return std::string(", set by the environment variable ") + variable;
  }
  return "";
}

}  // namespace

int Main(int argc, const char* const* argv) {
  CLI::App app("TerseKV keeps the attention KV cache of a language model packed: 2 to 8 bits a value instead of 16.",
               "tersekv");
  app.set_version_flag("--version", fmt::format("tersekv {} ({})", Version(), Commit()), "Print the version");
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  tersekv run -m model.gguf -p \"Why is the sky blue?\" --kv k4v4\n"
      "  tersekv eval -m model.gguf --text book.txt --kv k4v4,k3v3\n"
      "  tersekv calibrate -m model.gguf --text book.txt -o model.tkvp\n"
      "  tersekv bench e2e -m model.gguf --depths 0,4096\n"
      "  tersekv doctor -m model.gguf\n"
      "`tersekv COMMAND --help` explains a command.");
  RunOptions run;
  EvalOptions eval;
  CalibrateOptions calibrate;
  ProbeOptions probe;
  InspectOptions inspect;
  BenchAttendOptions bench_attend;
  BenchCodecOptions bench_codec;
  BenchE2eOptions bench_e2e;
  CodecsOptions codecs;
  DumpKvOptions dump_kv;
  DoctorOptions doctor;
  ExecOptions exec;
  PlanOptions plan;
  ServeOptions serve;
  const CLI::App* run_command = AddRun(&app, &run);
  const CLI::App* eval_command = AddEval(&app, &eval);
  const CLI::App* calibrate_command = AddCalibrate(&app, &calibrate);
  const CLI::App* probe_command = AddProbe(&app, &probe);
  const CLI::App* inspect_command = AddInspect(&app, &inspect);
  CLI::App* bench_command = app.add_subcommand("bench", "Measure speed side by side with llama.cpp's own caches");
  bench_command->require_subcommand(1);
  const CLI::App* bench_attend_command = AddBenchAttend(bench_command, &bench_attend);
  const CLI::App* bench_codec_command = AddBenchCodec(bench_command, &bench_codec);
  AddBenchE2e(bench_command, &bench_e2e);
  const CLI::App* codecs_command = AddCodecs(&app, &codecs);
  const CLI::App* dump_kv_command = AddDumpKv(&app, &dump_kv);
  AddDoctor(&app, &doctor);
  const CLI::App* plan_command = AddPlan(&app, &plan);
  const CLI::App* serve_command = AddServe(&app, &serve);
  const CLI::App* exec_command = AddExec(&app, &exec);

  const std::string first = argc > 1 ? argv[1] : "";
  if (first.empty()) return UsageError(fmt::format("no command: {}", fmt::join(kCommands, ", ")), "tersekv");
  bool known = first[0] == '-';
  for (const char* command : kCommands) known = known || first == command;
  if (!known) {
    return UsageError(fmt::format("unknown command '{}': known are {}", first, fmt::join(kCommands, ", ")), "tersekv");
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    return UsageError(e.what() + FromEnvironment(e.what(), argc, argv),
                      first[0] == '-' ? "tersekv"
                                      : "tersekv " + first +
                                            (bench_attend_command->parsed()  ? " attend"
                                             : bench_codec_command->parsed() ? " codec"
                                                                             : ""));
  }
  if (run_command->parsed()) return Run(run);
  if (eval_command->parsed()) return Eval(eval);
  if (calibrate_command->parsed()) return CalibrateCommand(calibrate);
  if (probe_command->parsed()) return ProbeCommand(probe);
  if (inspect_command->parsed()) return Inspect(inspect);
  if (bench_codec_command->parsed()) return BenchCodec(bench_codec);
  if (bench_command->parsed()) return bench_attend_command->parsed() ? BenchAttend(bench_attend) : BenchE2e(bench_e2e);
  if (codecs_command->parsed()) return Codecs(codecs);
  if (dump_kv_command->parsed()) return DumpKv(dump_kv);
  if (plan_command->parsed()) return Plan(plan);
  if (serve_command->parsed()) return Serve(serve);
  if (exec_command->parsed()) return Exec(exec);
  return Doctor(doctor);
}

}  // namespace tersekv::cli
