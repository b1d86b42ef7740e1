// SPDX-License-Identifier: Apache-2.0
#include "cli/eval_state.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>
#include <utility>

#include "cli/options.h"
#include "tersekv/version.h"

namespace tersekv::cli {
namespace {

constexpr int kVersion = 1;

std::string ProfileHash(const Candidate& candidate) {
  if (!candidate.choice.profile) return "";
  const auto bytes = SerializeProfile(*candidate.choice.profile);
  return bytes ? HashOf(*bytes) : "";
}

Status Differs(const std::string& path, const Json& found, const Json& wanted) {
  for (const auto& [key, value] : wanted.items()) {
    if (found.contains(key) && found[key] == value) continue;
    return InvalidArgument(fmt::format(
        "'{}' keeps another evaluation: its {} is {}, this one's is {}; repeat the options of that run or name another "
        "file",
        path, key, found.contains(key) ? found[key].dump() : "missing", value.dump()));
  }
  return {};
}

Status Damaged(const std::string& path, const std::string& why) {
  return DataLoss(fmt::format("'{}' is no evaluation to go on with: {}; delete it to start anew", path, why));
}

// Every array of `row` as long as the contexts done ask for.
bool Whole(const Json& row, size_t scores) {
  for (const char* key : {"kl", "nll", "agree"}) {
    if (!row.contains(key) || !row[key].is_array() || row[key].size() != scores) return false;
    for (const Json& value : row[key]) {
      if (!value.is_number()) return false;
    }
  }
  return row.contains("prefill_seconds") && row["prefill_seconds"].is_number();
}

}  // namespace

Json EvalIdentity(const EvalPlan& plan, const std::vector<Candidate>& candidates) {
  const llama::Session& reference = *candidates.front().session;
  Json json;
  json["version"] = kVersion;
  json["commit"] = Commit();
  json["machine"] = Machine();
  json["model"] = reference.model().fingerprint;
  json["text"] = HashOf({reinterpret_cast<const char*>(plan.text.data()), plan.text.size() * sizeof(plan.text[0])});
  json["context"] = plan.length;
  json["contexts"] = plan.contexts;
  json["threads"] = reference.threads();
  json["caches"] = Json::array();
  for (const Candidate& candidate : candidates) {
    json["caches"].push_back({NameOf(candidate.choice, *candidate.session), candidate.session->kv(),
                              BitsOf(candidate.choice, *candidate.session), ProfileHash(candidate)});
  }
  return json;
}

Status SaveEvalState(const std::string& path, const Json& identity, int done,
                     const std::vector<Candidate>& candidates) {
  Json json;
  json["tersekv_eval"] = identity;
  json["done"] = done;
  json["rows"] = Json::array();
  for (const Candidate& candidate : candidates) {
    Json row;
    row["prefill_seconds"] = candidate.prefill_seconds;
    row["kl"] = row["nll"] = row["agree"] = Json::array();
    for (const TokenScore& score : candidate.scores) {
      row["kl"].push_back(score.kl);
      row["nll"].push_back(score.nll);
      row["agree"].push_back(score.agree ? 1 : 0);
    }
    json["rows"].push_back(std::move(row));
  }
  return WriteText(path, json.dump());
}

Result<int> LoadEvalState(const std::string& path, const Json& identity, const EvalPlan& plan,
                          std::vector<Candidate>* candidates) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return 0;
  const auto text = ReadText(path, "evaluation");
  if (!text) return text.error();
  const Json json = Json::parse(*text, nullptr, false);
  if (!json.is_object() || !json.contains("tersekv_eval") || !json.contains("rows") || !json.contains("done") ||
      !json["done"].is_number_integer()) {
    return Damaged(path, "it is not what --resume writes");
  }
  if (Status status = Differs(path, json["tersekv_eval"], identity); !status.ok()) return status;
  const auto done = json["done"].get<int64_t>();
  if (done < 1 || done >= plan.contexts || json["rows"].size() != candidates->size()) {
    return Damaged(path, fmt::format("{} of {} contexts done", done, plan.contexts));
  }
  const auto scores = static_cast<size_t>(done * (plan.length - plan.first_scored));
  for (size_t i = 0; i < candidates->size(); ++i) {
    if (!Whole(json["rows"][i], scores)) return Damaged(path, fmt::format("row {} is not whole", i + 1));
  }
  for (size_t i = 0; i < candidates->size(); ++i) {
    const Json& row = json["rows"][i];
    Candidate& candidate = (*candidates)[i];
    candidate.prefill_seconds = row["prefill_seconds"];
    candidate.scores.resize(scores);
    for (size_t s = 0; s < scores; ++s) {
      candidate.scores[s] = {row["kl"][s], row["nll"][s], row["agree"][s].get<int>() != 0};
    }
  }
  return static_cast<int>(done);
}

}  // namespace tersekv::cli
