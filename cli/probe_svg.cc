// SPDX-License-Identifier: Apache-2.0
// The picture of a probe: norms and means by layer, predicted KL by layer for uniform widths. Layers left to right.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "cli/probe.h"

namespace tersekv::cli {
namespace {

constexpr double kWidth = 860, kLeft = 70, kRight = 110, kPanel = 190, kGap = 66, kTop = 56;
constexpr const char* kColours[] = {"#1b6ca8", "#d1495b", "#2e8b57", "#e09f3e", "#6a4c93", "#4d4d4d", "#17becf"};

struct Series {
  std::string name;
  std::vector<double> values;  // by layer
};

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

// One panel with a logarithmic axis whose grid lines are powers of ten (or of two where they span little).
std::string Panel(int index, const std::string& title, const std::vector<Series>& series) {
  double low = INFINITY, high = -INFINITY;
  size_t layers = 0;
  for (const Series& s : series) {
    layers = s.values.size();
    for (const double v : s.values) {
      if (!(v > 0)) continue;
      low = std::min(low, v);
      high = std::max(high, v);
    }
  }
  if (!(low <= high)) low = high = 1;
  const double base = high / low > 50 ? 10 : 2;
  const double first = std::floor(std::log(low) / std::log(base)),
               last = std::max(first + 1, std::ceil(std::log(high) / std::log(base)));
  const double top = kTop + index * (kPanel + kGap), right = kWidth - kRight;
  const auto x = [&](size_t l) {
    return kLeft + (right - kLeft) * (layers > 1 ? static_cast<double>(l) / static_cast<double>(layers - 1) : 0.5);
  };
  const auto y = [&](double v) {
    const double at = (std::log(std::max(v, low)) / std::log(base) - first) / (last - first);
    return top + kPanel * (1 - at);
  };
  std::string svg = fmt::format("<text x=\"{}\" y=\"{}\" font-weight=\"bold\">{}</text>\n", kLeft, top - 10, title);
  for (double e = first; e <= last; e += std::max(1.0, std::ceil((last - first) / 8))) {
    const double line = y(std::pow(base, e));
    svg += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>", kLeft, right, line,
                       line);
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:.3g}</text>\n", kLeft - 8, line + 4,
                       std::pow(base, e));
  }
  for (size_t l = 0; l < layers; l += std::max<size_t>(1, (layers + 15) / 16)) {
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x(l), top + kPanel + 18, l);
  }
  for (size_t s = 0; s < series.size(); ++s) {
    const char* colour = kColours[s % std::size(kColours)];
    std::string points;
    for (size_t l = 0; l < layers; ++l) points += fmt::format("{:.1f},{:.1f} ", x(l), y(series[s].values[l]));
    svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", points, colour);
    svg += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"{}\">{}</text>\n", right + 10,
                       top + 14 + 18 * static_cast<double>(s), colour, series[s].name);
  }
  return svg;
}

Series ByLayer(const ProbeReport& report, const std::string& name, const std::function<double(const ProbeLayer&)>& of) {
  Series series{name, {}};
  for (const ProbeLayer& layer : report.layers) series.values.push_back(of(layer));
  return series;
}

}  // namespace

std::string ProbeSvg(const ProbeReport& report, const std::string& model) {
  std::vector<Series> kl, error;
  for (const ProbeSpec& spec : report.specs) {
    const std::string bits = fmt::format("{}", static_cast<int>(spec.bits));
    if (spec.spec != "k" + bits + "v" + bits) continue;
    kl.push_back({bits + " bits", spec.k_kl});
    error.push_back({bits + " bits", spec.v_error});
  }
  const double height = kTop + 3 * (kPanel + kGap);
  std::string svg = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" font-family="sans-serif" font-size="12">)"
      "\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{2}\" y=\"24\" font-size=\"15\">{3}, by KV "
      "layer</text>\n",
      kWidth, height, kLeft, Escaped(model));
  svg += Panel(0, "energy of keys and values",
               {ByLayer(report, "|K| / |V|", [](const ProbeLayer& l) { return l.kv_norm_ratio; }),
                ByLayer(report, "K / centred K", [](const ProbeLayer& l) { return l.k_uncentred; }),
                ByLayer(report, "V / centred V", [](const ProbeLayer& l) { return l.v_uncentred; })});
  svg += Panel(1, "predicted KL of attention weights from K, nats", kl);
  svg += Panel(2, "predicted relative error of attention output from V", error);
  return svg + "</svg>\n";
}

}  // namespace tersekv::cli
