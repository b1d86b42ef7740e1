// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "python/src/bind.h"
#include "python/src/pool.h"
#include "python/src/status.h"
#include "tersekv/codec.h"
#include "tersekv/cuda_api.h"
#include "tersekv/spec.h"
#include "tersekv/version.h"

namespace nb = nanobind;

namespace tersekv::python {

void BindInfo(nb::module_& m) {
  m.def("version", [] { return std::string(Version()); });
  m.def("commit", [] { return std::string(Commit()); });
  m.def(
      "canonical", [](std::string_view spec) { return FormatSpec(Take(ParseSpec(spec))); }, nb::arg("spec"),
      "Canonical text of a spec; ValueError lists the nearest known ones.");
  m.def(
      "spec_bits",
      [](std::string_view spec) {
        const KvSpec s = Take(ParseSpec(spec));
        return nb::make_tuple(s.k.bits, s.v.bits);
      },
      nb::arg("spec"), "Code bits of K and V.");
  m.def(
      "spec_is_raw", [](std::string_view spec) { return Take(ParseSpec(spec)).raw(); }, nb::arg("spec"));
  m.def(
      "spec_rotates", [](std::string_view spec) { return Take(ParseSpec(spec)).rotation != Rotation::kNone; },
      nb::arg("spec"));
  m.def(
      "spec_is_lloyd_max",
      [](std::string_view spec) {
        const KvSpec s = Take(ParseSpec(spec));
        return s.k.family == Family::kLloydMax && s.v.family == Family::kLloydMax;
      },
      nb::arg("spec"));
  m.def(
      "bits_spec",
      [](std::string_view spec, int dk, int dv) {
        const KvSpec s = Take(ParseSpec(spec));
        Check(CheckSupported(s));
        return BitsSpec(s, dk, dv);
      },
      nb::arg("spec"), nb::arg("head_dim_k"), nb::arg("head_dim_v"), "Stored bits a value: codes and scales.");
  m.def(
      "spec_raw_tokens",
      [](std::string_view spec) {
        const KvSpec s = Take(ParseSpec(spec));
        return s.raw() ? nb::make_tuple(0, 0) : nb::make_tuple(s.sink, s.win);
      },
      nb::arg("spec"), "(raw sinks, raw window) of a packed spec, in tokens.");
  m.def("known_specs", &KnownSpecs);
  m.def("simd_targets", &SimdTargets);
  m.def(
      "cuda_available", [] { return tersekv_cuda_kernels()[0] != 0; }, "Whether this module has CUDA kernels.");
  m.def("num_threads", &NumThreads);
  m.def("set_num_threads", &SetNumThreads, nb::arg("n"));
  m.def(
      "self_test",
      [] {
        Status status;
        {
          const nb::gil_scoped_release release;
          status = SelfTestCodecs();
        }
        Check(status);
      },
      "Codes known rows with every codec on every SIMD target; RuntimeError or ValueError says what is wrong.");
}

}  // namespace tersekv::python
