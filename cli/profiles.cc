// SPDX-License-Identifier: Apache-2.0
#include "cli/profiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "cli/calibrate.h"
#include "tersekv/cache.h"
#include "tersekv/spec.h"

namespace tersekv::cli {
namespace {

namespace fs = std::filesystem;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool SaysProfile(const std::string& kv) {
  const auto spec = ParseSpec(kv);
  return spec && (spec->mean == MeanMode::kProfile || spec->k.family == Family::kAuto);
}

Status NoProfile(const std::string& what) {
  return InvalidArgument(fmt::format(
      "'{}' needs a profile: make one with `tersekv calibrate -m MODEL --text FILE -o PROFILE` and give it with "
      "--profile PROFILE, or add --auto-calibrate",
      what));
}

Result<std::shared_ptr<const Profile>> Shared(Result<Profile> profile) {
  if (!profile) return profile.error();
  return std::shared_ptr<const Profile>(std::make_shared<Profile>(std::move(*profile)));
}

Result<std::shared_ptr<const Profile>> AutoCalibrate(const ProfileOptions& options, const EngineOptions& engine,
                                                     bool quiet) {
  CalibrateOptions calibrate;
  calibrate.engine = engine;
  calibrate.text = options.calibration_text;
  calibrate.quiet = quiet;
  std::string key;
  auto host = OpenCalibration(calibrate, &key);
  if (!host) return host.error();
  const fs::path path = fs::path(ProfileFolder()) / fmt::format("{}-{}.tkvp", (*host)->info().fingerprint, key);
  std::error_code error;
  if (fs::exists(path, error)) {
    auto kept = LoadProfile(path.string());
    if (kept) return Shared(std::move(kept));
    if (!quiet) fmt::print(stderr, "note: {}; it is made again\n", kept.error().message());
  }
  fs::create_directories(path.parent_path(), error);
  if (error) {
    return NotFound(fmt::format("no folder for profiles at '{}': {}; TERSEKV_CACHE_DIR names another place",
                                path.parent_path().string(), error.message()));
  }
  if (!quiet) fmt::print(stderr, "calibrating {} once; the profile is kept at {}\n", engine.model, path.string());
  auto profile = RunCalibration(calibrate, host->get());
  if (!profile) return profile.error();
  if (Status status = SaveProfile(*profile, path.string()); !status.ok()) return status;
  return Shared(std::move(profile));
}

}  // namespace

void AddProfileOptions(CLI::App* app, ProfileOptions* options) {
  app->add_option("--profile", options->path, "Profile of this model, made by `tersekv calibrate`")
      ->envname("TERSEKV_PROFILE")
      ->type_name("FILE");
  app->add_option("--bits", options->bits, "Average bits over K and V, laid out by layer as the profile says")
      ->envname("TERSEKV_BITS")
      ->check(CLI::Range(2.0, 8.0).description(""))
      ->type_name("F");
  app->add_flag("--auto-calibrate", options->auto_calibrate,
                "Without --profile: make one the first time (minutes) and keep it in the cache folder");
  app->add_option("--calibration-text", options->calibration_text,
                  "Text of --auto-calibrate; by default a built-in one of prose and code")
      ->type_name("FILE");
}

std::string ProfileFolder() {
  std::string cache = Environment("TERSEKV_CACHE_DIR");
  if (cache.empty()) {
    const std::string xdg = Environment("XDG_CACHE_HOME");
    cache = (xdg.empty() ? Environment("HOME") + "/.cache" : xdg) + "/tersekv";
  }
  return cache + "/profiles";
}

Result<std::shared_ptr<const Profile>> FindProfile(const ProfileOptions& options, const EngineOptions& engine,
                                                   bool quiet) {
  if (!options.path.empty()) return Shared(LoadProfile(options.path));
  if (options.auto_calibrate) return AutoCalibrate(options, engine, quiet);
  return std::shared_ptr<const Profile>();
}

Result<KvChoice> ChooseKv(const std::string& kv, double bits, const std::shared_ptr<const Profile>& profile) {
  auto name = CheckKv(kv);
  if (!name) return name.error();
  if (SaysProfile(*name) && !profile) return NoProfile(*name);
  KvChoice choice{*name, "", IsStock(*name) ? nullptr : profile, {}};
  if (bits == 0) return choice;
  if (!profile) return NoProfile(fmt::format("--bits {}", bits));
  const auto entry = FindBudget(*profile, bits);
  if (!entry) return entry.error();
  choice.layer_bits = LayerBitsOf(*entry);
  choice.name = fmt::format("bits={}", bits);
  return choice;
}

Result<std::vector<KvChoice>> ChooseKvList(const std::string& list, double bits,
                                           const std::shared_ptr<const Profile>& profile) {
  auto elements = ListElements(list);
  if (!elements) return elements.error();
  if (bits != 0) elements->push_back(fmt::format("bits={}", bits));
  std::vector<KvChoice> choices;
  for (const std::string& element : *elements) {
    double average = 0;
    if (element.starts_with("bits=")) {
      average = ParseReal(std::string_view(element).substr(5)).value_or(0);
      if (!(average >= 2 && average <= 8)) {
        return InvalidArgument(fmt::format("'{}': average bits are a number from 2 to 8, e.g. bits=4", element));
      }
    }
    auto choice = ChooseKv(average != 0 ? "k4v4+mean=profile" : element, average, profile);
    if (!choice) return choice.error();
    if (average == 0 && !SaysProfile(choice->kv)) choice->profile = nullptr;
    const auto same = [&](const KvChoice& other) { return other.kv == choice->kv && other.name == choice->name; };
    if (std::none_of(choices.begin(), choices.end(), same)) choices.push_back(std::move(*choice));
  }
  return choices;
}

llama::SessionOptions WithChoice(llama::SessionOptions session, const KvChoice& choice) {
  session.kv = choice.kv;
  session.profile = choice.profile;
  session.layer_bits = choice.layer_bits;
  return session;
}

double BitsOf(const KvChoice& choice, const llama::Session& session) {
  const auto spec = ParseSpec(session.kv());
  if (!spec || choice.layer_bits.empty()) return BitsOf(session.kv(), session.model());
  CacheConfig config;
  config.spec = *spec;
  config.layers = session.model().layers;
  config.layer_bits = choice.layer_bits;
  return BitsSpec(config);
}

std::string NameOf(const KvChoice& choice, const llama::Session& session) {
  return choice.name.empty() ? session.kv() : choice.name;
}

}  // namespace tersekv::cli
