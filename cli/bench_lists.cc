// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_lists.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/options.h"

namespace tersekv::cli {

std::vector<std::string> SplitList(const std::string& list) {
  std::vector<std::string> elements;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    std::string element = Trim(std::string_view(list).substr(begin, end - begin));
    if (!element.empty()) elements.push_back(std::move(element));
    begin = end + 1;
  }
  return elements;
}

Result<std::vector<int64_t>> ParseDepths(const std::string& list) {
  std::vector<int64_t> depths;
  for (const std::string& element : SplitList(list)) {
    const int64_t depth = ParseWhole(element).value_or(-1);
    if (depth < 0 || depth >= int64_t{1} << 30) {
      return InvalidArgument(
          fmt::format("'{}' is not a depth: write tokens from 0 to 2^30, e.g. --depths 4096,16384", element));
    }
    depths.push_back(depth);
  }
  if (depths.empty()) return InvalidArgument("no depths: write e.g. --depths 4096,16384");
  return depths;
}

void AddNumber(CLI::App* app, const char* name, int* value, int least, int most, const char* help) {
  app->add_option(name, *value, help)
      ->check(CLI::Range(least, most).description(""))
      ->type_name("N")
      ->capture_default_str();
}

void AddBenchOptions(CLI::App* app, BenchOptions* options) {
  app->add_option("--depths", options->depths, "Tokens before the timed ones, separated by commas")
      ->type_name("LIST")
      ->capture_default_str();
  app->add_option("--kv", options->kv, "Specs, separated by commas")->type_name("SPECS")->capture_default_str();
  app->add_option("--peer", options->peers, "llama.cpp caches to compare with, separated by commas, or none")
      ->type_name("LIST")
      ->capture_default_str();
  AddNumber(app, "--repeat", &options->repeat, 1, 1000, "Rounds; every cache runs once a round");
  AddJsonOption(app, &options->json);
  app->add_flag("--quiet", options->quiet, "No progress");
}

Result<BenchLists> ListsOf(const BenchOptions& options) {
  if (Status s = CheckWritable(options.json); !s.ok()) return s;
  BenchLists lists;
  auto specs = CheckKvList(options.kv);
  if (!specs) return specs.error();
  lists.specs = std::move(*specs);
  for (const std::string& spec : lists.specs) {
    if (IsStock(spec)) return InvalidArgument(fmt::format("--kv {}: name llama.cpp's caches with --peer", spec));
  }
  auto depths = ParseDepths(options.depths);
  if (!depths) return depths.error();
  lists.depths = std::move(*depths);
  if (options.peers != "none") lists.peers = SplitList(options.peers);
  return lists;
}

Status ReportBench(const BenchOptions& options, const std::string& table, const Json& rows) {
  if (options.json == "-") {
    fmt::print(stderr, "{}", table);
  } else if (Status s = WriteText("-", table); !s.ok()) {
    return s;
  }
  return options.json.empty() ? Status() : WriteText(options.json, Dump(Envelope(rows)));
}

}  // namespace tersekv::cli
