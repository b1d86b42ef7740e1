// SPDX-License-Identifier: Apache-2.0
// Statistics of a model's keys, values and queries, profiles and what the probe says of them.
#include "tersekv/profile.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>

#include "python/src/arrays.h"
#include "python/src/bind.h"
#include "python/src/status.h"
#include "tersekv/calibration.h"

namespace nb = nanobind;

namespace tersekv::python {
namespace {

// [heads, tokens, head_dim] of one sequence: address, dtype, byte strides of head and token.
using Rows = std::tuple<uintptr_t, int, int64_t, int64_t>;

std::vector<float> Gather(const Rows& from, size_t heads, size_t tokens, size_t d) {
  const auto& [address, dtype, head_stride, token_stride] = from;
  const RowArray rows = Take(RowArray::Make(address, dtype, {static_cast<int64_t>(tokens), static_cast<int64_t>(heads)},
                                            {token_stride, head_stride}));
  std::vector<float> out(tokens * heads * d);
  for (size_t i = 0; i < tokens * heads; ++i) LoadRow(rows.Row(i), rows.dtype(), d, out.data() + i * d);
  return out;
}

class Collector {
 public:
  explicit Collector(const std::vector<std::tuple<int, int, int, int>>& layers) {
    for (const auto& [heads, kv_heads, dk, dv] : layers) shapes_.push_back({heads, kv_heads, dk, dv});
    collector_ = Take(StatisticsCollector::Create(shapes_));
  }

  // Tokens 0 .. n - 1 of a new context; then Layer for every layer.
  void Begin(int n) {
    std::vector<StepToken> tokens;
    for (int i = 0; i < n; ++i) tokens.push_back({0, i});
    Check(collector_->BeginStep(tokens));
    tokens_ = n;
  }
  void Layer(int layer, const Rows& k, const Rows& v, const Rows& q, float scale) {
    if (layer < 0 || layer >= static_cast<int>(shapes_.size())) Raise(InvalidArgument("that layer is not there"));
    const LayerShape& s = shapes_[static_cast<size_t>(layer)];
    const size_t n = static_cast<size_t>(tokens_), dk = static_cast<size_t>(s.head_dim_k);
    const size_t kv_heads = static_cast<size_t>(s.kv_heads), dv = static_cast<size_t>(s.head_dim_v);
    const std::vector<float> keys = Gather(k, kv_heads, n, dk), values = Gather(v, kv_heads, n, dv);
    const std::vector<float> queries = Gather(q, static_cast<size_t>(s.heads), n, dk);
    Queries view;
    view.data = queries.data();
    view.heads = s.heads;
    view.head_stride = s.head_dim_k * 4;
    view.token_stride = s.heads * view.head_stride;
    AttentionParams params;
    params.scale = scale;
    const nb::gil_scoped_release release;
    collector_->WriteRows(layer, Kv::kK, keys.data(), s.kv_heads * s.head_dim_k * 4, 0, 1);
    collector_->WriteRows(layer, Kv::kV, values.data(), s.kv_heads * s.head_dim_v * 4, 0, 1);
    collector_->Attend(layer, params, view, 0, 1);
  }
  Profile Finish(const std::string& name, const std::string& fingerprint) const {
    Profile profile;
    profile.model_name = name;
    profile.model_fingerprint = fingerprint;
    profile.channel_order = ChannelOrder::kHalf;
    Check(collector_->MakeStatistics({}, &profile));
    return profile;
  }

 private:
  std::vector<LayerShape> shapes_;
  std::unique_ptr<StatisticsCollector> collector_;
  int tokens_ = 0;
};

nb::list Layers(const Profile& profile) {
  nb::list layers;
  for (const ProfileLayer& layer : profile.layers) {
    nb::dict d;
    d["kv_heads"] = layer.shape.kv_heads;
    d["head_dim_k"] = layer.shape.head_dim_k;
    d["head_dim_v"] = layer.shape.head_dim_v;
    d["k_mean"] = layer.k.mean;
    d["k_scale"] = layer.k.scale;
    d["v_mean"] = layer.v.mean;
    d["v_scale"] = layer.v.scale;
    layers.append(d);
  }
  return layers;
}

// Widths (K, V) of each layer at an average of so many bits.
std::vector<std::tuple<int, int>> BudgetOf(const Profile& profile, double bits) {
  std::vector<std::tuple<int, int>> widths;
  for (const LayerBits& layer : LayerBitsOf(Take(FindBudget(profile, bits)))) widths.emplace_back(layer.k, layer.v);
  return widths;
}

// A layout of one's own. Statistics alone know no sensitivities; `tersekv calibrate` finds layouts by measuring.
void AddBudget(Profile* profile, double bits, const std::vector<std::tuple<int, int>>& widths) {
  BudgetEntry entry;
  entry.bits = bits;
  for (size_t l = 0; l < widths.size(); ++l) {
    const auto& [k, v] = widths[l];
    entry.k_bits.push_back(k);
    entry.v_bits.push_back(v);
    if (l >= profile->layers.size()) continue;  // which ValidateProfile names
    const LayerShape& shape = profile->layers[l].shape;
    entry.bytes_per_token += shape.kv_heads * ((shape.head_dim_k * k + shape.head_dim_v * v) / 8 + 4);
  }
  Profile changed = *profile;
  changed.byte_budget_table.push_back(entry);
  Check(ValidateProfile(changed));
  *profile = std::move(changed);
}

nb::dict ProbeOf(const Profile& profile) {
  const ProbeReport report = Take(Probe(profile));
  nb::list layers, specs, advice;
  for (const ProbeLayer& l : report.layers) {
    nb::dict d;
    d["kv_norm_ratio"] = l.kv_norm_ratio;
    d["k_uncentred"] = l.k_uncentred;
    d["k_mean_gain_db"] = l.k_mean_gain_db;
    d["k_scale_gain_db"] = l.k_scale_gain_db;
    d["v_uncentred"] = l.v_uncentred;
    layers.append(d);
  }
  for (const ProbeSpec& s : report.specs) {
    nb::dict d;
    d["spec"] = s.spec;
    d["bits"] = s.bits;
    d["k_kl_mean"] = s.k_kl_mean;
    d["k_kl_worst"] = s.k_kl_worst;
    d["k_kl_mean_off"] = s.k_kl_mean_off;
    d["v_error_mean"] = s.v_error_mean;
    d["v_error_worst"] = s.v_error_worst;
    specs.append(d);
  }
  for (const ProbeAdvice& a : report.advice) {
    nb::dict d;
    d["mode"] = a.mode;
    d["spec"] = a.spec;
    d["reasons"] = nb::cast(a.reasons);
    advice.append(d);
  }
  nb::dict d;
  d["layers"] = layers;
  d["specs"] = specs;
  d["advice"] = advice;
  return d;
}

}  // namespace

void BindProfile(nb::module_& m) {
  nb::class_<Profile>(m, "Profile", "What calibration found out about one model (docs/calibration.md).")
      .def_ro("model_name", &Profile::model_name)
      .def_ro("model_fingerprint", &Profile::model_fingerprint)
      .def_ro("tokens", &Profile::tokens)
      .def_ro("sink_tokens", &Profile::sink_tokens)
      .def("layers", &Layers, "Means and scales by layer, keys in the channel order of Hugging Face models.")
      .def("budget", &BudgetOf, nb::arg("bits"),
           "(K, V) widths by layer at an average of `bits`; LookupError lists those there.")
      .def("add_budget", &AddBudget, nb::arg("bits"), nb::arg("widths"))
      .def("probe", &ProbeOf, "What statistics alone predict for kNvN specs.")
      .def(
          "save", [](const Profile& self, const std::string& path) { Check(SaveProfile(self, path)); },
          nb::arg("path"));
  m.def(
      "load_profile",
      [](const std::string& path) {
        Profile profile = Take(LoadProfile(path));
        ConvertChannelOrder(ChannelOrder::kHalf, &profile);
        return profile;
      },
      nb::arg("path"));
  nb::class_<Collector>(m, "Collector", "Measures keys, values and queries of a model's layers.")
      .def(nb::init<const std::vector<std::tuple<int, int, int, int>>&>(), nb::arg("layers"),
           "layers: (heads, kv_heads, head_dim_k, head_dim_v)")
      .def("begin", &Collector::Begin, nb::arg("tokens"))
      .def("layer", &Collector::Layer, nb::arg("layer"), nb::arg("k"), nb::arg("v"), nb::arg("q"), nb::arg("scale"))
      .def("finish", &Collector::Finish, nb::arg("model_name"), nb::arg("fingerprint"));
}

}  // namespace tersekv::python
