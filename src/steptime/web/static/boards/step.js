import { bounds, colour, ghost, hover, lines, picture, point, RESOURCES, upright } from "../draw.js";

// Parts of a step against the batch.
const PARTS = [
  ...RESOURCES,
  { column: "total", name: "step", colour: "total", wide: 2.6 },
];

export const drag = { input: "batch", axis: "x" };

export function draw({ tables, marks }, { width, before }) {
  const { steps } = tables;
  const shown = PARTS.filter((part) => steps[part.column].some((seconds) => seconds > 0));
  const most = Math.max(...steps.upper);
  const least = Math.min(...steps.weights.filter((seconds) => seconds > 0), ...steps.total) / 30;
  return picture(width, {
    x: { type: "log", unit: "", label: "sequences that decode at once", domain: d3.extent(steps.batch) },
    y: { type: "log", unit: "s", label: "time of a step", domain: [least, Math.max(most, marks.high * 1.4)] },
    marks: [
      ...bounds(steps, "batch"),
      Plot.ruleX([marks], { x: "batch", y1: "low", y2: "high", stroke: colour("total"), strokeWidth: 2, strokeOpacity: 0.55 }),
      Plot.text(["90 % range"], { x: marks.batch, y: marks.high, dy: -8, fill: colour("total"), fontSize: 11 }),
      ...ghost(before, "steps", "batch", "total"),
      ...upright(marks.best_batch, width < 520 ? "B*" : "B* without KV cache", { top: 18, left: true }),
      ...upright(marks.room, "memory is full", { left: true, top: width < 420 ? 34 : 0 }),
      ...lines(steps, "batch", shown.map((part) => ({ ...part, above: least }))),
      point(marks.batch, marks.total),
      ...hover(steps, "batch", shown, { unit: "s", xUnit: "sequences" }),
    ],
  });
}
