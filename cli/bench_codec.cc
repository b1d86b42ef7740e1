// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_codec.h"

#include <fmt/format.h>

#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cli/bench_lists.h"
#include "cli/codec_rows.h"
#include "cli/options.h"
#include "cli/rows.h"
#include "cli/statistics.h"
#include "cli/table.h"
#include "tersekv/codec.h"
#include "tersekv/llama_bench.h"

namespace tersekv::cli {
namespace {

constexpr size_t kValues = size_t{1} << 18;  // of K and of V: 1 MiB of fp32 each
constexpr double kSlack = 1.1;               // over the expected distortion
constexpr const char* kPeers[] = {"q8_0", "q5_0", "q4_0", "iq4_nl"};
constexpr const char* kPeerPrefix = "ggml-";

// Something that is timed: both functions go over all rows of `bytes` bytes of fp32.
struct Timed {
  std::string name, peer;
  size_t bytes = 0;
  double distortion = 0;
  std::function<Status()> encode = {};
  std::function<void()> decode = {};
  std::vector<double> encode_seconds = {}, decode_seconds = {};
};

// llama.cpp's quantiser that is nearest to a spec in what it stores.
std::string PeerOf(const KvSpec& spec, const std::string& name) {
  for (const char* peer : kPeers) {
    if (name == peer) return peer;
  }
  return spec.k.bits <= 4 ? "q4_0" : spec.k.bits <= 5 ? "q5_0" : "q8_0";
}

// Everything of one head_dim.
class Bench {
 public:
  explicit Bench(int head_dim)
      : head_dim_(head_dim),
        n_(kValues / static_cast<size_t>(head_dim) / 128 * 128),
        rows_(GaussianRows(2, n_, head_dim)),
        back_(rows_.size()) {}

  Status AddSpec(const std::string& name) {
    const auto spec = ParseSpec(name);
    if (!spec) return spec.error();
    if (Status s = CheckRowSpec(*spec); !s.ok()) return s;
    auto sides = std::make_shared<std::vector<Side>>();
    Timed timed = {.name = name, .peer = kPeerPrefix + PeerOf(*spec, name), .bytes = 2 * rows_.size() * sizeof(float)};
    for (const Kv side : {Kv::kK, Kv::kV}) {
      auto codec =
          VectorCodec::Create(*spec, side, head_dim_, 0, 0, MeasureRowStats(*spec, side, head_dim_, rows_.data(), n_));
      if (!codec) return codec.error();
      const auto distortion = MeasureDistortion(**codec, rows_.data(), n_);
      if (!distortion) return distortion.error();
      const double largest = kSlack * ExpectedDistortion(*spec, side, head_dim_).value_or(1e-5);
      if (!(*distortion <= largest)) {
        return Internal(fmt::format("{} has a distortion of {:.3g} at head_dim {}, must be below {:.3g}: not timed",
                                    name, *distortion, head_dim_, largest));
      }
      timed.distortion += *distortion / 2;
      std::vector<uint8_t> records(n_ / (*codec)->record_rows() * (*codec)->record_bytes());
      sides->push_back({std::move(*codec), std::move(records)});
    }
    timed.encode = [this, sides] {
      for (Side& side : *sides) {
        if (Status s = side.codec->Encode(rows_.data(), n_, side.records.data()); !s.ok()) return s;
      }
      return Status();
    };
    timed.decode = [this, sides] {
      for (const Side& side : *sides) side.codec->Decode(side.records.data(), n_, back_.data());
    };
    timed_.push_back(std::move(timed));
    return {};
  }

  Status AddPeer(const std::string& type) {
    auto quantizer = llama::StockQuantizer::Create(type);
    if (!quantizer) return quantizer.error();
    if (head_dim_ % quantizer->block() != 0) return {};
    auto blocks = std::make_shared<std::vector<uint8_t>>(quantizer->Bytes(rows_.size()));
    const size_t d = static_cast<size_t>(head_dim_), bytes = quantizer->Bytes(d);
    Timed timed = {.name = kPeerPrefix + type, .peer = "", .bytes = rows_.size() * sizeof(float)};
    timed.encode = [this, q = *quantizer, blocks, d, bytes] {
      for (size_t i = 0; i < n_; ++i) q.Encode(&rows_[i * d], d, &(*blocks)[i * bytes]);
      return Status();
    };
    timed.decode = [this, q = *quantizer, blocks, d, bytes] {
      for (size_t i = 0; i < n_; ++i) q.Decode(&(*blocks)[i * bytes], d, &back_[i * d]);
    };
    timed_.push_back(std::move(timed));
    return {};
  }

  void AddCopy() {
    Timed timed = {.name = "memcpy", .peer = "", .bytes = rows_.size() * sizeof(float)};
    const auto copy = [this] { std::memcpy(back_.data(), rows_.data(), rows_.size() * sizeof(float)); };
    timed.encode = [copy] { return copy(), Status(); };
    timed.decode = copy;
    timed_.push_back(std::move(timed));
  }

  // One of each, in turn, so that a slow moment of the machine hits all of them.
  Status Round(bool keep) {
    for (Timed& timed : timed_) {
      Status status;
      const double encode = Seconds([&] { status = timed.encode(); });
      if (!status.ok()) return status;
      const double decode = Seconds(timed.decode);
      if (!keep) continue;
      timed.encode_seconds.push_back(encode);
      timed.decode_seconds.push_back(decode);
    }
    return {};
  }

  void Report(Json* rows) const {
    for (const Timed& timed : timed_) {
      Json row;
      row["spec"] = timed.name;
      row["head_dim"] = head_dim_;
      row["d"] = timed.distortion > 0 ? Json(timed.distortion) : Json();
      const Timed* peer = Find(timed.peer);
      row["peer"] = peer != nullptr ? Json(timed.peer) : Json();
      Fill(timed, peer, &Timed::encode_seconds, "encode", &row);
      Fill(timed, peer, &Timed::decode_seconds, "decode", &row);
      rows->push_back(row);
    }
  }

 private:
  struct Side {
    std::unique_ptr<VectorCodec> codec;
    std::vector<uint8_t> records;
  };
  // Of this thread on a core: others on a busy machine don't count.
  static double Now() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }
  template <class F>
  static double Seconds(const F& f) {
    const double start = Now();
    f();
    return Now() - start;
  }
  const Timed* Find(const std::string& name) const {
    for (const Timed& timed : timed_) {
      if (timed.name == name) return &timed;
    }
    return nullptr;
  }
  static double Rate(const Timed& timed, double seconds) { return static_cast<double>(timed.bytes) / seconds / 1e9; }
  static void Fill(const Timed& timed, const Timed* peer, std::vector<double> Timed::*seconds, const std::string& name,
                   Json* row) {
    const Spread spread = SpreadOf(timed.*seconds);
    (*row)[name + "_gbps"] = Rate(timed, spread.median);
    (*row)[name + "_gbps_low"] = Rate(timed, spread.high);
    (*row)[name + "_gbps_high"] = Rate(timed, spread.low);
    (*row)[name + "_ratio"] =
        peer == nullptr ? Json() : Json(Rate(timed, spread.median) / Rate(*peer, SpreadOf(peer->*seconds).median));
  }

  int head_dim_;
  size_t n_;
  std::vector<float> rows_, back_;
  std::vector<Timed> timed_;
};

std::string ToText(const Json& rows) {
  std::vector<std::vector<std::string>> cells = {
      {"d", "spec", "D", "encode GB/s", "quartiles", "decode GB/s", "quartiles", "peer", "encode", "decode"}};
  const auto number = [](const Json& value, const char* format) {
    return value.is_null() ? std::string() : fmt::format(fmt::runtime(format), value.get<double>());
  };
  for (const Json& row : rows) {
    std::vector<std::string> line = {fmt::format("{}", row["head_dim"].get<int>()), row["spec"].get<std::string>(),
                                     number(row["d"], "{:.3g}")};
    for (const std::string side : {"encode", "decode"}) {
      line.push_back(number(row[side + "_gbps"], "{:.3f}"));
      line.push_back(fmt::format("{} .. {}", number(row[side + "_gbps_low"], "{:.3f}"),
                                 number(row[side + "_gbps_high"], "{:.3f}")));
    }
    line.push_back(row["peer"].is_null() ? "" : row["peer"].get<std::string>());
    line.push_back(number(row["encode_ratio"], "{:.2f}x"));
    line.push_back(number(row["decode_ratio"], "{:.2f}x"));
    cells.push_back(std::move(line));
  }
  return FormatTable(cells, {1, 7});
}

Status RunRows(const BenchCodecOptions& options, const BenchOptions& report, const std::vector<std::string>& specs) {
  const auto text = ReadText(options.rows, "rows");
  if (!text) return text.error();
  const auto rows = ParseNpy(*text, options.rows);
  if (!rows) return rows.error();
  const auto json = DistortionOfRows(specs, *rows);
  if (!json) return json.error();
  return ReportBench(report, DistortionTable(*json), *json);
}

Status RunBenchCodec(const BenchCodecOptions& options) {
  const BenchOptions report = {.depths = "0", .kv = options.kv, .peers = "none", .json = options.json};
  const auto lists = ListsOf(report);
  if (!lists) return lists.error();
  if (!options.rows.empty()) return RunRows(options, report, lists->specs);
  const auto dims = ParseDepths(options.dims);
  if (!dims) return InvalidArgument(fmt::format("--dims '{}': write channels of a head, e.g. 64,128", options.dims));
  for (const int64_t d : *dims) {
    if (d < 1 || d > 1024) return InvalidArgument(fmt::format("--dims {}: a head has 1 to 1024 channels", d));
  }
  if (Status s = SelfTestCodecs(); !s.ok()) return s;  // SIMD against plain code, every codec
  Json rows = Json::array();
  for (const int64_t d : *dims) {
    Bench bench(static_cast<int>(d));
    for (const std::string& spec : lists->specs) {
      if (Status s = bench.AddSpec(spec); !s.ok()) return s;
    }
    for (const char* peer : kPeers) {
      if (Status s = bench.AddPeer(peer); !s.ok()) return s;
    }
    bench.AddCopy();
    for (int i = -1; i < options.repeat; ++i) {  // the first one warms up
      if (!options.quiet) fmt::print(stderr, "\rd {}: round {} of {}\033[K", d, i + 1, options.repeat);
      if (Status s = bench.Round(i >= 0); !s.ok()) return s;
    }
    if (!options.quiet) fmt::print(stderr, "\r\033[K");
    bench.Report(&rows);
  }
  return ReportBench(report, ToText(rows), rows);
}

}  // namespace

CLI::App* AddBenchCodec(CLI::App* app, BenchCodecOptions* options) {
  CLI::App* sub = app->add_subcommand("codec", "Time encoding and decoding of vectors, one thread");
  sub->add_option("--kv", options->kv, "Specs, separated by commas")->type_name("SPECS")->capture_default_str();
  sub->add_option("--dims", options->dims, "Channels of a head, separated by commas")
      ->type_name("LIST")
      ->capture_default_str();
  sub->add_option("--rows", options->rows,
                  "Instead of times: the distortion on the vectors of a .npy file [..., head_dim]")
      ->type_name("FILE");
  AddNumber(sub, "--repeat", &options->repeat, 1, 1000, "Rounds; every codec runs once a round");
  AddJsonOption(sub, &options->json);
  sub->add_flag("--quiet", options->quiet, "No progress");
  sub->footer(
      "GB/s of fp32 vectors, K and V together, per second of one thread on a core: mean, scale, rotation and packing\n"
      "included. Bytes and values of every codec are compared with plain code on each SIMD target first, and the\n"
      "distortion with theory. ggml-*: llama.cpp's own quantisers, without statistics or rotation. The last two "
      "columns\n"
      "divide by the rates of the peer: the same format, else the one next in bits. Medians and quartiles of --repeat\n"
      "rounds.\n\n"
      "Example:\n"
      "  tersekv bench codec --kv k4v4,q4_0 --dims 128 --json codec.json\n"
      "  tersekv bench codec --kv k4v4,k3v3 --rows keys.npy");
  return sub;
}

int BenchCodec(const BenchCodecOptions& options) {
  const Status status = RunBenchCodec(options);
  return status.ok() ? kExitOk : Fail(status);
}

}  // namespace tersekv::cli
