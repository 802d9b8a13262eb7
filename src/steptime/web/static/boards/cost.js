import { band, colour, ghost, hover, lines, picture, point, RESOURCES, upright } from "../draw.js";

// Cost of a million tokens against the batch: each part of the step as money.
const PARTS = [
  ...RESOURCES,
  { column: "total", name: "total", colour: "money", wide: 2.8, dash: null },
];

export const drag = { input: "batch", axis: "x" };

export function draw({ tables, marks }, { width, before }) {
  const { costs } = tables;
  const shown = PARTS.filter((part) => costs[part.column].some((usd) => usd > 0));
  const most = Math.max(...costs.high);
  const lowest = Math.min(marks.floor, ...costs.total);
  const least = Math.max(lowest / 60, Math.min(lowest, ...shown.map((part) => costs[part.column].at(-1)).filter((usd) => usd > 0)) / 1.5);
  const domain = d3.extent(costs.batch);
  const full = marks.room !== null && marks.room < domain[1];
  return picture(width, {
    x: { type: "log", label: "sequences that decode at once", domain },
    y: { type: "log", unit: "USD", label: "per million output tokens", domain: [least, most] },
    marks: [
      ...(full ? [Plot.rect([0], { x1: Math.max(marks.room, domain[0]), x2: domain[1], y1: least, y2: most, fill: colour("band") })] : []),
      ...(costs.high.some((usd, n) => usd > costs.low[n]) ? [band(costs, "batch", "low", "high")] : []),
      Plot.ruleY([marks.floor], { stroke: colour("quiet"), strokeDasharray: "3 4" }),
      Plot.text(["floor"], { y: marks.floor, frameAnchor: "left", dx: 4, dy: 9, fill: colour("quiet"), fontSize: 11.5 }),
      ...ghost(before, "costs", "batch", "total"),
      ...(full ? upright(Math.max(marks.room, domain[0]), marks.room < 1 ? "nothing fits" : "memory is full", { left: marks.room > 300 }) : []),
      ...lines(costs, "batch", shown.map((part) => ({ ...part, above: least }))),
      ...(marks.slow_batch ? [Plot.dot([marks], { x: "slow_batch", y: "slow", r: 5, stroke: colour("money"), strokeWidth: 2, fill: colour("paper") }),
        Plot.text(["slow mode"], { x: marks.slow_batch, y: marks.slow, dx: 4, dy: -14, textAnchor: "end", fill: colour("money"), stroke: colour("paper"), strokeWidth: 4, fontSize: 11.5 })] : []),
      point(marks.batch, marks.total, "money"),
      ...hover(costs, "batch", shown, { unit: "USD" }),
    ],
  });
}
