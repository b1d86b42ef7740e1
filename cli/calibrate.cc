// SPDX-License-Identifier: Apache-2.0
#include "cli/calibrate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <utility>

#include "cli/inspect.h"
#include "cli/json_envelope.h"
#include "cli/progress.h"

namespace tersekv::cli {
namespace {

using Clock = std::chrono::steady_clock;
double Since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr double kQuietSeconds = 20;  // between two lines where there is no terminal

Result<std::vector<double>> ParseBits(const std::string& list) {
  auto elements = ListElements(list);
  if (!elements) return elements.error();
  std::vector<double> bits;
  for (const std::string& element : *elements) {
    const double value = ParseReal(element).value_or(0);
    if (!(value >= 2 && value <= 8)) {
      return InvalidArgument(
          fmt::format("--bits {}: '{}' is not a number from 2 to 8; write e.g. 3,4,4.5", list, element));
    }
    bits.push_back(value);
  }
  return bits;
}

// Rate and time left of the measuring runs. Their number is an upper bound: equal choices are measured once.
class RunProgress {
 public:
  explicit RunProgress(bool quiet) : quiet_(quiet), terminal_(::isatty(STDERR_FILENO) == 1) {}
  ~RunProgress() {
    if (open_) fmt::print(stderr, "\n");
  }
  RunProgress(const RunProgress&) = delete;
  RunProgress& operator=(const RunProgress&) = delete;

  void Update(const CalibrationProgress& progress) {
    if (quiet_ || progress.done == 0) return;
    if (first_ < 0) {
      first_ = progress.done;
      start_ = last_ = Clock::now();
    }
    const bool end = progress.done == progress.total;
    if (!terminal_ && !end && progress.done > first_ && Since(last_) < kQuietSeconds) return;
    last_ = Clock::now();
    std::string rate;
    if (progress.done > first_) {
      const double each = Since(start_) / (progress.done - first_);
      rate = fmt::format(", {:.2f} s a run, {} left at most", each, Duration(each * (progress.total - progress.done)));
    }
    fmt::print(stderr, "{}calibrate: run {} of {}: {}{}{}", terminal_ ? "\r" : "", progress.done, progress.total,
               progress.what, end ? ", took " + Duration(Since(start_)) : rate, terminal_ ? "\033[K" : "\n");
    open_ = terminal_;
  }

 private:
  bool quiet_, terminal_, open_ = false;
  int first_ = -1;
  Clock::time_point start_, last_;
};

Status Report(const CalibrateOptions& options, llama::LlamaCalibrationHost* host, const Profile& profile) {
  std::vector<BudgetRow> rows;
  for (const BudgetEntry& entry : profile.byte_budget_table) {
    BudgetRow row{entry, std::nullopt};
    if (entry.bits == std::floor(entry.bits)) {  // measured before unless layers are protected
      const int width = static_cast<int>(entry.bits);
      auto kl = host->MeasureKl(std::vector<LayerBits>(profile.layers.size(), {width, width}));
      if (!kl) return kl.error();
      row.uniform_kl = *kl;
    }
    rows.push_back(std::move(row));
  }
  if (options.json != "-") {
    const std::string text = BudgetText(profile, rows) + fmt::format("profile: {}\n", options.out);
    if (Status status = WriteText("-", text); !status.ok()) return status;
  }
  return options.json.empty() ? Status() : WriteText(options.json, Dump(Envelope(BudgetJson(rows))));
}

Status RunCommand(const CalibrateOptions& options) {
  if (options.engine.model.empty()) return InvalidArgument("no model: name a GGUF file with -m MODEL.gguf");
  if (options.out.empty() || options.out == "-")
    return InvalidArgument("no profile: name the file to write with -o PROFILE");
  for (const std::string& path : {options.out, options.json}) {
    if (Status status = CheckWritable(path); !status.ok()) return status;
  }
  if (const auto bits = ParseBits(options.bits); !bits) return bits.error();
  auto host = OpenCalibration(options);
  if (!host) return host.error();
  auto profile = RunCalibration(options, host->get());
  if (!profile) return profile.error();
  if (Status status = SaveProfile(*profile, options.out); !status.ok()) return status;
  return Report(options, host->get(), *profile);
}

std::string Key(const CalibrateOptions& options, std::string_view text) {
  const std::string all = fmt::format("{} {} {} {} {} {} {}", options.tokens, options.bits, options.protect_first,
                                      options.protect_last, options.kl_contexts, options.kl_context, text);
  return HashOf(all);
}

void Describe(const CalibrateOptions& options, Profile* profile) {
  profile->metadata["text"] =
      options.text.empty() ? "built in" : std::filesystem::path(options.text).filename().string();
  profile->metadata["machine"] = Machine();
  profile->metadata["date"] = IsoDate(std::time(nullptr));
  if (const auto report = Probe(*profile)) {
    profile->metadata["recommended_spec"] = report->advice.front().spec;
    for (const ProbeAdvice& advice : report->advice) profile->metadata["recommended_" + advice.mode] = advice.spec;
  }
}

}  // namespace

Result<std::unique_ptr<llama::LlamaCalibrationHost>> OpenCalibration(const CalibrateOptions& options,
                                                                     std::string* key) {
  const auto session = MakeSessionOptions(options.engine, "k4v4");
  if (!session) return session.error();
  llama::CalibrationHostOptions host;
  host.text = BuiltInText();
  if (!options.text.empty()) {
    auto text = ReadText(options.text, "text");
    if (!text) return text.error();
    host.text = std::move(*text);
  }
  if (key != nullptr) *key = Key(options, host.text);
  host.model_path = session->model_path;
  host.tokens = options.tokens;
  host.kl_contexts = options.kl_contexts;
  host.kl_context = options.kl_context;
  host.kl_scored = (options.kl_context + 1) / 2;
  host.threads = session->threads;
  host.mode = session->mode;
  host.arithmetic = session->arithmetic;
  auto progress = std::make_shared<Progress>("statistics", options.quiet);
  host.progress = [progress](int64_t done, int64_t total) {
    progress->Update(static_cast<size_t>(done), static_cast<size_t>(total));
    if (done == total) progress->Finish();
  };
  return llama::MakeCalibrationHost(host);
}

Result<Profile> RunCalibration(const CalibrateOptions& options, llama::LlamaCalibrationHost* host) {
  auto bits = ParseBits(options.bits);
  if (!bits) return bits.error();
  if (!options.quiet) {
    fmt::print(stderr, "{}: statistics of {} tokens, KL of {} scored tokens a run\n", host->info().name,
               host->statistics_tokens(), host->scored_tokens());
  }
  CalibrationOptions calibration;
  calibration.bits = std::move(*bits);
  calibration.protect_first = options.protect_first;
  calibration.protect_last = options.protect_last;
  calibration.output_square = host->OutputSquares();
  RunProgress progress(options.quiet);
  auto profile = Calibrate(calibration, host, [&](const CalibrationProgress& p) { progress.Update(p); });
  if (!profile) return profile.error();
  profile->metadata["scored_tokens"] = fmt::format("{}", host->scored_tokens());
  Describe(options, &*profile);
  return profile;
}

Result<Profile> RunStatistics(const CalibrateOptions& options, llama::LlamaCalibrationHost* host) {
  auto collector = StatisticsCollector::Create(host->info().layers);
  if (!collector) return collector.error();
  if (Status status = host->CollectStatistics(collector->get()); !status.ok()) return status;
  Profile profile;
  if (Status status = (*collector)->MakeStatistics(host->OutputSquares(), &profile); !status.ok()) return status;
  const ModelIdentity model = host->model();
  profile.model_name = model.name;
  profile.model_fingerprint = model.fingerprint;
  profile.channel_order = host->channel_order();
  Describe(options, &profile);
  return profile;
}

void AddTextOptions(CLI::App* app, CalibrateOptions* options) {
  app->add_option("-m,--model", options->engine.model, "Model file (GGUF)")->type_name("FILE");
  app->add_option("--text", options->text,
                  "Text like what the model will read; '-' is standard input; by default a built-in one")
      ->type_name("FILE");
  app->add_option("--tokens", options->tokens, "Tokens of statistics, in contexts of up to 2048")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30).description(""))
      ->type_name("N")
      ->capture_default_str();
  app->add_option("--threads", options->engine.threads, "Threads; 0 = all cores")
      ->check(CLI::Range(0, 4096).description(""))
      ->type_name("N")
      ->capture_default_str();
  AddJsonOption(app, &options->json);
  app->add_flag("--quiet", options->quiet, "No progress");
}

CLI::App* AddCalibrate(CLI::App* app, CalibrateOptions* options) {
  CLI::App* sub =
      app->add_subcommand("calibrate", "Measure a model once: better statistics, the best bits of each layer");
  AddTextOptions(sub, options);
  sub->add_option("-o,--output", options->out, "Profile to write")->type_name("PROFILE");
  sub->add_option("--bits", options->bits, "Averages over K and V to find the bits of each layer for, 2 to 8")
      ->type_name("LIST")
      ->capture_default_str();
  sub->add_option("--protect-first", options->protect_first, "First layers that keep 8 bits")
      ->check(CLI::Range(0, 1 << 20).description(""))
      ->type_name("N")
      ->capture_default_str();
  sub->add_option("--protect-last", options->protect_last, "Last layers that keep 8 bits")
      ->check(CLI::Range(0, 1 << 20).description(""))
      ->type_name("N")
      ->capture_default_str();
  sub->add_option("--kl-contexts", options->kl_contexts, "Contexts of each measuring run")
      ->check(CLI::Range(1, 1 << 20).description(""))
      ->type_name("N")
      ->capture_default_str();
  sub->add_option("--kl-context", options->kl_context, "Tokens of each of them; the second half is scored")
      ->check(CLI::Range(int64_t{16}, int64_t{1} << 20).description(""))
      ->type_name("N")
      ->capture_default_str();
  sub->footer(
      "Each run measures the KL of the model with some bits against its own f16 cache: two widths for the K and the V\n"
      "of every layer, then the whole choice of each average. `run`, `eval` and `--kv auto` take the profile; another\n"
      "model refuses it.\n\n"
      "Examples:\n"
      "  tersekv calibrate -m model.gguf --text book.txt -o model.tkvp\n"
      "  tersekv run -m model.gguf --profile model.tkvp --bits 4 -p \"Why is the sky blue?\"\n"
      "  tersekv inspect model.tkvp");
  return sub;
}

int CalibrateCommand(const CalibrateOptions& options) {
  const Status status = RunCommand(options);
  return status.ok() ? kExitOk : Fail(status);
}

}  // namespace tersekv::cli
