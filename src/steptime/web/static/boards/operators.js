import { brief, colour, picture, rows } from "../draw.js";

// Operators under the roofline of one chip: a circle for each, as large as its part of the step.
export function draw({ tables, marks }, { width }) {
  const all = rows(tables.operators), peaks = tables.peaks.peak;
  const tint = { attention: "kv", experts: "weights", projections: "compute" };
  const most = d3.max(all, (one) => one.intensity) || 1, least = d3.min(all, (one) => one.intensity) || 1;
  const x = [least / 3, Math.max(most, ...peaks.map((peak) => peak / marks.bandwidth)) * 4];
  const roof = peaks.flatMap((peak) => [{ peak, x: x[0], y: x[0] * marks.bandwidth }, { peak, x: peak / marks.bandwidth, y: peak }, { peak, x: x[1], y: peak }]);
  const y = [Math.min(...all.map((one) => one.rate), x[0] * marks.bandwidth) / 2, Math.max(...peaks, 1) * 2];
  // Names that would cover the name of a larger operator are left out; the table has all.
  const large = [];
  const apart = (a, b) => Math.hypot(Math.log(a.intensity / b.intensity) / Math.log(x[1] / x[0]) * width / 110, Math.log(a.rate / b.rate) / Math.log(y[1] / y[0]) * 20);
  for (const one of all) if (large.every((other) => apart(one, other) > 1)) large.push(one);
  return picture(width, {
    x: { type: "log", label: "FLOP per byte of traffic", domain: x }, y: { type: "log", unit: "FLOP/s", label: "FLOP/s of a chip", domain: y },
    r: { range: [2, 16], domain: [0, d3.max(all, (one) => one.seconds)] }, marginRight: 30, marginLeft: 84,
    marks: [
      Plot.line(roof, { x: "x", y: "y", z: "peak", stroke: colour("total"), strokeWidth: 1.8, clip: true }),
      Plot.text(peaks.map((peak) => ({ peak })), { x: () => x[1], y: "peak", text: (one) => brief(one.peak, "FLOP/s"), textAnchor: "end", dy: -8, fill: colour("total"), fontSize: 12 }),
      Plot.text([marks], { x: () => x[0] * 1.4, y: (one) => x[0] * 1.4 * one.bandwidth, text: (one) => `memory, ${brief(one.bandwidth, "B/s")}`, textAnchor: "start", dx: 6, dy: 14, fill: colour("total"), fontSize: 12 }),
      Plot.dot(all, { x: "intensity", y: "rate", r: "seconds", fill: (one) => colour(tint[one.term] || "network"), fillOpacity: 0.75, stroke: colour("paper") }),
      Plot.text(large, { x: "intensity", y: "rate", text: "name", dy: 22, fontSize: 12, stroke: colour("paper"), strokeWidth: 4, fill: colour("total"), textAnchor: "middle", clip: true }),
      Plot.tip(all, Plot.pointer({ x: "intensity", y: "rate", fill: colour("card"), stroke: colour("line"), fontSize: 12,
        title: (one) => `${one.name} (${one.term})\n${brief(one.seconds, "s")} of the step\n${brief(one.intensity)} FLOP/B, ${brief(one.rate, "FLOP/s")}` })),
    ],
  });
}
