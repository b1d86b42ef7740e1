// SPDX-License-Identifier: Apache-2.0
// Profiles in the commands that run a model: where they come from, and what an element of --kv means with one.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/options.h"
#include "tersekv/profile.h"

namespace tersekv::cli {

struct ProfileOptions {
  std::string path;
  double bits = 0;  // 0 = as the spec says
  bool auto_calibrate = false;
  std::string calibration_text;  // empty = built in
};

// --profile, --bits, --auto-calibrate, --calibration-text.
void AddProfileOptions(CLI::App* app, ProfileOptions* options);

// The profile asked for, null when none is. --auto-calibrate: kept in ProfileFolder() by the model's fingerprint, made
// there when it is missing or damaged.
Result<std::shared_ptr<const Profile>> FindProfile(const ProfileOptions& options, const EngineOptions& engine,
                                                   bool quiet);
std::string ProfileFolder();

// How one cache is to be stored.
struct KvChoice {
  std::string kv;    // of a session
  std::string name;  // in tables; empty = what the session calls itself
  std::shared_ptr<const Profile> profile;
  std::vector<LayerBits> layer_bits;
};

// `kv` with this profile, which may be null; bits: as in ProfileOptions.
Result<KvChoice> ChooseKv(const std::string& kv, double bits, const std::shared_ptr<const Profile>& profile);

// A list of specs in which "bits=F" means the allocation of that average, and only specs that say mean=profile, "auto"
// and "bits=F" use the profile: the same spec can stand beside itself without one.
Result<std::vector<KvChoice>> ChooseKvList(const std::string& list, double bits,
                                           const std::shared_ptr<const Profile>& profile);

llama::SessionOptions WithChoice(llama::SessionOptions session, const KvChoice& choice);
// Code bits and scale a value of an open session's cache.
double BitsOf(const KvChoice& choice, const llama::Session& session);
std::string NameOf(const KvChoice& choice, const llama::Session& session);

}  // namespace tersekv::cli
