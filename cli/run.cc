// SPDX-License-Identifier: Apache-2.0
#include "cli/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <vector>

#include "cli/codecs.h"
#include "cli/eval_table.h"
#include "cli/generation.h"
#include "cli/json_envelope.h"
#include "cli/progress.h"
#include "cli/utf8.h"
#include "tersekv/llama.h"
#include "tersekv/session.h"

namespace tersekv::cli {
namespace {

using Clock = std::chrono::steady_clock;
double Since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

volatile std::sig_atomic_t interrupted = 0;

// While it lives the first Ctrl-C ends the answer, so that its figures are still shown; the second one ends the
// program.
class InterruptGuard {
 public:
  InterruptGuard() {
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = 1; };
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
    sigaction(SIGINT, &action, &before_);
  }
  ~InterruptGuard() { sigaction(SIGINT, &before_, nullptr); }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  struct sigaction before_ {};
};

struct Answer {
  std::string text;
  std::string stop;                                  // eos, length, context, interrupt, error
  int64_t prompt_tokens = 0, tokens = 0, steps = 0;  // steps: tokens that the model was asked for after the first
  int64_t passes = 0, drafted = 0, accepted = 0;
  int64_t reused = -1;           // of the prompt, from a saved session; -1: none was given
  std::vector<int32_t> history;  // what the cache holds
  int64_t prompt_run() const { return prompt_tokens - std::max<int64_t>(reused, 0); }
  double prefill_seconds = 0, decode_seconds = 0;
};

double Rate(int64_t n, double seconds) { return seconds > 0 ? static_cast<double>(n) / seconds : 0; }

Result<std::string> UserText(const RunOptions& options) {
  std::string text;
  if (!options.file.empty()) {
    auto file = ReadText(options.file, "prompt file");
    if (!file) return file.error();
    text = std::move(*file);
  }
  if (!options.file.empty() && !options.prompt.empty()) text += "\n";
  text += options.prompt;
  if (Blank(text)) return InvalidArgument("the prompt is empty: give a text with -p TEXT or --file FILE");
  return text;
}

Result<std::vector<int32_t>> PromptTokens(const RunOptions& options, const llama::Session& session,
                                          const std::string& text) {
  const bool chat = options.chat || (!options.no_chat && !session.model().chat_template.empty());
  if (!chat) {
    if (!options.system.empty()) {
      return InvalidArgument("--system needs a chat template, and this prompt goes in without one: put it into -p");
    }
    return session.Tokenize(text, true, false);
  }
  if (session.model().chat_template.empty()) {
    return InvalidArgument("--chat: the model has no chat template; --no-chat sends the prompt as it is");
  }
  std::vector<llama::ChatMessage> messages;
  if (!options.system.empty()) messages.push_back({"system", options.system});
  messages.push_back({"user", text});
  auto prompt = session.ApplyChatTemplate(messages);
  if (!prompt) {
    return Status(prompt.error().code(), prompt.error().message() + "; --no-chat sends the prompt as it is");
  }
  return session.Tokenize(*prompt, true, true);
}

// Generates until something stops it. What was generated is in `answer` also when this fails.
Status Generate(const RunOptions& options, llama::Session* session, std::span<const int32_t> prompt, int64_t ctx,
                bool stream, Answer* answer) {
  Sampler sampler(options.sampler);
  Generation generation(session, prompt, options.spec_lookup, ctx);
  Utf8Stream utf8;
  const auto emit = [&](const std::string& text) {
    answer->text += text;
    if (!stream) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  const InterruptGuard guard;
  const auto start = Clock::now();
  Status status;
  answer->stop = "length";
  while (answer->tokens < options.n) {
    const int32_t token = sampler.Sample(generation.Logits());
    if (token < 0) {
      status = DataLoss("the logits are not finite: the model file may be damaged; try `tersekv doctor -m MODEL`");
    } else if (session->IsEndOfGeneration(token)) {
      answer->stop = "eos";
      break;
    }
    if (!status.ok()) break;
    emit(utf8.Push(session->Piece(token)));
    if (++answer->tokens == options.n) break;
    if (interrupted || generation.length() >= ctx) {
      answer->stop = interrupted ? "interrupt" : "context";
      break;
    }
    status = generation.Take(token, options.n - answer->tokens);
    if (!status.ok()) break;
    answer->history.push_back(token);
    ++answer->steps;
  }
  if (status.ok()) status = generation.Finish();
  answer->passes = generation.passes();
  answer->drafted = generation.drafted();
  answer->accepted = generation.accepted();
  emit(utf8.Flush());
  if (stream) std::fputs("\n", stdout);
  answer->decode_seconds = Since(start);
  if (!status.ok()) answer->stop = "error";
  if (status.ok() && stream && (std::fflush(stdout) != 0 || std::ferror(stdout))) {
    return DataLoss("standard output cannot be written: the answer is not whole");
  }
  return status;
}

Json RowOf(const KvChoice& choice, const llama::Session& session, const Answer& answer) {
  const CacheUsage usage = session.Usage();
  Json row;
  row["spec"] = NameOf(choice, session);
  row["bits_spec"] = BitsOf(choice, session);
  row["bits_effective"] = usage.bits_effective;
  row["kv_bytes_used"] = usage.bytes_used;
  row["kv_bytes_reserved"] = usage.bytes_reserved;
  row["kv_bytes_f16"] = usage.bytes_f16;
  row["ratio"] = CompressionRatio(usage);
  row["prompt_tokens"] = answer.prompt_tokens;
  if (answer.reused >= 0) row["prompt_tokens_reused"] = answer.reused;
  row["tokens"] = answer.tokens;
  row["context"] = session.Length(0);
  row["prefill"] = "decode";
  row["prefill_tps"] = Rate(answer.prompt_run(), answer.prefill_seconds);
  row["decode_tps"] = Rate(answer.steps, answer.decode_seconds);
  row["passes"] = answer.passes;
  row["drafted"] = answer.drafted;
  row["accepted"] = answer.accepted;
  row["attention_seconds"] = session.attention_seconds();
  row["host_mode"] = llama::HostModeName(session.mode());
  row["threads"] = session.threads();
  row["stop"] = answer.stop;
  row["text"] = answer.text;
  return row;
}

void PrintFigures(const RunOptions& options, const KvChoice& choice, const llama::Session& session,
                  const Answer& answer) {
  const CacheUsage usage = session.Usage();
  fmt::print(stderr,
             "{}, host mode {}, {} threads: prompt {} tokens at {:.1f} t/s, answer {} tokens at {:.1f} t/s (stop: {}); "
             "KV {} used, {} as f16 ({:.2f}x), {:.3f} bits a value\n",
             NameOf(choice, session), llama::HostModeName(session.mode()), session.threads(), answer.prompt_tokens,
             Rate(answer.prompt_run(), answer.prefill_seconds), answer.tokens,
             Rate(answer.steps, answer.decode_seconds), answer.stop, Size(static_cast<double>(usage.bytes_used)),
             Size(static_cast<double>(usage.bytes_f16)), CompressionRatio(usage), usage.bits_effective);
  if (answer.passes > 0 && options.spec_lookup > 0) {
    fmt::print(
        stderr, "drafts: {} tokens proposed, {} accepted ({:.1f}%); {} forward passes, {:.2f} tokens each\n",
        answer.drafted, answer.accepted,
        answer.drafted > 0 ? 100.0 * static_cast<double>(answer.accepted) / static_cast<double>(answer.drafted) : 0,
        answer.passes, static_cast<double>(answer.steps) / static_cast<double>(answer.passes));
  }
  if (usage.raw_rows > 0 && usage.bytes_used > usage.bytes_f16) {
    fmt::print(stderr,
               "{} of {} tokens are packed: the first and the newest stay raw, and so does everything until it was "
               "measured; packing pays from some hundreds of tokens on\n",
               usage.tokens_packed, usage.tokens);
  }
}

// Takes what it can from a saved session; at least one token is left to run, whose logits the answer begins with.
Status Reuse(const RunOptions& options, std::span<const int32_t> prompt, llama::Session* session, Answer* answer) {
  const Result<SavedSession> saved = OpenSession(options.session);
  if (!saved) return saved.error();
  if (Status status = session->Restore(*saved, 0); !status.ok()) return status;
  answer->reused = std::min(saved->Reusable(prompt), static_cast<int64_t>(prompt.size()) - 1);
  if (const Status cut = session->Truncate(0, answer->reused); !cut.ok()) {
    if (cut.code() != StatusCode::kUnsupported) return cut;
    if (!options.quiet) fmt::print(stderr, "--session: all tokens are run again: {}\n", cut.message());
    session->Clear(0);
    answer->reused = 0;
  }
  if (!options.quiet) {
    fmt::print(stderr, "session '{}': {} of its {} tokens are used, {} of the prompt are left to run\n",
               options.session, answer->reused, saved->tokens.size(),
               static_cast<int64_t>(prompt.size()) - answer->reused);
  }
  return {};
}

Status SaveAnswer(const RunOptions& options, const llama::Session& session, const Answer& answer) {
  if (options.save_session.empty()) return {};
  const int64_t held = session.Length(0), known = static_cast<int64_t>(answer.history.size());
  if (held != known) {
    return Internal(fmt::format("'{}' was not saved: the cache holds {} tokens and prompt and answer are {}",
                                options.save_session, held, known));
  }
  return session.Save(options.save_session, 0, answer.history);
}

Status RunPrompt(const RunOptions& options) {
  if (options.chat && options.no_chat) return InvalidArgument("--chat and --no-chat exclude each other: give one");
  const auto text = UserText(options);
  if (!text) return text.error();
  if (const auto kv = CheckKv(options.kv); !kv) return kv.error();
  for (const std::string& path : {options.json, options.save_session}) {
    if (Status status = CheckWritable(path); !status.ok()) return status;
  }
  const auto session_options = MakeSessionOptions(options.engine, options.kv);
  if (!session_options) return session_options.error();
  if (options.spec_lookup >= session_options->ubatch) {
    return InvalidArgument(fmt::format("--spec-lookup {} needs forward passes of {} tokens, --ubatch is {}: raise it",
                                       options.spec_lookup, options.spec_lookup + 1, session_options->ubatch));
  }
  const auto profile = FindProfile(options.profile, options.engine, options.quiet);
  if (!profile) return profile.error();
  const auto choice = ChooseKv(options.kv, options.profile.bits, *profile);
  if (!choice) return choice.error();
  llama::SessionOptions with_choice = WithChoice(*session_options, *choice);
  // A prompt that is there whole has its last token run again, for its logits.
  if (!options.session.empty() || !options.save_session.empty()) with_choice.rollback = 1;
  auto opened = llama::Session::Open(with_choice);
  if (!opened) return opened.error();
  llama::Session& session = **opened;

  const auto prompt = PromptTokens(options, session, *text);
  if (!prompt) return prompt.error();
  const int64_t ctx = options.engine.ctx > 0 ? options.engine.ctx : session.model().ctx_train;
  Answer answer;
  answer.prompt_tokens = static_cast<int64_t>(prompt->size());
  if (prompt->empty()) return InvalidArgument("the prompt has no tokens: give a text with -p TEXT or --file FILE");
  if (answer.prompt_tokens > ctx) {
    return InvalidArgument(fmt::format("the prompt has {} tokens, the context holds {}: shorten it or raise --ctx",
                                       answer.prompt_tokens, ctx));
  }
  answer.history = *prompt;
  std::span<const int32_t> to_run = *prompt;
  if (!options.session.empty()) {
    if (Status reused = Reuse(options, *prompt, &session, &answer); !reused.ok()) return reused;
    to_run = to_run.subspan(static_cast<size_t>(answer.reused));
  }
  Progress progress("prompt", options.quiet);
  const auto start = Clock::now();
  Status status = session.Prefill(to_run, 0, [&](size_t done, size_t total) { progress.Update(done, total); });
  if (!status.ok()) return status;
  answer.prefill_seconds = Since(start);
  progress.Finish();

  status = Generate(options, &session, *prompt, ctx, options.json != "-", &answer);
  const Status saved = SaveAnswer(options, session, answer);
  if (!options.quiet) PrintFigures(options, *choice, session, answer);
  if (!options.json.empty()) {
    const Status written = WriteText(options.json, Dump(Envelope(Json::array({RowOf(*choice, session, answer)}))));
    if (!written.ok()) return written;
  }
  if (!status.ok() && !saved.ok()) return Status(status.code(), status.message() + "; " + saved.message());
  return status.ok() ? saved : status;
}

}  // namespace

int Run(const RunOptions& options) {
  if (options.kv == "list") return Codecs({options.json});
  const Status status = RunPrompt(options);
  return status.ok() ? kExitOk : Fail(status);
}

}  // namespace tersekv::cli
