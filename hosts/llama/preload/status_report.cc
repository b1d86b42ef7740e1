// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/preload/status_report.h"

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "src/base/check.h"
#include "tersekv/version.h"

namespace tersekv::llama::preload {
namespace {

using Json = nlohmann::ordered_json;

double Ratio(const CacheUsage& usage) {
  return usage.bytes_used > 0 ? static_cast<double>(usage.bytes_f16) / static_cast<double>(usage.bytes_used) : 0;
}

double MillisecondsPerToken(const Activity& activity) {
  const int64_t tokens = activity.prompt.tokens + activity.generation.tokens;
  return tokens > 0 ? 1000 * activity.attention_seconds / static_cast<double>(tokens) : 0;
}

size_t BytesOf(const SequenceState::Layer& layer) {
  size_t bytes = 0;
  for (const int side : {0, 1}) {
    bytes += layer.sinks[side].size() + layer.ring[side].size();
    for (const auto& one : layer.statistics[side]) bytes += one.size_bytes();
  }
  for (const auto& page : layer.pages) bytes += page.size();
  return bytes;
}

// Label values as the text format wants them.
std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') out += '\\';
    out += c;
  }
  return out + "\"";
}

// One metric with a value for each context, or several.
class Metrics {
 public:
  explicit Metrics(const ProcessReport& report) : report_(report) {}

  void Add(const char* name, const char* type, const char* help,
           const std::function<void(const ContextReport&, const std::function<void(std::string, double)>&)>& values) {
    Head(name, type, help);
    for (const ContextReport& c : report_.contexts) {
      const std::string labels = fmt::format("model_name={},engine=\"{}\"", Quoted(c.model), c.id);
      values(c, [&](const std::string& more, double value) {
        text_ += fmt::format("{}{{{}{}}} {}\n", name, labels, more.empty() ? "" : "," + more, value);
      });
    }
  }
  void AddOne(const char* name, const char* type, const char* help, double (*value)(const ContextReport&)) {
    Add(name, type, help, [value](const ContextReport& c, const auto& put) { put("", value(c)); });
  }
  void AddProcess(const char* name, const char* type, const char* help,
                  const std::vector<std::pair<std::string, double>>& values) {
    Head(name, type, help);
    for (const auto& [labels, value] : values) {
      text_ += labels.empty() ? fmt::format("{} {}\n", name, value) : fmt::format("{}{{{}}} {}\n", name, labels, value);
    }
  }
  const std::string& text() const { return text_; }

 private:
  void Head(const char* name, const char* type, const char* help) {
    text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }

  const ProcessReport& report_;
  std::string text_;
};

Json ToJson(const Activity::Kind& kind) {
  return {{"tokens", kind.tokens}, {"calls", kind.calls}, {"seconds", kind.seconds}};
}

Json ToJson(const ContextReport& c) {
  const CacheUsage& u = c.usage;
  Json slots = Json::array();
  for (const SlotReport& slot : c.slots) {
    slots.push_back({{"id", slot.id},
                     {"tokens", slot.tokens},
                     {"bytes", slot.bytes},
                     {"shared_bytes", slot.shared_bytes},
                     {"layers", slot.layers}});
  }
  return {{"id", c.id},
          {"model", c.model},
          {"spec", c.spec},
          {"host_mode", c.mode},
          {"bits_spec", c.bits_spec},
          {"bits_effective", u.bits_effective},
          {"ratio", Ratio(u)},
          {"n_ctx", c.ctx},
          {"n_ctx_slot", c.ctx_seq},
          {"n_slots", c.sequences},
          {"tokens", u.tokens},
          {"tokens_packed", u.tokens_packed},
          {"bytes",
           {{"budget", c.budget},
            {"used", u.bytes_used},
            {"pages", u.pages},
            {"raw", u.raw_rows},
            {"statistics", u.stats},
            {"tables", u.tables},
            {"reserved", u.bytes_reserved},
            {"scratch", u.scratch},
            {"f16", u.bytes_f16}}},
          {"pages", {{"held", c.pages}, {"shared", c.pages_shared}, {"bytes_saved", u.saved}}},
          {"slots", std::move(slots)},
          {"prompt", ToJson(c.activity.prompt)},
          {"generation", ToJson(c.activity.generation)},
          {"attention_seconds", c.activity.attention_seconds},
          {"attention_ms_per_token", MillisecondsPerToken(c.activity)},
          {"calls_full", c.activity.full},
          {"calls_refused", c.activity.refused},
          {"calls_failed", c.activity.failed},
          {"drift",
           {{"checks", c.drift.checks},
            {"warnings", c.drift.warnings},
            {"last", c.drift.last},
            {"largest", c.drift.largest}}},
          {"broken", c.broken}};
}

}  // namespace

void DescribeSlots(const KvCache& cache, ContextReport* report) {
  std::unordered_map<const uint8_t*, int> holders;
  std::vector<std::pair<size_t, SequenceState>> states;
  for (const int32_t seq : cache.Sequences()) {
    Result<SequenceState> state = cache.State(seq);
    if (!state) continue;
    SlotReport slot;
    slot.id = seq;
    slot.tokens = state->tokens();
    for (const SequenceState::Layer& layer : state->layers) {
      slot.layers.push_back(BytesOf(layer));
      slot.bytes += slot.layers.back();
      for (const auto& page : layer.pages) {
        if (!page.empty()) ++holders[page.data()];
      }
    }
    slot.bytes += state->positions.size() * sizeof(int32_t);
    states.emplace_back(report->slots.size(), std::move(*state));
    report->slots.push_back(std::move(slot));
  }
  for (const auto& [index, state] : states) {
    for (const SequenceState::Layer& layer : state.layers) {
      for (const auto& page : layer.pages) {
        if (!page.empty() && holders[page.data()] > 1) report->slots[index].shared_bytes += page.size();
      }
    }
  }
  report->pages = static_cast<int64_t>(holders.size());
  for (const auto& [page, n] : holders) report->pages_shared += n > 1 ? 1 : 0;
}

std::string ToJson(const ProcessReport& report) {
  Json contexts = Json::array();
  for (const ContextReport& c : report.contexts) contexts.push_back(ToJson(c));
  const Json json = {{"tersekv_version", Version()},
                     {"commit", Commit()},
                     {"uptime_seconds", report.uptime_seconds},
                     {"contexts_packed", report.contexts_packed},
                     {"contexts_passed", report.contexts_passed},
                     {"contexts_refused", report.contexts_refused},
                     {"contexts", std::move(contexts)}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string ToPrometheus(const ProcessReport& report) {
  Metrics m(report);
  m.AddOne("vllm:kv_cache_usage_perc", "gauge", "Part of the byte budget that is in use, 0 to 1.",
           [](const ContextReport& c) {
             return c.budget > 0 ? static_cast<double>(c.usage.bytes_used) / static_cast<double>(c.budget) : 0.0;
           });
  m.AddOne("vllm:prompt_tokens_total", "counter", "Tokens of prompts that were run.",
           [](const ContextReport& c) { return static_cast<double>(c.activity.prompt.tokens); });
  m.AddOne("vllm:generation_tokens_total", "counter", "Tokens that were run one by one.",
           [](const ContextReport& c) { return static_cast<double>(c.activity.generation.tokens); });
  m.Add("tersekv_bytes", "gauge", "Bytes of the history by kind, as allocated.", [](const auto& c, const auto& put) {
    put("kind=\"pages\"", static_cast<double>(c.usage.pages));
    put("kind=\"raw\"", static_cast<double>(c.usage.raw_rows));
    put("kind=\"statistics\"", static_cast<double>(c.usage.stats));
    put("kind=\"tables\"", static_cast<double>(c.usage.tables));
  });
  m.AddOne("tersekv_bytes_reserved", "gauge", "Bytes taken from the system for the history.",
           [](const ContextReport& c) { return static_cast<double>(c.usage.bytes_reserved); });
  m.AddOne("tersekv_bytes_scratch", "gauge", "Bytes of the running step.",
           [](const ContextReport& c) { return static_cast<double>(c.usage.scratch); });
  m.AddOne("tersekv_bytes_f16", "gauge", "What the same tokens take as f16.",
           [](const ContextReport& c) { return static_cast<double>(c.usage.bytes_f16); });
  m.AddOne("tersekv_budget_bytes", "gauge", "Most bytes of the history.",
           [](const ContextReport& c) { return static_cast<double>(c.budget); });
  m.AddOne("tersekv_compression_ratio", "gauge", "f16 bytes over bytes in use; 0 when empty.",
           [](const ContextReport& c) { return Ratio(c.usage); });
  m.Add("tersekv_tokens", "gauge", "Tokens held, by how they are stored.", [](const auto& c, const auto& put) {
    put("stored=\"packed\"", static_cast<double>(c.usage.tokens_packed));
    put("stored=\"raw\"", static_cast<double>(c.usage.tokens - c.usage.tokens_packed));
  });
  m.Add("tersekv_pages", "gauge", "Pages of all layers, by who holds them.", [](const auto& c, const auto& put) {
    put("held_by=\"one\"", static_cast<double>(c.pages - c.pages_shared));
    put("held_by=\"several\"", static_cast<double>(c.pages_shared));
  });
  m.AddOne("tersekv_pages_shared", "gauge", "Pages of all layers that several slots hold.",
           [](const ContextReport& c) { return static_cast<double>(c.pages_shared); });
  m.AddOne("tersekv_bytes_saved", "gauge", "What pages would take on top if each slot held its own.",
           [](const ContextReport& c) { return static_cast<double>(c.usage.saved); });
  m.Add("tersekv_slot_bytes", "gauge", "Bytes of each slot that holds tokens.", [](const auto& c, const auto& put) {
    for (const SlotReport& slot : c.slots) put(fmt::format("slot=\"{}\"", slot.id), static_cast<double>(slot.bytes));
  });
  m.Add("tersekv_slot_tokens", "gauge", "Tokens of each slot that holds some.", [](const auto& c, const auto& put) {
    for (const SlotReport& slot : c.slots) put(fmt::format("slot=\"{}\"", slot.id), static_cast<double>(slot.tokens));
  });
  m.Add("tersekv_decode_seconds_total", "counter", "Time inside llama_decode.", [](const auto& c, const auto& put) {
    put("kind=\"prompt\"", c.activity.prompt.seconds);
    put("kind=\"generation\"", c.activity.generation.seconds);
  });
  m.AddOne("tersekv_attention_seconds_total", "counter", "Time inside packed attention, as its first thread sees it.",
           [](const ContextReport& c) { return c.activity.attention_seconds; });
  m.AddOne("tersekv_attention_ms_per_token", "gauge", "Attention time of a token, over all that were run.",
           [](const ContextReport& c) { return MillisecondsPerToken(c.activity); });
  m.Add("tersekv_calls_total", "counter", "Calls of llama_decode that were not served.",
        [](const auto& c, const auto& put) {
          put("result=\"full\"", static_cast<double>(c.activity.full));
          put("result=\"refused\"", static_cast<double>(c.activity.refused));
          put("result=\"failed\"", static_cast<double>(c.activity.failed));
        });
  m.AddOne("tersekv_drift_checks_total", "counter", "Checks of packed rows against raw ones.",
           [](const ContextReport& c) { return static_cast<double>(c.drift.checks); });
  m.AddOne("tersekv_drift_warnings_total", "counter", "Checks above the limit.",
           [](const ContextReport& c) { return static_cast<double>(c.drift.warnings); });
  m.Add("tersekv_drift_relative_error", "gauge", "Of attention over packed rows.", [](const auto& c, const auto& put) {
    put("of=\"last\"", c.drift.last);
    put("of=\"largest\"", c.drift.largest);
  });
  m.AddProcess("tersekv_contexts_total", "counter", "Contexts that the program asked for, by what was done.",
               {{"result=\"packed\"", static_cast<double>(report.contexts_packed)},
                {"result=\"passed\"", static_cast<double>(report.contexts_passed)},
                {"result=\"refused\"", static_cast<double>(report.contexts_refused)}});
  m.AddProcess("tersekv_uptime_seconds", "gauge", "Since the status port was opened.", {{"", report.uptime_seconds}});
  return m.text();
}

}  // namespace tersekv::llama::preload
