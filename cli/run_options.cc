// SPDX-License-Identifier: Apache-2.0
#include "cli/run.h"

namespace tersekv::cli {

CLI::App* AddRun(CLI::App* app, RunOptions* options) {
  CLI::App* sub = app->add_subcommand("run", "Answer a prompt with a packed KV cache");
  AddEngineOptions(sub, &options->engine);
  AddKvBytesOption(sub, &options->engine);
  sub->add_option("--kv", options->kv, "How the KV cache is stored; 'list' prints every spec")
      ->envname("TERSEKV_KV")
      ->type_name("SPEC")
      ->capture_default_str();
  AddProfileOptions(sub, &options->profile);
  sub->add_option("-p,--prompt", options->prompt, "Prompt; comes after the text of --file")->type_name("TEXT");
  sub->add_option("--file", options->file, "Prompt from a file; '-' is standard input")->type_name("FILE");
  sub->add_flag("--chat", options->chat, "Use the model's chat template (the default when it has one)");
  sub->add_flag("--no-chat", options->no_chat, "Send the prompt as it is");
  sub->add_option("--system", options->system, "System message of the chat")->type_name("TEXT");
  sub->add_option("-n", options->n, "Most tokens to generate")
      ->check(CLI::Range(0, 1 << 30).description(""))
      ->type_name("N")
      ->capture_default_str();
  sub->add_option("--temp", options->sampler.temp, "Temperature; 0 = always the likeliest token")
      ->check(CLI::Range(0.0, 100.0).description(""))
      ->type_name("T")
      ->capture_default_str();
  sub->add_option("--top-k", options->sampler.top_k, "Sample among the K likeliest tokens; 0 = all")
      ->check(CLI::Range(0, 1 << 30).description(""))
      ->type_name("K")
      ->capture_default_str();
  sub->add_option("--top-p", options->sampler.top_p, "Sample among the likeliest tokens whose share reaches P")
      ->check(CLI::Range(0.0, 1.0).description(""))
      ->type_name("P")
      ->capture_default_str();
  sub->add_option("--seed", options->sampler.seed, "Seed of the sampling")->type_name("N")->capture_default_str();
  sub->add_option("--spec-lookup", options->spec_lookup,
                  "Draft up to N tokens from what followed the same words before, and check them in one pass; 0 = off")
      ->check(CLI::Range(0, 64).description(""))
      ->type_name("N")
      ->capture_default_str();
  sub->add_option("--session", options->session,
                  "Begin with a saved session: tokens that the prompt begins with, too, "
                  "are not run again")
      ->type_name("FILE");
  sub->add_option("--save-session", options->save_session, "Save prompt and answer with their packed KV cache")
      ->type_name("FILE");
  AddJsonOption(sub, &options->json);
  sub->add_flag("--quiet", options->quiet, "Only the answer: no progress, no figures");
  sub->footer(
      "The answer goes to standard output, progress and figures to standard error.\n"
      "--spec-lookup pays where the answer repeats the prompt: quotations, summaries, code. Rejected drafts leave no\n"
      "trace in the history; greedy answers are the same up to ties, which llama.cpp's matrix products of one token\n"
      "and of several may round differently.\n\n"
      "Examples:\n"
      "  tersekv run -m model.gguf -p \"Why is the sky blue?\" --kv k4v4 -n 128\n"
      "  tersekv run -m model.gguf --file book.txt -p \"Who is the butler?\" --kv k4v3 --kv-bytes 64M --json run.json\n"
      "  tersekv run -m model.gguf --profile model.tkvp --bits 4 -p \"Why is the sky blue?\"\n"
      "  tersekv run -m model.gguf --file code.py -p \"Add type hints\" --spec-lookup 8\n"
      "  tersekv run -m model.gguf --file book.txt --no-chat -n 0 --save-session book.tkvs\n"
      "  tersekv run -m model.gguf --file book.txt -p \"Who is the butler?\" --no-chat --session book.tkvs\n"
      "  tersekv run --kv list");
  return sub;
}

}  // namespace tersekv::cli
