import { brief, colour, picture, point, rows, upright } from "../draw.js";

// Cost against speed: front of the full model, that of an ideal machine, and named modes.
export const drag = { input: "speed", axis: "x" };

export function draw({ tables, marks }, { width, before }) {
  const [full, closed, points] = [rows(tables.full), rows(tables.closed), rows(tables.points)];
  const old = before && before.marks.unit === marks.unit ? rows(before.tables.full) : [];
  const every = [...full, ...closed];
  const x = [d3.min(every, (d) => d.speed) / 1.4, Math.max(d3.max(every, (d) => d.speed), marks.floor) * 1.5];
  const y = [d3.min(every, (d) => d.cost) / 2.6, d3.max(every, (d) => d.cost) * 1.8];
  const unit = marks.unit === "USD" ? "USD" : "";
  const held = Math.min(Math.max(marks.speed, x[0]), x[1]);
  const up = marks.cost ?? marks.closed ?? y[1];
  const narrow = width < 520;
  const shown = points.filter((d, n) => !narrow || n === 0 || n === points.length - 1);
  const listed = marks.listed_cost === null ? [] : [{ x: marks.listed_speed, y: marks.listed_cost }];
  return picture(width, {
    marginRight: 24,
    x: { type: "log", label: "tokens per second of each user", domain: x },
    y: { type: "log", unit, label: unit ? "per million tokens" : "chip-hours per million tokens", domain: y, ...(unit ? {} : { tickFormat: (d) => `${+d.toPrecision(2)}` }) },
    marks: [
      ...upright(marks.floor, "floor", { left: true }),
      ...upright(marks.ceiling, "single user", { top: 14 }),
      Plot.line(old, { x: "speed", y: "cost", stroke: colour("ghost"), strokeWidth: 1.4, curve: "step-after", clip: true }),
      Plot.line(closed, { x: "speed", y: "cost", stroke: colour("quiet"), strokeWidth: 1.8, strokeDasharray: "6 4" }),
      Plot.line(full, { x: "speed", y: "cost", stroke: colour("money"), strokeWidth: 2.6, curve: "step-after" }),
      Plot.dot(full, { x: "speed", y: "cost", r: 2, fill: colour("money") }),
      Plot.text(closed.slice(-1), { x: "speed", y: "cost", text: () => "ideal machine", textAnchor: "start", dy: 15, fill: colour("quiet"), stroke: colour("paper"), strokeWidth: 4 }),
      Plot.dot(points, { x: "speed", y: "cost", r: 4, fill: colour("paper"), stroke: colour("money"), strokeWidth: 2 }),
      Plot.text(shown, { x: "speed", y: "cost", text: "name", textAnchor: "end", dx: -5, dy: -10, fill: colour("money") }),
      Plot.dot(listed, { x: "x", y: "y", symbol: "diamond", r: 5, fill: colour("accent") }),
      Plot.text(listed, { x: "x", y: "y", text: () => (narrow ? "list price" : "list price of a fast mode"), textAnchor: "end", dx: -9, fill: colour("accent") }),
      Plot.ruleX([held], { stroke: colour("total"), strokeOpacity: 0.25 }),
      ...(marks.closed === null ? [] : [Plot.dot([marks.closed], { x: held, y: marks.closed, r: 4.5, fill: colour("quiet"), stroke: colour("paper") })]),
      point(held, up, marks.cost === null ? "ghost" : "total"),
      Plot.tip(every, Plot.pointer({ x: "speed", y: "cost", fill: colour("card"), stroke: colour("line"), fontSize: 12,
        title: (d) => `${brief(d.speed)} tok/s\n${brief(d.cost, unit || "chip-h")} per million\nbatch ${brief(d.batch)}` })),
    ],
  });
}
