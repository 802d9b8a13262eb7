import { brief, colour, picture, rows } from "../draw.js";

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// Cost of each system, cheapest first: a bar with its range, and below its name the speed and the chips.
export function draw({ tables, marks }, { width }) {
  const all = rows(tables.systems);
  const able = all.filter((row) => row.cost !== null);
  const unit = marks.unit === "USD" ? "USD" : "";
  const most = d3.max(able, (row) => Math.max(row.cost, row.high ?? 0)) || 1;
  const words = (row) => `${brief(row.speed)} tok/s per user · ${brief(row.per_chip)} tok/s per chip · TTFT ${brief(row.ttft, "s")} · ${row.chips} chips`;
  const short = (row) => `${brief(row.speed)} tok/s per user · ${row.chips} chips`;
  const narrow = width < 520;
  const bars = Plot.plot({
    width, height: all.length * 66 + 50, marginLeft: 4, marginRight: 76, marginTop: 8, marginBottom: 42,
    style: { background: "transparent", fontSize: "12px", fontFamily: "inherit", overflow: "visible" },
    x: { domain: [0, most * 1.02], ticks: narrow ? 3 : 6, tickFormat: (d) => (d === 0 ? "0" : brief(d, unit, 2)), label: null, axis: able.length ? "bottom" : null },
    y: { domain: all.map((row) => row.system), axis: null, padding: 0 },
    marks: [
      ...(able.length ? [Plot.text([unit ? `per million output tokens${narrow ? "" : "; lines are 90 % ranges"}` : "chip-hours per million output tokens"], { frameAnchor: "bottom", dy: 36 })] : []),
      Plot.barX(able, { x1: 0, x2: "cost", y: "system", fill: colour("money"), fillOpacity: 0.85, insetTop: 26, insetBottom: 24 }),
      Plot.ruleY(able.filter((row) => row.low !== null), { x1: "low", x2: "high", y: "system", stroke: colour("total"), strokeWidth: 1.6, dy: 1 }),
      Plot.tickX(able.filter((row) => row.low !== null).flatMap((row) => [{ ...row, at: row.low }, { ...row, at: row.high }]), { x: "at", y: "system", stroke: colour("total"), strokeWidth: 1.6, insetTop: 28, insetBottom: 26 }),
      Plot.text(all, { frameAnchor: "left", y: "system", text: "system", dy: -17, textAnchor: "start", fontWeight: 600 }),
      Plot.text(able, { x: (row) => Math.max(row.cost, row.high ?? 0), y: "system", text: (row) => brief(row.cost, unit), dx: 8, dy: 1, textAnchor: "start", fontWeight: 600, fill: colour("money") }),
      Plot.text(able, { frameAnchor: "left", y: "system", text: narrow ? short : words, dy: 20, textAnchor: "start", fill: colour("quiet") }),
      Plot.text(all.filter((row) => row.cost === null), { frameAnchor: "left", y: "system", text: (row) => cut(row.reason, Math.floor(width / 2.6)), lineWidth: width / 13, lineAnchor: "top", dy: -5, textAnchor: "start", fill: colour("quiet") }),
      Plot.tip(able, Plot.pointerY({ x: "cost", y: "system", fill: colour("card"), stroke: colour("line"), fontSize: 12,
        title: (row) => `${row.system}\n${brief(row.cost, unit || "chip-h")} per million${row.low === null ? "" : `, ${brief(row.low, unit)} to ${brief(row.high, unit)}`}\n${row.layout}` })),
    ],
  });
  return tables.fronts.system.length ? [bars, fronts(rows(tables.fronts), rows(tables.runs), marks, unit, width)] : [bars];
}

// Cost against speed of all systems in one picture; the vertical rule is the speed that the bars compare.
const TINTS = ["compute", "weights", "kv", "network", "money", "overhead"];
const DASHES = [null, "6 3", "2 3", "8 3 2 3", "1 4", "10 4"];
function fronts(all, runs, marks, unit, width) {
  const names = [...new Set(all.map((one) => one.system))];
  const tint = (name) => colour(TINTS[names.indexOf(name) % TINTS.length]);
  const ends = names.map((name) => all.findLast((one) => one.system === name));
  const every = [...all, ...runs], x = [d3.min(every, (one) => one.speed) / 1.3, d3.max(every, (one) => one.speed) * 1.15], y = [d3.min(every, (one) => one.cost) / 1.5, d3.max(every, (one) => one.cost) * 1.6];
  return picture(width, {
    marginRight: Math.min(12 + 7 * d3.max(names, (name) => name.length), 150),
    x: { type: "log", label: "tokens per second of each user", domain: x },
    y: { type: "log", unit, label: unit ? "per million output tokens" : "chip-hours per million output tokens", domain: y },
    marks: [
      ...names.map((name, n) => Plot.line(all.filter((one) => one.system === name), { x: "speed", y: "cost", stroke: tint(name), strokeWidth: 2.2, strokeDasharray: DASHES[n % 6], clip: true })),
      Plot.dot(runs, { x: "speed", y: "cost", r: 2.8, fill: (one) => tint(one.system), fillOpacity: 0.7 }),
      Plot.ruleX([marks.speed], { stroke: colour("quiet"), strokeDasharray: "3 4", clip: true }),
      // The lines end close together: their names stand in the margin, at the height of the ends.
      Plot.text(ends, { x: x[1], y: "cost", text: (one) => cut(one.system, 20), fill: (one) => tint(one.system), dx: 6, textAnchor: "start", fontSize: 12, className: "ends" }),
      Plot.tip(all, Plot.pointer({ x: "speed", y: "cost", fill: colour("card"), stroke: colour("line"), fontSize: 12, title: (one) => `${one.system}\n${brief(one.speed)} tok/s, ${brief(one.cost, unit || "chip-h")}\n${one.layout}` })),
    ],
  });
}
