// SPDX-License-Identifier: Apache-2.0
#include "cli/eval.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <utility>

#include "cli/codecs.h"
#include "cli/eval_state.h"
#include "cli/eval_table.h"
#include "cli/evaluation.h"
#include "cli/json_envelope.h"
#include "cli/progress.h"

namespace tersekv::cli {
namespace {

using Clock = std::chrono::steady_clock;
double Since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Result<std::vector<Candidate>> OpenAll(const EvalOptions& options, const std::vector<KvChoice>& choices) {
  std::vector<Candidate> candidates;
  for (const KvChoice& choice : choices) {
    auto session_options = MakeSessionOptions(options.engine, choice.kv);
    if (!session_options) return session_options.error();
    session_options->ctx += kDecodeSteps;
    auto session = llama::Session::Open(WithChoice(*session_options, choice));
    if (!session) return session.error();
    candidates.emplace_back();
    candidates.back().choice = choice;
    candidates.back().session = std::move(*session);
  }
  return candidates;
}

Result<EvalPlan> PlanOf(const EvalOptions& options, const llama::Session& session, const std::string& text) {
  auto tokens = session.Tokenize(text, false, false);
  if (!tokens) return tokens.error();
  auto bos = session.Tokenize("", true, true);
  if (!bos) return bos.error();
  if (bos->size() > 1) bos->resize(1);  // what follows it belongs to the end of a text
  return MakePlan(std::move(*tokens), std::move(*bos), options.engine.ctx, options.tokens);
}

std::vector<EvalRow> RowsOf(const EvalPlan& plan, const std::vector<Candidate>& candidates) {
  std::vector<EvalRow> rows;
  for (const Candidate& candidate : candidates) {
    EvalRow row;
    row.spec = NameOf(candidate.choice, *candidate.session);
    row.bits_spec = BitsOf(candidate.choice, *candidate.session);
    row.usage = candidate.usage;
    row.summary = Summarize(candidate.scores);
    row.reference_ppl = rows.empty() ? row.summary.ppl : rows.front().summary.ppl;
    row.prefill_tps = static_cast<double>(plan.contexts * plan.length) / candidate.prefill_seconds;
    row.decode_tps = candidate.decode_tps;
    row.tokens = plan.scored();
    row.context = plan.length;
    rows.push_back(row);
  }
  return rows;
}

Status Report(const EvalOptions& options, const std::vector<EvalRow>& rows) {
  Json json = Json::array();
  for (const EvalRow& row : rows) json.push_back(ToJson(row));
  if (options.json == "-" || options.csv == "-") {
    fmt::print(stderr, "{}", ToText(rows));
  } else if (Status status = WriteText("-", ToText(rows)); !status.ok()) {
    return status;
  }
  if (!options.json.empty()) {
    if (Status status = WriteText(options.json, Dump(Envelope(json))); !status.ok()) return status;
  }
  return options.csv.empty() ? Status() : WriteText(options.csv, ToCsv(rows));
}

void PrintHead(const EvalOptions& options, const EvalPlan& plan, const std::vector<Candidate>& candidates) {
  const llama::Session& reference = *candidates.front().session;
  fmt::print(stderr, "{}: {} context{} of {} tokens, {} scored, {} caches, {} threads, host mode {}, reference {}\n",
             options.text, plan.contexts, plan.contexts == 1 ? "" : "s", plan.length, plan.scored(), candidates.size(),
             reference.threads(), llama::HostModeName(reference.mode()), reference.kv());
  if (plan.scored() < options.tokens) {
    fmt::print(stderr, "note: the text has {} tokens to score, not {}\n", plan.scored(), options.tokens);
  }
  const int64_t trained = reference.model().ctx_train;
  if (trained > 0 && plan.length > trained) {
    fmt::print(stderr, "note: the model was trained for {} tokens, --ctx is {}\n", trained, plan.length);
  }
}

// Every context, with a line of progress and the time left; kept in `resume` (if not empty) after each.
Status RunAll(const EvalPlan& plan, const std::string& resume, bool quiet, std::vector<Candidate>* candidates,
              Evaluation* evaluation) {
  const Json identity = EvalIdentity(plan, *candidates);
  const auto first = resume.empty() ? Result<int>(0) : LoadEvalState(resume, identity, plan, candidates);
  if (!first) return first.error();
  if (*first > 0 && !quiet) fmt::print(stderr, "{}: goes on after context {} of {}\n", resume, *first, plan.contexts);
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  const auto start = Clock::now();
  const int64_t total = (plan.contexts - *first) * plan.length * static_cast<int64_t>(candidates->size());
  int64_t done = 0;
  for (int c = *first; c < plan.contexts; ++c) {
    const auto show = [&](const char* end) {
      const double took = Since(start);
      const double left = took / static_cast<double>(done) * static_cast<double>(total - done);
      fmt::print(stderr, "{}context {} of {}: {}%, {}{}{}", terminal ? "\r" : "", c + 1, plan.contexts,
                 100 * done / total, done < total ? Duration(left) + " left" : "took " + Duration(took),
                 terminal ? "\033[K" : "", end);
    };
    const Status status = evaluation->RunContext(c, [&](int64_t tokens) {
      done += tokens;
      if (terminal && !quiet) show("");
    });
    if (!quiet && done > 0) show("\n");
    if (!status.ok()) return status;
    if (resume.empty() || c + 1 == plan.contexts) continue;
    if (Status saved = SaveEvalState(resume, identity, c + 1, *candidates); !saved.ok()) return saved;
  }
  return evaluation->TimeDecode(plan.contexts - 1);
}

Status RunEval(const EvalOptions& options) {
  if (options.text.empty()) return InvalidArgument("no text: name a file with --text FILE");
  if (options.engine.ctx < kLeastContext) {
    return InvalidArgument(fmt::format("--ctx {}: eval needs contexts of {} tokens or more, e.g. --ctx 2048",
                                       options.engine.ctx, kLeastContext));
  }
  for (const std::string& path : {options.json, options.csv, options.resume}) {
    if (Status status = CheckWritable(path); !status.ok()) return status;
  }
  const auto reference = CheckKv(options.reference);
  if (!reference) return reference.error();
  if (options.engine.model.empty()) return InvalidArgument("no model: name a GGUF file with -m MODEL.gguf");
  const auto profile = FindProfile(options.profile, options.engine, options.quiet);
  if (!profile) return profile.error();
  auto choices = ChooseKvList(options.kv, options.profile.bits, *profile);
  if (!choices) return choices.error();
  std::erase_if(*choices, [&](const KvChoice& c) { return c.kv == *reference && c.name.empty(); });
  const auto first = ChooseKvList(*reference, 0, *profile);
  if (!first) return first.error();
  choices->insert(choices->begin(), first->front());
  const auto text = ReadText(options.text, "text");
  if (!text) return text.error();

  // The reference opens first: the text is cut and memory looked at before the others take theirs.
  auto candidates = OpenAll(options, {choices->front()});
  if (!candidates) return candidates.error();
  const llama::Session& session = *candidates->front().session;
  const auto plan = PlanOf(options, session, *text);
  if (!plan) return plan.error();
  const int64_t rows = std::min<int64_t>(options.engine.ubatch, plan->length - plan->first_scored);
  const auto caches = static_cast<int64_t>(choices->size());
  if (Status status = CheckMemory(caches, rows, session.model().vocab); !status.ok()) return status;
  auto others = OpenAll(options, {choices->begin() + 1, choices->end()});
  if (!others) return others.error();
  std::move(others->begin(), others->end(), std::back_inserter(*candidates));

  if (!options.quiet) PrintHead(options, *plan, *candidates);
  Evaluation evaluation(*plan, &*candidates, options.engine.ubatch, session.threads());
  if (Status status = evaluation.WarmUp(); !status.ok()) return status;
  if (Status status = RunAll(*plan, options.resume, options.quiet, &*candidates, &evaluation); !status.ok()) {
    return status;
  }
  if (Status status = Report(options, RowsOf(*plan, *candidates)); !status.ok()) return status;
  if (!options.resume.empty()) std::filesystem::remove(options.resume);  // only the report needed it
  return {};
}

}  // namespace

CLI::App* AddEval(CLI::App* app, EvalOptions* options) {
  options->engine.ctx = 2048;
  CLI::App* sub = app->add_subcommand("eval", "Measure KL, perplexity, bytes and speed of specs against an f16 cache");
  AddEngineOptions(sub, &options->engine);
  sub->add_option("--text", options->text, "Text to predict; '-' is standard input")->type_name("FILE");
  sub->add_option("--kv", options->kv, "Specs, separated by commas; stock-f16 and so on: llama.cpp's own cache")
      ->envname("TERSEKV_KV")
      ->type_name("SPECS")
      ->capture_default_str();
  AddProfileOptions(sub, &options->profile);
  sub->add_option("--reference", options->reference, "Cache that the others are compared with")
      ->type_name("SPEC")
      ->capture_default_str();
  sub->add_option("--tokens", options->tokens, "Tokens to score at least (whole contexts)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40).description(""))
      ->type_name("N")
      ->capture_default_str();
  AddJsonOption(sub, &options->json);
  sub->add_option("--csv", options->csv, "Write CSV to FILE ('-': standard output)")->type_name("FILE");
  sub->add_option("--resume", options->resume,
                  "Keep what is scored in FILE after each context; the same command goes on from there after a stop")
      ->type_name("FILE");
  sub->add_flag("--quiet", options->quiet, "No progress");
  sub->footer(
      "Teacher-forced: the text is cut into contexts of --ctx tokens, the second half of each is scored, and every\n"
      "query sees exactly what decoding at its position would see. KL(reference || spec) is in nats; dppl is relative\n"
      "to the reference; prefill t/s includes the logits of the second half; decode t/s is that of 16 single tokens "
      "on\n"
      "the full context.\n"
      "With a profile only specs that say mean=profile use it, so that one run compares both; `bits=4` in the list "
      "(or\n"
      "--bits 4) is a row with the profile's bits of each layer for that average, `auto` the spec that it "
      "recommends.\n\n"
      "Examples:\n"
      "  tersekv eval -m model.gguf --text wiki.test.raw --kv k4v4,k3v3,stock-q4_0 --ctx 2048 --json eval.json\n"
      "  tersekv eval -m model.gguf --text wiki.test.raw --profile model.tkvp --kv k4v4,k4v4+mean=profile,bits=4\n"
      "  tersekv eval -m model.gguf --text wiki.test.raw --ctx 8192 --tokens 20480 --resume long.eval --json "
      "long.json");
  return sub;
}

int Eval(const EvalOptions& options) {
  if (options.kv == "list") return Codecs({options.json});
  const Status status = RunEval(options);
  return status.ok() ? kExitOk : Fail(status);
}

}  // namespace tersekv::cli
