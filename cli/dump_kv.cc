// SPDX-License-Identifier: Apache-2.0
#include "cli/dump_kv.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/rows.h"
#include "tersekv/calibration.h"
#include "tersekv/codec.h"
#include "tersekv/llama.h"

namespace tersekv::cli {
namespace {

// Keeps what it sees of the newest context.
class Dump : public StatisticsSink {
 public:
  explicit Dump(bool queries) : with_queries_(queries) {}

  struct Layer {
    std::vector<float> k, v, q;
  };

  // Before the model is known to the caller, the self-test's tokens are dropped.
  void SetLayers(const std::vector<LayerShape>& shapes) {
    shapes_ = shapes;
    layers_.assign(shapes.size(), {});
  }
  const std::vector<Layer>& layers() const { return layers_; }

  Status BeginStep(std::span<const StepToken> tokens) override {
    tokens_ = tokens.size();
    return {};
  }
  void WriteRows(int layer, Kv side, const float* rows, ptrdiff_t row_stride, int worker, int) override {
    if (worker != 0 || layers_.empty()) return;
    const size_t l = static_cast<size_t>(layer);
    const LayerShape& shape = shapes_[l];
    const int width = shape.kv_heads * (side == Kv::kK ? shape.head_dim_k : shape.head_dim_v);
    for (size_t t = 0; t < tokens_; ++t) {
      Append(rows, row_stride * static_cast<ptrdiff_t>(t), width, side == Kv::kK ? &layers_[l].k : &layers_[l].v);
    }
  }
  void Attend(int layer, const AttentionParams&, const Queries& queries, int worker, int) override {
    if (worker != 0 || layers_.empty() || !with_queries_) return;
    const size_t l = static_cast<size_t>(layer);
    for (size_t t = 0; t < tokens_; ++t) {
      for (int h = 0; h < queries.heads; ++h) {
        Append(queries.data, queries.token_stride * static_cast<ptrdiff_t>(t) + queries.head_stride * h,
               shapes_[l].head_dim_k, &layers_[l].q);
      }
    }
  }

 private:
  static void Append(const float* data, ptrdiff_t bytes, int width, std::vector<float>* out) {
    const float* row = reinterpret_cast<const float*>(reinterpret_cast<const char*>(data) + bytes);
    out->insert(out->end(), row, row + width);
  }

  bool with_queries_;
  std::vector<LayerShape> shapes_;
  std::vector<Layer> layers_;
  size_t tokens_ = 0;
};

// rows: [tokens, heads, head_dim].
Status WriteRows(const DumpKvOptions& options, const std::string& name, const std::vector<float>& rows, int heads,
                 int head_dim) {
  auto codec = VectorCodec::Create(*ParseSpec(options.type), Kv::kK, head_dim);
  if (!codec) return codec.error();
  const size_t n = rows.size() / static_cast<size_t>(head_dim);
  std::vector<uint8_t> bytes(n * (*codec)->record_bytes());
  if (Status s = (*codec)->Encode(rows.data(), n, bytes.data()); !s.ok()) return s;
  const std::string text =
      NpyHeader(options.type == "f16" ? "<f2" : "<f4",
                {n / static_cast<size_t>(heads), static_cast<size_t>(heads), static_cast<size_t>(head_dim)}) +
      std::string(bytes.begin(), bytes.end());
  return WriteText((std::filesystem::path(options.out) / name).string(), text);
}

Status RunDumpKv(const DumpKvOptions& options) {
  if (options.engine.model.empty()) return InvalidArgument("no model: name a GGUF file with -m MODEL.gguf");
  if (options.text.empty()) return InvalidArgument("no text: name a file with --text FILE");
  if (options.out.empty()) return InvalidArgument("no folder: name one with -o DIR");
  const auto text = ReadText(options.text, "text");
  if (!text) return text.error();
  std::error_code error;
  std::filesystem::create_directories(options.out, error);
  if (error) return InvalidArgument(fmt::format("'{}' cannot be made a folder: {}", options.out, error.message()));

  EngineOptions engine = options.engine;
  engine.ctx = options.tokens;
  auto settings = MakeSessionOptions(engine, options.type);
  if (!settings) return settings.error();
  Dump dump(options.queries);
  settings->sink = &dump;
  auto session = llama::Session::Open(*settings);
  if (!session) return session.error();
  auto tokens = (*session)->Tokenize(*text, true, false);
  if (!tokens) return tokens.error();
  if (tokens->empty()) return InvalidArgument(fmt::format("text '{}' is empty", options.text));
  if (static_cast<int64_t>(tokens->size()) > options.tokens) tokens->resize(static_cast<size_t>(options.tokens));
  const std::vector<LayerShape>& layers = (*session)->model().layers;
  dump.SetLayers(layers);
  const auto progress = [&](size_t done, size_t total) {
    if (!options.quiet) fmt::print(stderr, "\r{} of {} tokens\033[K", done, total);
  };
  const Status run = (*session)->Prefill(*tokens, 0, progress);
  if (!options.quiet) fmt::print(stderr, "\r\033[K");
  if (!run.ok()) return run;
  for (size_t l = 0; l < layers.size(); ++l) {
    const LayerShape& s = layers[l];
    const Dump::Layer& rows = dump.layers()[l];
    if (Status w = WriteRows(options, fmt::format("k_{:03}.npy", l), rows.k, s.kv_heads, s.head_dim_k); !w.ok())
      return w;
    if (Status w = WriteRows(options, fmt::format("v_{:03}.npy", l), rows.v, s.kv_heads, s.head_dim_v); !w.ok())
      return w;
    if (!options.queries) continue;
    if (Status w = WriteRows(options, fmt::format("q_{:03}.npy", l), rows.q, s.heads, s.head_dim_k); !w.ok()) return w;
  }
  return WriteText("-", fmt::format("{} tokens of {} KV layers in {}\n", tokens->size(), layers.size(), options.out));
}

}  // namespace

CLI::App* AddDumpKv(CLI::App* app, DumpKvOptions* options) {
  CLI::App* sub = app->add_subcommand("dump-kv", "Write the keys and values of a text in a model as NumPy files");
  AddEngineOptions(sub, &options->engine, false);
  sub->add_option("--text", options->text, "The text")->type_name("FILE");
  sub->add_option("--tokens", options->tokens, "Tokens of it, from its beginning")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20).description(""))
      ->type_name("N")
      ->capture_default_str();
  sub->add_option("-o,--out", options->out, "Folder; made when it is not there")->type_name("DIR");
  sub->add_option("--type", options->type, "Of the values")
      ->check(CLI::IsMember({"f16", "f32"}).description(""))
      ->type_name("f16|f32")
      ->capture_default_str();
  sub->add_flag("--queries", options->queries, "Queries too");
  sub->add_flag("--quiet", options->quiet, "No progress");
  sub->footer(
      "k_LLL.npy (after RoPE), v_LLL.npy: [tokens, KV heads, head_dim] of each KV layer; q_LLL.npy: [tokens, heads,\n"
      "head_dim]. Channels are in the order of the GGUF file. The model runs over a raw cache of the same type.\n\n"
      "Example:\n"
      "  tersekv dump-kv -m model.gguf --text book.txt --tokens 2048 -o dump\n"
      "  tersekv bench codec --kv k4v4,k3v3 --rows dump/k_000.npy");
  return sub;
}

int DumpKv(const DumpKvOptions& options) {
  const Status status = RunDumpKv(options);
  return status.ok() ? kExitOk : Fail(status);
}

}  // namespace tersekv::cli
