// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_e2e.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "cli/bench_lists.h"
#include "cli/json_envelope.h"
#include "cli/statistics.h"
#include "cli/table.h"

namespace tersekv::cli {
namespace {

constexpr int kChunk = 512;  // tokens of a timed piece of a prompt
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

double Milliseconds(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// One cache at one depth.
struct Timed {
  std::string name;
  bool ours = false;
  std::unique_ptr<llama::Session> session;
  std::vector<double> decode, decode_attention, prefill;  // ms a step; ms of a chunk
  CacheUsage usage;
};

struct Row {
  int64_t depth = 0;
  std::string name;
  bool ours = false;
  Spread decode, prefill;
  double decode_attention_inside = kUnknown;  // as our own clock sees it
  CacheUsage usage;
};

class Bench {
 public:
  explicit Bench(const BenchE2eOptions& options) : options_(options) {}

  Status Run(const std::vector<std::string>& specs, const std::vector<std::string>& peers,
             const std::vector<int64_t>& depths) {
    for (const int64_t depth : depths) {
      if (Status s = RunDepth(specs, peers, depth); !s.ok()) return s;
    }
    return {};
  }
  const std::vector<Row>& rows() const { return rows_; }
  int threads() const { return threads_; }

 private:
  Status RunDepth(const std::vector<std::string>& specs, const std::vector<std::string>& peers, int64_t depth) {
    std::vector<Timed> all;
    for (const std::string& spec : specs) {
      if (Status s = Open(spec, true, depth, &all); !s.ok()) return s;
    }
    for (const std::string& peer : peers) {
      if (Status s = Open("stock-" + peer, false, depth, &all); !s.ok()) return s;
    }
    for (int round = -1; round < options_.bench.repeat; ++round) {  // -1: warm-up
      Show(depth, round < 0 ? "warm-up" : fmt::format("round {} of {}", round + 1, options_.bench.repeat));
      for (Timed& t : all) {
        if (Status s = Decode(&t, round >= 0); !s.ok()) return s;
      }
    }
    for (int round = 0; round < options_.prefill; ++round) {
      for (Timed& t : all) {
        Show(depth, fmt::format("chunk {} of {}, {}", round + 1, options_.prefill, t.name));
        if (Status s = Prefill(&t, depth); !s.ok()) return s;
      }
    }
    Show(depth, "");
    for (Timed& t : all) {
      Row row = {depth, t.name, t.ours, SpreadOf(t.decode), {kUnknown, kUnknown, kUnknown}, kUnknown, t.usage};
      if (!t.prefill.empty()) row.prefill = SpreadOf(t.prefill);
      if (t.ours) row.decode_attention_inside = SpreadOf(t.decode_attention).median;
      rows_.push_back(row);
    }
    return {};
  }

  void Show(int64_t depth, const std::string& what) const {
    if (options_.bench.quiet) return;
    fmt::print(stderr, "\r{}\033[K", what.empty() ? "" : fmt::format("depth {}: {}", depth, what));
  }

  Status Open(const std::string& name, bool ours, int64_t depth, std::vector<Timed>* all) {
    Show(depth, "filling " + name);
    auto session_options = MakeSessionOptions(options_.engine, name);
    if (!session_options) return session_options.error();
    session_options->ctx = depth + kChunk + static_cast<int64_t>(options_.tokens) * (options_.bench.repeat + 1);
    session_options->max_sequences = options_.sequences;
    auto session = llama::Session::Open(*session_options);
    if (!session) return session.error();
    for (int s = 0; s < options_.sequences; ++s) {
      if (Status status = (*session)->FillWithNoise(s, depth); !status.ok()) return status;
    }
    threads_ = (*session)->threads();
    Timed timed;
    timed.name = (*session)->kv();
    timed.ours = ours;
    timed.session = std::move(*session);
    timed.usage = timed.session->Usage();
    all->push_back(std::move(timed));
    return {};
  }

  int32_t Token(const Timed& t, int i) const { return (17 + i) % t.session->model().vocab; }

  // `tokens` steps of one token a sequence.
  Status Decode(Timed* t, bool keep) {
    for (int i = 0; i < options_.tokens; ++i) {
      std::vector<llama::BatchToken> batch;
      for (int s = 0; s < options_.sequences; ++s) {
        batch.push_back({Token(*t, i), static_cast<int32_t>(t->session->Length(s)), s, true});
      }
      const double inside = t->session->attention_seconds();
      const auto start = std::chrono::steady_clock::now();
      if (Status s = t->session->Decode(batch); !s.ok()) return s;
      if (!keep) {  // warm-up: a cache that gives no numbers is not timed
        for (const float logit : t->session->Logits(0)) {
          if (!std::isfinite(logit)) return Internal(t->name + " gives logits that are not finite: not timed");
        }
        continue;
      }
      t->decode.push_back(Milliseconds(start));
      t->decode_attention.push_back((t->session->attention_seconds() - inside) * 1e3);
    }
    return {};
  }

  Status Prefill(Timed* t, int64_t depth) {
    if (Status s = t->session->Truncate(0, depth); !s.ok()) return s;
    std::vector<int32_t> tokens;
    for (int i = 0; i < kChunk; ++i) tokens.push_back(Token(*t, i));
    const auto start = std::chrono::steady_clock::now();
    if (Status s = t->session->Prefill(tokens, 0, nullptr); !s.ok()) return s;
    t->prefill.push_back(Milliseconds(start));
    return {};
  }

  const BenchE2eOptions& options_;
  int threads_ = 0;
  std::vector<Row> rows_;
};

// The fastest peer of a depth; null when there is none.
const Row* BestPeer(const std::vector<Row>& rows, int64_t depth, double (*time)(const Row&)) {
  const Row* best = nullptr;
  for (const Row& row : rows) {
    if (row.depth != depth || row.ours || !(time(row) > 0)) continue;
    if (best == nullptr || time(row) < time(*best)) best = &row;
  }
  return best;
}
double DecodeTime(const Row& row) { return row.decode.median; }
double PrefillTime(const Row& row) { return row.prefill.median; }

// What a token costs without history: the fastest peer at depth 0, when that was measured. The rest is attention, for
// both sides alike.
double Base(const std::vector<Row>& rows, double (*time)(const Row&)) {
  const Row* row = BestPeer(rows, 0, time);
  return row != nullptr ? time(*row) : kUnknown;
}

Json Number(double value) { return value == value ? Json(value) : Json(nullptr); }

Json ToJson(const std::vector<Row>& rows, const BenchE2eOptions& options, int threads) {
  Json json = Json::array();
  const double decode_base = Base(rows, DecodeTime), prefill_base = Base(rows, PrefillTime);
  for (const Row& row : rows) {
    const Row* decode = BestPeer(rows, row.depth, DecodeTime);
    const Row* prefill = BestPeer(rows, row.depth, PrefillTime);
    const double peer_decode = decode != nullptr ? DecodeTime(*decode) : kUnknown;
    const double peer_prefill = prefill != nullptr ? PrefillTime(*prefill) : kUnknown;
    const double attention = row.depth > 0 ? row.decode.median - decode_base : kUnknown;
    const double peer_attention = row.depth > 0 ? peer_decode - decode_base : kUnknown;
    Json j;
    j["depth"] = row.depth;
    j["spec"] = row.name;
    j["threads"] = threads;
    j["sequences"] = options.sequences;
    j["arithmetic"] = row.ours ? options.engine.arithmetic : "";
    j["decode_ms"] = row.decode.median;
    j["decode_ms_low"] = row.decode.low;
    j["decode_ms_high"] = row.decode.high;
    j["decode_attn_ms"] = Number(attention);
    j["decode_attn_inside_ms"] = Number(row.decode_attention_inside);
    j["prefill_ms_512"] = Number(row.prefill.median);
    j["prefill_attn_ms_512"] = Number(row.depth > 0 ? row.prefill.median - prefill_base : kUnknown);
    j["prefill"] = "decode";
    j["peer"] = decode != nullptr ? decode->name : "";
    j["peer_decode_ms"] = Number(peer_decode);
    j["peer_decode_attn_ms"] = Number(peer_attention);
    j["peer_prefill_ms_512"] = Number(peer_prefill);
    j["peer_prefill_attn_ms_512"] = Number(row.depth > 0 ? peer_prefill - prefill_base : kUnknown);
    j["ratio_token"] = Number(peer_decode / row.decode.median);
    j["ratio_attn"] = Number(attention > 0 ? peer_attention / attention : kUnknown);  // noise can make it negative
    j["ratio_prefill"] = Number(peer_prefill / row.prefill.median);
    j["ratio_prefill_attn"] = Number((peer_prefill - prefill_base) / (row.prefill.median - prefill_base));
    j["kv_bytes_used"] = row.usage.bytes_used;
    json.push_back(j);
  }
  return json;
}

std::string Cell(const Json& value, const char* format) {
  return value.is_null() ? "" : fmt::format(fmt::runtime(format), value.get<double>());
}

std::string ToText(const Json& rows) {
  std::vector<std::vector<std::string>> cells = {{"depth", "spec", "token ms", "quartiles", "peer / this",
                                                  "attention ms", "attention: peer / this", "prompt ms",
                                                  "prompt: peer / this", "prompt attention: peer / this", "KV bytes"}};
  for (const Json& row : rows) {
    cells.push_back({fmt::format("{}", row["depth"].get<int64_t>()), row["spec"].get<std::string>(),
                     Cell(row["decode_ms"], "{:.2f}"),
                     Cell(row["decode_ms_low"], "{:.2f}") + " .. " + Cell(row["decode_ms_high"], "{:.2f}"),
                     Cell(row["ratio_token"], "{:.2f}x"), Cell(row["decode_attn_ms"], "{:.2f}"),
                     Cell(row["ratio_attn"], "{:.2f}x"), Cell(row["prefill_ms_512"], "{:.0f}"),
                     Cell(row["ratio_prefill"], "{:.2f}x"), Cell(row["ratio_prefill_attn"], "{:.2f}x"),
                     fmt::format("{}", row["kv_bytes_used"].get<size_t>())});
  }
  return FormatTable(cells, {1});
}

Status RunBenchE2e(const BenchE2eOptions& options) {
  const auto lists = ListsOf(options.bench);
  if (!lists) return lists.error();
  for (const std::string& peer : lists->peers) {
    if (const auto known = CheckKv("stock-" + peer); !known) return known.error();
  }
  Bench bench(options);
  if (Status s = bench.Run(lists->specs, lists->peers, lists->depths); !s.ok()) return s;
  const Json rows = ToJson(bench.rows(), options, bench.threads());
  return ReportBench(options.bench, ToText(rows), rows);
}

}  // namespace

CLI::App* AddBenchE2e(CLI::App* app, BenchE2eOptions* options) {
  CLI::App* sub = app->add_subcommand("e2e", "Time whole tokens of a model at a depth");
  AddEngineOptions(sub, &options->engine, false);
  AddNumber(sub, "--sequences", &options->sequences, 1, 256, "Sequences that are decoded together, each of that depth");
  AddNumber(sub, "--tokens", &options->tokens, 1, 1000, "Tokens a round");
  AddNumber(sub, "--prefill", &options->prefill, 0, 100, "Also time a chunk of 512 prompt tokens so many times");
  AddBenchOptions(sub, &options->bench);
  sub->footer(
      "Histories are made up (speed does not depend on their values), so a depth of 32768 needs no prompt of that\n"
      "length. Attention is what a token takes beyond the fastest peer's token at depth 0, for both sides alike: give\n"
      "depth 0 too. Ratios divide the fastest --peer cache of that depth by the cache of the row.\n\n"
      "Example:\n"
      "  tersekv bench e2e -m model.gguf --kv k4v4 --depths 0,4096,16384 --prefill 2 --json e2e.json");
  return sub;
}

int BenchE2e(const BenchE2eOptions& options) {
  const Status status = RunBenchE2e(options);
  return status.ok() ? kExitOk : Fail(status);
}

}  // namespace tersekv::cli
