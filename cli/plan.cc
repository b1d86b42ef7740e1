// SPDX-License-Identifier: Apache-2.0
#include "cli/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "cli/bench_lists.h"
#include "cli/json_envelope.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "tersekv/capacity.h"
#include "tersekv/llama.h"

namespace tersekv::cli {
namespace {

constexpr int64_t kPad = 256;  // n_ctx is a multiple of it
constexpr int kStaging = 512;  // tokens of a batch of `tersekv serve`
constexpr int64_t kMostSlots = 4096;
constexpr int kKeepBack = 64;

// The largest n in [0, most] with fits(n); fits(n) implies fits(n - 1).
Result<int64_t> Largest(int64_t most, const std::function<Result<bool>(int64_t)>& fits) {
  int64_t low = 0, high = most + 1;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    const Result<bool> fit = fits(middle);
    if (!fit) return fit.error();
    (*fit ? low : high) = middle;
  }
  return low;
}

// llama.cpp's own cache; row_bytes: of a token in all layers.
class StockSizes {
 public:
  StockSizes(const llama::ModelInfo& model, double row_bytes) : row_bytes_(row_bytes) {
    double all = 0;
    for (size_t l = 0; l < model.layers.size(); ++l) {
      const LayerShape& s = model.layers[l];
      const double values = double(s.kv_heads) * (s.head_dim_k + s.head_dim_v);
      layers_.push_back({values, model.windows[l]});
      all += values;
    }
    for (Layer& layer : layers_) layer.share /= all;
  }
  size_t Bytes(int64_t tokens) const {
    double rows = 0;
    for (const Layer& layer : layers_) {  // a windowed layer has cells for its window and a batch
      const int64_t cells = (layer.window + kStaging + kPad - 1) / kPad * kPad;
      rows += layer.share * static_cast<double>(layer.window > 0 ? std::min(tokens, cells) : tokens);
    }
    return static_cast<size_t>(std::llround(rows * row_bytes_));
  }

 private:
  struct Layer {
    double share = 0;
    int64_t window = 0;
  };
  std::vector<Layer> layers_;
  double row_bytes_;
};

PlanRow PlanStock(const StockSizes& sizes, const PlanQuestion& question) {
  PlanRow row;
  for (const int64_t n : question.slots) {
    const size_t share = question.bytes / static_cast<size_t>(n);
    row.tokens.push_back(*Largest(INT32_MAX / kPad, [&](int64_t k) { return sizes.Bytes(k * kPad) <= share; }) * kPad);
  }
  for (const int64_t tokens : question.contexts) {
    row.bytes.push_back(sizes.Bytes(tokens));
    row.slots.push_back(
        std::min<int64_t>(static_cast<int64_t>(question.bytes / std::max<size_t>(row.bytes.back(), 1)), kMostSlots));
  }
  return row;
}

Result<PlanRow> PlanOne(const KvChoice& choice, const llama::SessionOptions& options, const llama::ModelInfo& model,
                        const PlanQuestion& question) {
  Result<PlanRow> row = PlanRow();
  if (IsStock(choice.kv)) {
    llama::SessionOptions small = WithChoice(options, choice);
    const auto session = llama::Session::Open(small);
    if (!session) return session.error();
    row = PlanStock(StockSizes(model, static_cast<double>((*session)->Usage().bytes_reserved) / kPad), question);
    row->bits_spec = BitsOf(choice.kv, model);
  } else {
    Result<CacheConfig> config = llama::SessionCacheConfig(model, choice.kv, choice.profile, choice.layer_bits);
    if (!config) return config.error();
    config->keep_back = kKeepBack + kStaging;  // as the preload object has it, and a step
    row = PlanPacked(*config, question);
    if (!row) return row;
    row->bits_spec = BitsSpec(*config);
  }
  row->name = choice.name.empty() ? choice.kv : choice.name;
  return row;
}

Result<std::vector<int64_t>> Counts(const std::string& list, const char* option, int64_t least, int64_t most) {
  Result<std::vector<std::string>> elements = ListElements(list);
  if (!elements) return elements.error();
  std::vector<int64_t> counts;
  for (const std::string& element : *elements) {
    const int64_t n = ParseWhole(element).value_or(-1);
    if (n < least || n > most) {
      return InvalidArgument(
          fmt::format("{} {}: '{}' is not a number from {} to {}", option, list, element, least, most));
    }
    counts.push_back(n);
  }
  std::sort(counts.begin(), counts.end());
  return counts;
}

struct Memory {
  size_t all = 0, reserve = 0, weights = 0, staging = 0;
  size_t history() const { return all - reserve - weights - staging; }
};

Result<Memory> Divide(const PlanOptions& options, const llama::ModelInfo& model) {
  Memory memory;
  const Result<size_t> all = ParseBytes(options.memory);
  if (!all) return InvalidArgument("--memory: " + all.error().message());
  memory.all = *all;
  if (options.reserve != "0") {
    const Result<size_t> reserve = ParseBytes(options.reserve);
    if (!reserve) return InvalidArgument("--reserve: " + reserve.error().message());
    memory.reserve = *reserve;
  }
  memory.weights = model.weight_bytes;
  memory.staging = F16Bytes(model.layers, kStaging);
  const size_t taken = memory.reserve + memory.weights + memory.staging;
  if (taken < memory.all) return memory;
  return OutOfBudget(fmt::format(
      "--memory {}: weights take {}, llama.cpp's staging {} and --reserve {}: nothing is left for the history, the "
      "least is {}",
      options.memory, Size(double(memory.weights)), Size(double(memory.staging)), Size(double(memory.reserve)),
      Size(double(taken))));
}

std::string ToText(const llama::ModelInfo& model, const Memory& memory, const PlanQuestion& question,
                   const std::vector<PlanRow>& rows) {
  std::vector<std::vector<std::string>> cells = {{"spec", "bits"}};
  for (const int64_t n : question.slots) cells[0].push_back(fmt::format("{} slot{}", n, n == 1 ? "" : "s"));
  for (const int64_t n : question.contexts) cells[0].push_back(fmt::format("slots of {}", n));
  for (const int64_t n : question.contexts) cells[0].push_back(fmt::format("one of {}", n));
  for (const PlanRow& row : rows) {
    std::vector<std::string> line = {row.name, fmt::format("{:.4g}", row.bits_spec)};
    for (const int64_t n : row.tokens) line.push_back(fmt::format("{}", n));
    for (const int64_t n : row.slots) line.push_back(fmt::format("{}", n));
    for (const size_t n : row.bytes) line.push_back(Size(static_cast<double>(n)));
    cells.push_back(std::move(line));
  }
  return fmt::format("{}: {} of memory = {} weights + {} staging + {} kept for the rest + {} history\n\n", model.name,
                     Size(double(memory.all)), Size(double(memory.weights)), Size(double(memory.staging)),
                     Size(double(memory.reserve)), Size(double(memory.history()))) +
         FormatTable(cells) +
         fmt::format(
             "\nTokens of each slot when that many share the history; slots whose context is so long, {} at "
             "most.\nThe model was trained for {} tokens.\n",
             kMostSlots, model.ctx_train) +
         (question.prefix == 0
              ? ""
              : fmt::format("Packed slots begin with the same {} tokens and hold their full pages once; "
                            "`one of` counts them.\n",
                            question.prefix));
}

Json ToJson(const Memory& memory, const PlanQuestion& question, const PlanRow& row) {
  Json json;
  json["spec"] = row.name;
  json["bits_spec"] = row.bits_spec;
  json["memory_bytes"] = memory.all;
  json["weight_bytes"] = memory.weights;
  json["staging_bytes"] = memory.staging;
  json["reserve_bytes"] = memory.reserve;
  json["history_bytes"] = memory.history();
  json["prefix"] = question.prefix;
  for (const char* key : {"contexts", "slots"}) json[key] = Json::array();
  for (size_t i = 0; i < row.tokens.size(); ++i) {
    json["contexts"].push_back({{"slots", question.slots[i]}, {"tokens", row.tokens[i]}});
  }
  for (size_t i = 0; i < row.slots.size(); ++i) {
    json["slots"].push_back({{"tokens", question.contexts[i]}, {"slots", row.slots[i]}, {"slot_bytes", row.bytes[i]}});
  }
  return json;
}

Status RunPlan(const PlanOptions& options) {
  if (options.memory.empty()) return InvalidArgument("no memory: say how much there is, e.g. --memory 8G");
  if (Status status = CheckWritable(options.json); !status.ok()) return status;
  PlanQuestion question;
  Result<std::vector<int64_t>> slots = Counts(options.slots, "--slots", 1, kMostSlots);
  if (!slots) return slots.error();
  Result<std::vector<int64_t>> contexts = Counts(options.contexts, "--contexts", 1, INT32_MAX / 2);
  if (!contexts) return contexts.error();
  question.slots = std::move(*slots);
  question.contexts = std::move(*contexts);
  question.prefix = options.prefix;
  const auto profile = FindProfile(options.profile, options.engine, false);
  if (!profile) return profile.error();
  const auto choices = ChooseKvList(options.kv, options.profile.bits, *profile);
  if (!choices) return choices.error();
  auto session_options = MakeSessionOptions(options.engine, "f16");
  if (!session_options) return session_options.error();
  session_options->ctx = kPad;
  session_options->ubatch = 32;
  session_options->self_test = false;
  const auto session = llama::Session::Open(*session_options);  // for what it says of the model
  if (!session) return session.error();
  const llama::ModelInfo& model = (*session)->model();
  const Result<Memory> memory = Divide(options, model);
  if (!memory) return memory.error();
  question.bytes = memory->history();
  std::vector<PlanRow> rows;
  Json json = Json::array();
  for (const KvChoice& choice : *choices) {
    const Result<PlanRow> row = PlanOne(choice, *session_options, model, question);
    if (!row) return row.error();
    json.push_back(ToJson(*memory, question, *row));
    rows.push_back(*row);
  }
  if (options.json != "-") {
    if (Status status = WriteText("-", ToText(model, *memory, question, rows)); !status.ok()) return status;
  }
  return options.json.empty() ? Status() : WriteText(options.json, Dump(Envelope(std::move(json))));
}

}  // namespace

Result<PlanRow> PlanPacked(const CacheConfig& config, const PlanQuestion& question) {
  PlanRow row;
  for (const int64_t n : question.slots) {
    const Result<int64_t> tokens = CapacityTokens(config, question.bytes, static_cast<int>(n), question.prefix);
    if (!tokens) return tokens.error();
    row.tokens.push_back(*tokens / kPad * kPad);
  }
  for (const int64_t tokens : question.contexts) {
    row.bytes.push_back(FormulaBytes(config, tokens));
    const auto own = static_cast<int64_t>(question.bytes / std::max<size_t>(row.bytes.back(), 1));
    const int64_t most = question.prefix > 0 ? kMostSlots : own;  // shared pages leave room for more
    const Result<int64_t> slots = Largest(std::min(most, kMostSlots), [&](int64_t n) -> Result<bool> {
      const Result<int64_t> fits = CapacityTokens(config, question.bytes, static_cast<int>(n), question.prefix);
      if (!fits) return fits.error();
      return *fits >= tokens;
    });
    if (!slots) return slots.error();
    row.slots.push_back(*slots);
  }
  return row;
}

CLI::App* AddPlan(CLI::App* app, PlanOptions* options) {
  CLI::App* sub = app->add_subcommand("plan", "Say which contexts and how many slots fit into a memory, by spec");
  sub->add_option("-m,--model", options->engine.model, "Model file (GGUF)")->type_name("FILE");
  sub->add_option("--memory", options->memory, "Memory for weights, history and the rest, e.g. 8G")->type_name("SIZE");
  sub->add_option("--reserve", options->reserve, "Of it, for llama.cpp's compute buffers and the program; 0 = nothing")
      ->type_name("SIZE")
      ->capture_default_str();
  sub->add_option("--kv", options->kv,
                  "Specs, separated by commas; stock-* are llama.cpp's own caches, bits=F needs "
                  "--profile")
      ->type_name("LIST")
      ->capture_default_str();
  sub->add_option("--slots", options->slots, "Numbers of slots whose context is asked for")
      ->type_name("LIST")
      ->capture_default_str();
  sub->add_option("--contexts", options->contexts, "Contexts whose number of slots is asked for, in tokens")
      ->type_name("LIST")
      ->capture_default_str();
  sub->add_option("--prefix", options->prefix,
                  "Tokens that all slots begin with, as a system prompt: packed slots hold its full pages once")
      ->type_name("N")
      ->check(CLI::Range(int64_t{0}, int64_t{INT32_MAX}));
  AddProfileOptions(sub, &options->profile);
  AddJsonOption(sub, &options->json);
  sub->footer(
      "What `tersekv serve --kv-bytes HISTORY --kv-ctx auto` gives, pages and raw rows counted as they are "
      "allocated.\n\n"
      "Examples:\n  tersekv plan -m model.gguf --memory 8G\n"
      "  tersekv plan -m model.gguf --memory 8G --kv stock-f16,k4v4 --slots 8 --contexts 8192 --json plan.json");
  return sub;
}

int Plan(const PlanOptions& options) {
  const Status status = RunPlan(options);
  return status.ok() ? kExitOk : Fail(status);
}

}  // namespace tersekv::cli
