import { brief, colour, picture, point, rows, upright } from "../draw.js";

// Cost against speed with the plan; roles of its chips; parts of their memory and their steps.
const NAMES = { compute: "arithmetic", weights: "weights", kv: "KV cache", network: "network", overhead: "overhead" };
// Of the memory, the rest is activations and what the engine reserves.
const named = (d) => (d.part === "overhead" && d.unit === "B" ? "rest" : NAMES[d.part]);
const ROLES = { prefill: ["accent", "prefill"], decode: ["total", "decode"], serve: ["total", "prefill and decode"], idle: ["ghost", "idle"] };

export const drag = { input: "speed", axis: "x" };

export function draw({ tables, marks }, { width, before }) {
  const front = rows(tables.front);
  const all = front.length ? front : [{ speed: marks.limit, cost: 1 }];
  const old = before && before.marks.unit === marks.unit ? rows(before.tables.front) : [];
  const x = [d3.min(all, (d) => d.speed) / 1.3, d3.max(all, (d) => d.speed) * 1.3];
  const y = [d3.min(all, (d) => d.cost) / 1.5, d3.max(all, (d) => d.cost) * 1.6];
  const held = Math.min(Math.max(marks.x, x[0]), x[1]);
  const limit = Math.min(Math.max(marks.limit, x[0]), x[1]);
  const main = picture(width, {
    height: Math.round(Math.min(Math.max(width * 0.42, 280), 360)), marginRight: 20,
    x: { type: "log", label: "tokens per second of each user", domain: x },
    y: { type: "log", unit: marks.unit === "USD" ? "USD" : "", label: marks.unit === "USD" ? "per million output tokens" : "chip-hours per million output tokens", domain: y, ...(marks.unit === "USD" ? {} : { tickFormat: (d) => `${+d.toPrecision(2)}` }) },
    marks: [
      Plot.line(old, { x: "speed", y: "cost", stroke: colour("ghost"), strokeWidth: 1.4, curve: "step-after", clip: true }),
      Plot.line(front, { x: "speed", y: "cost", stroke: colour("money"), strokeWidth: 2.4, curve: "step-after" }),
      Plot.dot(front, { x: "speed", y: "cost", r: 2, fill: colour("money") }),
      ...upright(limit, marks.feasible ? "required" : "required: out of reach", { left: limit > Math.sqrt(x[0] * x[1]) }),
      ...(marks.low === null ? [] : [Plot.link([marks], { x1: held, x2: held, y1: "low", y2: "high", stroke: colour("money"), strokeOpacity: 0.35, strokeWidth: 7 })]),
      ...(front.length ? [point(held, marks.y, marks.feasible ? "total" : "ghost")] : []),
      Plot.tip(front, Plot.pointer({ x: "speed", y: "cost", fill: colour("card"), stroke: colour("line"), fontSize: 12,
        title: (d) => `${brief(d.speed)} tok/s, ${brief(d.cost, marks.unit === "USD" ? "USD" : "chip-h")}\nTTFT ${brief(d.ttft, "s")}\n${d.layout}\nbatch ${d.batch.toLocaleString("en")}` })),
    ],
  });
  const made = tables.chips.role.length && !marks.rough ? [main, chips(tables.chips, width), bars(tables.bars, width)] : [main];
  if (made.length === 1 && marks.rough && latest) made.push(...latest(width));
  else latest = made.length > 1 ? (wide) => [chips(tables.chips, wide), bars(tables.bars, wide)].map(paler) : null;
  made.scale = (name) => main.scale(name);
  return made;
}

let latest = null;
const paler = (svg) => { svg.style.opacity = 0.6; return svg; };

// The chips in the order of their replicas: the shade changes from one replica to the next.
function chips(table, width) {
  const across = Math.max(1, Math.min(table.role.length, width < 520 ? 24 : 36));
  const one = rows(table).map((chip, n) => ({ ...chip, x: n % across, y: Math.floor(n / across) }));
  const side = Math.min((width - 20) / across, 20);
  const roles = [...new Set(table.role)];
  const high = (d3.max(one, (chip) => chip.y) + 1) * side;
  return Plot.plot({
    width, height: high + 30, marginTop: 26, marginLeft: 4, marginBottom: 4, marginRight: width - 4 - across * side, x: { axis: null, domain: d3.range(across) }, y: { axis: null },
    style: { background: "transparent", fontSize: "12px", fontFamily: "inherit", overflow: "visible" },
    marks: [
      Plot.cell(one, { x: "x", y: "y", inset: 1, rx: 2, fill: (chip) => colour(ROLES[chip.role][0]), fillOpacity: (chip) => (chip.replica % 2 ? 0.5 : 0.85) }),
      ...roles.map((role, n) => Plot.text([`■ ${table.role.filter((other) => other === role).length} chips: ${ROLES[role][1]}`],
        { frameAnchor: "top-left", dy: -18, dx: n * 165, textAnchor: "start", fill: colour(ROLES[role][0]) })),
    ],
  });
}

function bars(table, width) {
  const parts = rows(table).filter((d) => d.size > 0);
  const names = [...new Set(table.row)];
  const whole = names.map((row) => parts.find((d) => d.row === row));
  const room = width - 200;
  return Plot.plot({
    width, height: names.length * 30 + 22, marginLeft: 110, marginRight: 84, marginTop: 10, marginBottom: 8,
    style: { background: "transparent", fontSize: "12px", fontFamily: "inherit", overflow: "visible" },
    x: { domain: [0, 1], axis: null }, y: { domain: names, label: null, tickSize: 0 },
    marks: [
      Plot.barX(whole, { x1: 0, x2: 1, y: "row", stroke: colour("line"), fill: "none", inset: 4 }),
      Plot.barX(parts, { x1: "start", x2: "end", y: "row", fill: (d) => colour(d.part), insetTop: 4, insetBottom: 4, insetRight: 0.5 }),
      Plot.text(parts.filter((d) => (d.end - d.start) * room > 9 * named(d).length), { x: (d) => (d.start + d.end) / 2, y: "row", text: named, fill: colour("paper") }),
      Plot.text(whole, { x: 1, y: "row", dx: 6, textAnchor: "start", text: (d) => `of ${brief(d.whole, d.unit)}`, fill: colour("quiet") }),
      Plot.tip(parts, Plot.pointer({ x: (d) => (d.start + d.end) / 2, y: "row", fill: colour("card"), stroke: colour("line"), title: (d) => `${named(d)}: ${brief(d.size, d.unit)}` })),
    ],
  });
}
