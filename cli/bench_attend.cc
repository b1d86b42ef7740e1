// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_attend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "cli/bench_lists.h"
#include "cli/json_envelope.h"
#include "cli/packed_attention.h"
#include "cli/statistics.h"
#include "cli/table.h"
#include "hosts/llama/stock_attention.h"
#include "src/base/check.h"

namespace tersekv::cli {
namespace {

constexpr size_t kNoiseRows = 1024;
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
      : options_(options), depth_(depth), threads_(threads) {
    shape_ = {options.kv_heads * options.group, options.kv_heads, options.head_dim, options.head_dim};
    const size_t width = static_cast<size_t>(options.kv_heads * options.head_dim);
    k_rows_ = NoiseRows(width, kNoiseRows, 1);
    v_rows_ = NoiseRows(width, kNoiseRows, 2);
    for (const auto& row : NoiseRows(static_cast<size_t>(shape_.heads * shape_.head_dim_k),
                                     static_cast<size_t>(options.queries), 3)) {
      q_.insert(q_.end(), row.begin(), row.end());
    }
  }

  Status Measure(const std::vector<std::string>& specs, const std::vector<std::string>& peers) {
    const auto arithmetic = options_.arithmetic == "exact" ? Arithmetic::kExact : Arithmetic::kInt16;
    for (const std::string& spec : specs) {
      auto made = PackedAttention::Create(spec, shape_, options_.layers, depth_, options_.queries, threads_, arithmetic,
                                          k_rows_, v_rows_);
      if (!made) return made.error();
      ours_.push_back(std::move(*made));
      timed_.push_back({spec, {}, {}, ours_.back()->Usage().bytes_used});
    }
    for (const std::string& peer : peers) {
      auto made = llama::StockAttention::Create(shape_, options_.layers, depth_, options_.queries, peer, threads_,
                                                k_rows_, v_rows_);
      if (!made) return made.error();
      peers_.push_back(std::move(*made));
      timed_.push_back({peer, {}, {}, peers_.back()->cache_bytes()});
    }
    TERSEKV_RETURN_IF_ERROR(Check(specs, peers));
    for (int i = 0; i < options_.repeat; ++i) {
      if (!options_.quiet) fmt::print(stderr, "\rdepth {}: round {} of {}\033[K", depth_, i + 1, options_.repeat);
      TERSEKV_RETURN_IF_ERROR(Round(true));
    }
    if (!options_.quiet) fmt::print(stderr, "\r\033[K");
    return {};
  }

  std::vector<Json> Rows() const {
    std::vector<Json> rows;
    const size_t ours = ours_.size();
    const Timed* best = nullptr;
    for (size_t i = ours; i < timed_.size(); ++i) {
      if (best == nullptr || SpreadOf(timed_[i].attend).median < SpreadOf(best->attend).median) best = &timed_[i];
    }
    for (size_t i = 0; i < timed_.size(); ++i) {
      const Timed& t = timed_[i];
      const Spread attend = SpreadOf(t.attend);
      Json row;
      row["shape"] = fmt::format("{}x{}x{}x{}", options_.layers, options_.kv_heads, options_.group, options_.head_dim);
      row["depth"] = depth_;
      row["queries"] = options_.queries;
      row["threads"] = threads_;
      row["spec"] = i < ours ? t.name : "stock-" + t.name;
      row["arithmetic"] = i < ours ? options_.arithmetic : "";
      row["us"] = attend.median * 1e6 / options_.layers;
      row["us_chain"] = attend.median * 1e6;
      row["us_chain_low"] = attend.low * 1e6;
      row["us_chain_high"] = attend.high * 1e6;
      row["append_us_chain"] = i < ours ? SpreadOf(t.append).median * 1e6 : 0.0;
      row["gbps"] = static_cast<double>(t.bytes) / attend.median / 1e9;
      row["kv_bytes_used"] = t.bytes;
      row["peer"] = best != nullptr ? "stock-" + best->name : "";
      row["peer_us"] = best != nullptr ? SpreadOf(best->attend).median * 1e6 / options_.layers : 0.0;
      row["ratio"] = best != nullptr ? SpreadOf(best->attend).median / attend.median : 0.0;
      rows.push_back(row);
    }
    return rows;
  }

 private:
  // One of each, in turn, so that a slow moment of the machine hits all of them.
  Status Round(bool keep) {
    for (size_t i = 0; i < ours_.size(); ++i) {
      const auto seconds = ours_[i]->Run(q_);
      if (!seconds) return seconds.error();
      if (!keep) continue;
      timed_[i].attend.push_back(seconds->attend);
      timed_[i].append.push_back(seconds->append);
    }
    for (size_t i = 0; i < peers_.size(); ++i) {
      const double seconds = peers_[i]->Run(q_);
      if (keep) timed_[ours_.size() + i].attend.push_back(seconds);
    }
    return {};
  }

  // Warm-up, and a look at the results: a kernel that is wrong is not timed.
  Status Check(const std::vector<std::string>& specs, const std::vector<std::string>& peers) {
    TERSEKV_RETURN_IF_ERROR(Round(false));
    for (size_t i = 0; i < ours_.size() && !peers_.empty(); ++i) {
      const double distance = Distance(ours_[i]->Output(), peers_[0]->Output());
      if (!(distance < kPeerTolerance)) {
        return Internal(fmt::format("{} differs from stock-{} by {:.3f} of its size at depth {}: not timed", specs[i],
                                    peers[0], distance, depth_));
      }
    }
    return {};
  }

  const BenchAttendOptions& options_;
  const int64_t depth_;
  const int threads_;
  LayerShape shape_;
  std::vector<std::vector<float>> k_rows_, v_rows_;
  std::vector<float> q_;
  std::vector<std::unique_ptr<PackedAttention>> ours_;
  std::vector<std::unique_ptr<llama::StockAttention>> peers_;
  std::vector<Timed> timed_;
};

std::string ToText(const Json& rows) {
  std::vector<std::vector<std::string>> cells = {
      {"depth", "spec", "queries", "ms a step", "quartiles", "append ms", "KV bytes", "GB/s", "best peer / this"}};
  for (const Json& row : rows) {
    const double append = row["append_us_chain"].get<double>();
    cells.push_back({fmt::format("{}", row["depth"].get<int64_t>()), row["spec"].get<std::string>(),
                     fmt::format("{}", row["queries"].get<int>()),
                     fmt::format("{:.3f}", row["us_chain"].get<double>() / 1e3),
                     fmt::format("{:.3f} .. {:.3f}", row["us_chain_low"].get<double>() / 1e3,
                                 row["us_chain_high"].get<double>() / 1e3),
                     append > 0 ? fmt::format("{:.3f}", append / 1e3) : "",
                     fmt::format("{}", row["kv_bytes_used"].get<size_t>()),
                     fmt::format("{:.2f}", row["gbps"].get<double>()),
                     fmt::format("{:.2f}x", row["ratio"].get<double>())});
  }
  return FormatTable(cells, {1});
}

Status RunBenchAttend(const BenchAttendOptions& options) {
  TERSEKV_RETURN_IF_ERROR(CheckWritable(options.json));
  const auto specs = CheckKvList(options.kv);
  if (!specs) return specs.error();
  for (const std::string& spec : *specs) {
    if (IsStock(spec)) return InvalidArgument(fmt::format("--kv {}: name llama.cpp's caches with --peer", spec));
  }
  const auto depths = ParseDepths(options.depths);
  if (!depths) return depths.error();
  const int threads =
      options.threads > 0 ? options.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  Json rows = Json::array();
  for (const int64_t depth : *depths) {
    Depth measured(options, depth, threads);
    TERSEKV_RETURN_IF_ERROR(measured.Measure(*specs, options.peers == "none" ? std::vector<std::string>() : SplitList(options.peers)));
    for (Json& row : measured.Rows()) rows.push_back(std::move(row));
  }
  const std::string text = ToText(rows);
  if (options.json == "-") {
    fmt::print(stderr, "{}", text);
  } else {
    TERSEKV_RETURN_IF_ERROR(WriteText("-", text));
  }
  return options.json.empty() ? Status() : WriteText(options.json, Dump(Envelope(rows)));
}

}  // namespace

CLI::App* AddBenchAttend(CLI::App* app, BenchAttendOptions* options) {
  CLI::App* sub = app->add_subcommand("attend", "Time the attention of one step alone, without a model");
  const auto number = [&](const char* name, int* value, int least, int most, const char* help) {
    sub->add_option(name, *value, help)->check(CLI::Range(least, most).description(""))->type_name("N")->capture_default_str();
  };
  number("--layers", &options->layers, 1, 1024, "Layers");
  number("--kv-heads", &options->kv_heads, 1, 1024, "KV heads");
  number("--group", &options->group, 1, 256, "Query heads a KV head");
  number("--head-dim", &options->head_dim, 1, 1024, "Values a head, of K and of V");
  number("--queries", &options->queries, 1, 8192, "Tokens of the step: 1 = decode, 512 = a chunk of a prompt");
  number("--threads", &options->threads, 0, 512, "Threads; 0 = all cores");
  number("--repeat", &options->repeat, 1, 1000, "Rounds; every cache runs once a round");
  sub->add_option("--depths", options->depths, "Tokens before the step, separated by commas")
      ->type_name("LIST")
      ->capture_default_str();
  sub->add_option("--kv", options->kv, "Specs, separated by commas")->type_name("SPECS")->capture_default_str();
  sub->add_option("--peer", options->peers, "llama.cpp caches to compare with, separated by commas, or none")
      ->type_name("LIST")
      ->capture_default_str();
  sub->add_option("--arithmetic", options->arithmetic, "Of packed tokens: int16 or exact (fp32)")
      ->check(CLI::IsMember({"int16", "exact"}).description(""))
      ->type_name("MODE")
      ->capture_default_str();
  AddJsonOption(sub, &options->json);
  sub->add_flag("--quiet", options->quiet, "No progress");
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
