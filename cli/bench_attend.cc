// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_attend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "cli/bench_lists.h"
#include "cli/json_envelope.h"
#include "cli/statistics.h"
#include "cli/table.h"
#include "tersekv/llama_bench.h"

namespace tersekv::cli {
namespace {

constexpr double kPeerTolerance = 0.35;  // relative: codecs differ, but a kernel that is wrong differs more

struct Timed {
  std::string name;
  std::vector<double> attend, append;
  size_t bytes = 0;
};

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / size);
}

// Everything of one depth.
class Depth {
 public:
  Depth(const BenchAttendOptions& options, int64_t depth, int threads)
      : options_(options), shape_(ShapeOf(options, depth, threads)), rows_(shape_) {}

  Status Measure(const std::vector<std::string>& specs, const std::vector<std::string>& peers) {
    const Arithmetic arithmetic = ArithmeticOf(options_.arithmetic);
    for (const std::string& spec : specs) {
      if (Status s = Add(spec, llama::AttentionBench::Packed(shape_, spec, arithmetic, rows_)); !s.ok()) return s;
    }
    ours_ = benches_.size();
    for (const std::string& peer : peers) {
      if (Status s = Add("stock-" + peer, llama::AttentionBench::Stock(shape_, peer, rows_)); !s.ok()) return s;
    }
    if (Status s = Check(); !s.ok()) return s;
    for (int i = 0; i < options_.bench.repeat; ++i) {
      if (!options_.bench.quiet) {
        fmt::print(stderr, "\rdepth {}: round {} of {}\033[K", shape_.depth, i + 1, options_.bench.repeat);
      }
      if (Status s = Round(true); !s.ok()) return s;
    }
    if (!options_.bench.quiet) fmt::print(stderr, "\r\033[K");
    return {};
  }

  // roof: bytes a second that can be read.
  std::vector<Json> Rows(double roof) const {
    std::vector<Json> rows;
    const Timed* best = nullptr;
    for (size_t i = ours_; i < timed_.size(); ++i) {
      if (best == nullptr || SpreadOf(timed_[i].attend).median < SpreadOf(best->attend).median) best = &timed_[i];
    }
    const double peer = best != nullptr ? SpreadOf(best->attend).median : 0;
    for (size_t i = 0; i < timed_.size(); ++i) {
      const Timed& t = timed_[i];
      const Spread attend = SpreadOf(t.attend);
      Json row;
      row["shape"] = fmt::format("{}x{}x{}x{}", options_.layers, options_.kv_heads, options_.group, options_.head_dim);
      row["depth"] = shape_.depth;
      row["queries"] = shape_.queries;
      row["threads"] = shape_.threads;
      row["spec"] = t.name;
      row["arithmetic"] = i < ours_ ? options_.arithmetic : "";
      row["us"] = attend.median * 1e6 / shape_.layers;
      row["us_chain"] = attend.median * 1e6;
      row["us_chain_low"] = attend.low * 1e6;
      row["us_chain_high"] = attend.high * 1e6;
      row["append_us_chain"] = SpreadOf(t.append).median * 1e6;
      row["gbps"] = static_cast<double>(t.bytes) / attend.median / 1e9;
      row["roof_share"] = static_cast<double>(t.bytes) / attend.median / roof;
      row["kv_bytes_used"] = t.bytes;
      row["peer"] = best != nullptr ? best->name : "";
      row["peer_us"] = best != nullptr ? Json(peer * 1e6 / shape_.layers) : Json(nullptr);
      row["ratio"] = best != nullptr ? Json(peer / attend.median) : Json(nullptr);
      rows.push_back(row);
    }
    return rows;
  }

 private:
  static llama::AttentionBenchShape ShapeOf(const BenchAttendOptions& options, int64_t depth, int threads) {
    const LayerShape layer = {options.kv_heads * options.group, options.kv_heads, options.head_dim, options.head_dim};
    return {layer, options.layers, depth, options.queries, threads};
  }

  Status Add(const std::string& name, Result<std::unique_ptr<llama::AttentionBench>> bench) {
    if (!bench) return bench.error();
    timed_.push_back({name, {}, {}, (*bench)->cache_bytes()});
    benches_.push_back(std::move(*bench));
    return {};
  }

  // One of each, in turn, so that a slow moment of the machine hits all of them.
  Status Round(bool keep) {
    for (size_t i = 0; i < benches_.size(); ++i) {
      const auto seconds = benches_[i]->Run();
      if (!seconds) return seconds.error();
      if (!keep) continue;
      timed_[i].attend.push_back(seconds->attend);
      timed_[i].append.push_back(seconds->append);
    }
    return {};
  }

  // Warm-up, and a look at the results: a kernel that is wrong is not timed.
  Status Check() {
    if (Status s = Round(false); !s.ok()) return s;
    for (size_t i = 0; i < ours_; ++i) {
      for (const float value : benches_[i]->Output()) {
        if (!std::isfinite(value)) return Internal(timed_[i].name + " gives values that are not finite: not timed");
      }
    }
    if (benches_.size() == ours_) return {};
    const std::vector<float> expected = benches_[ours_]->Output();
    for (size_t i = 0; i < ours_; ++i) {
      const double distance = Distance(benches_[i]->Output(), expected);
      if (!(distance < kPeerTolerance)) {
        return Internal(fmt::format("{} differs from {} by {:.3f} of its size at depth {}: not timed", timed_[i].name,
                                    timed_[ours_].name, distance, shape_.depth));
      }
    }
    return {};
  }

  const BenchAttendOptions& options_;
  const llama::AttentionBenchShape shape_;
  const llama::AttentionBenchRows rows_;
  size_t ours_ = 0;  // the first ones of benches_
  std::vector<std::unique_ptr<llama::AttentionBench>> benches_;
  std::vector<Timed> timed_;
};

std::string ToText(const Json& rows) {
  std::vector<std::vector<std::string>> cells = {{"depth", "spec", "queries", "ms a step", "quartiles", "append ms",
                                                  "KV bytes", "GB/s", "of roof", "best peer / this"}};
  for (const Json& row : rows) {
    const double append = row["append_us_chain"].get<double>();
    cells.push_back(
        {fmt::format("{}", row["depth"].get<int64_t>()), row["spec"].get<std::string>(),
         fmt::format("{}", row["queries"].get<int>()), fmt::format("{:.3f}", row["us_chain"].get<double>() / 1e3),
         fmt::format("{:.3f} .. {:.3f}", row["us_chain_low"].get<double>() / 1e3,
                     row["us_chain_high"].get<double>() / 1e3),
         append > 0 ? fmt::format("{:.3f}", append / 1e3) : "", fmt::format("{}", row["kv_bytes_used"].get<size_t>()),
         fmt::format("{:.2f}", row["gbps"].get<double>()),
         fmt::format("{:.0f}%", 100 * row["roof_share"].get<double>()),
         row["ratio"].is_null() ? "" : fmt::format("{:.2f}x", row["ratio"].get<double>())});
  }
  return FormatTable(cells, {1});
}

Status RunBenchAttend(const BenchAttendOptions& options) {
  const auto lists = ListsOf(options.bench);
  if (!lists) return lists.error();
  const int threads =
      options.threads > 0 ? options.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const double roof = llama::MemoryReadRate(threads);
  Json rows = Json::array();
  for (const int64_t depth : lists->depths) {
    Depth measured(options, depth, threads);
    if (Status s = measured.Measure(lists->specs, lists->peers); !s.ok()) return s;
    for (Json& row : measured.Rows(roof)) rows.push_back(std::move(row));
  }
  return ReportBench(options.bench, ToText(rows), rows);
}

}  // namespace

CLI::App* AddBenchAttend(CLI::App* app, BenchAttendOptions* options) {
  CLI::App* sub = app->add_subcommand("attend", "Time the attention of one step alone, without a model");
  AddNumber(sub, "--layers", &options->layers, 1, 1024, "Layers");
  AddNumber(sub, "--kv-heads", &options->kv_heads, 1, 1024, "KV heads");
  AddNumber(sub, "--group", &options->group, 1, 256, "Query heads a KV head");
  AddNumber(sub, "--head-dim", &options->head_dim, 1, 1024, "Values a head, of K and of V");
  AddNumber(sub, "--queries", &options->queries, 1, 8192, "Tokens of the step: 1 = decode, 512 = a chunk of a prompt");
  AddNumber(sub, "--threads", &options->threads, 0, 512, "Threads; 0 = all cores");
  AddArithmeticOption(sub, &options->arithmetic);
  AddBenchOptions(sub, &options->bench);
  sub->footer(
      "All layers of one step, sinks and window included, against llama.cpp's own kernel on the same made-up rows.\n"
      "Medians and quartiles of --repeat rounds; the last column divides by the fastest of the --peer caches.\n\n"
      "Example:\n"
      "  tersekv bench attend --kv k4v4,k3v3 --depths 4096,16384 --json attend.json");
  return sub;
}

int BenchAttend(const BenchAttendOptions& options) {
  const Status status = RunBenchAttend(options);
  return status.ok() ? kExitOk : Fail(status);
}

}  // namespace tersekv::cli
