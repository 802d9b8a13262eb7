// Drawing of boards: colours with one meaning on all boards, axes, labels of lines, hover, and the point to drag.

const dashes = { compute: null, weights: "6 3", kv: "2 3", network: "8 3 2 3", overhead: "1 4", money: null, total: null };

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || name;
export const dash = (name) => dashes[name] ?? null;

// Parts of a step, one column each; boards add their sum.
export const RESOURCES = [
  { column: "compute", name: "arithmetic", colour: "compute" },
  { column: "weights", name: "weights", colour: "weights" },
  { column: "kv", name: "KV cache", colour: "kv" },
  { column: "network", name: "network", colour: "network" },
  { column: "overhead", name: "overhead", colour: "overhead" },
];

// Rows of a table that is stored by columns.
export function rows(table) {
  const names = Object.keys(table);
  return names.length ? table[names[0]].map((_, n) => Object.fromEntries(names.map((name) => [name, table[name][n]]))) : [];
}

// Write numbers with a prefix: 12 ms, 3.4 k. The server computes the numbers.
const steps = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];
const plain = (given) => (Math.abs(given) >= 1000 ? String(given).replace(/\B(?=(\d{3})+$)/, ",") : given !== 0 && Math.abs(given) < 1e-6 ? given.toExponential() : String(given));
export function brief(given, unit = "", digits = 3) {
  if (given === null || given === undefined || !isFinite(given)) return "none";
  if (given === 0) return `0 ${unit}`.trim();
  if (unit === "USD" && Math.abs(given) < 1e6) return `$${plain(+given.toPrecision(digits))}`;
  if (unit === "USD") return `$${brief(given, "", digits)}`;
  if (unit === "%") return `${+(100 * given).toPrecision(digits)} %`;
  const [size, prefix] = steps.find(([one]) => Math.abs(given) >= one * 0.9995) || steps[steps.length - 1];
  return `${+(given / size).toPrecision(digits)} ${prefix}${unit}`.trim();
}

// A picture with the common frame. marks: Plot's; x, y: scales with `unit`; more: any option of Plot.
export function picture(width, { x, y, marks, height, ...more }) {
  const narrow = width < 520;
  const axis = (one) => ({ tickFormat: (given) => brief(given, one.unit || "", 2), ...one });
  const ticks = (one, space) => ({ ticks: one.type === "log" && one.domain ? tens(one.domain, space / 70) : Math.max(2, Math.round(space / 110)) });
  const tall = height || Math.round(Math.min(Math.max(width * 0.56, 300), 460));
  return Plot.plot({
    width, height: tall, marginLeft: narrow ? 52 : 62, marginRight: more.marginRight ?? (narrow ? 72 : 96), marginBottom: 42, marginTop: 28,
    style: { background: "transparent", fontSize: "12px", fontFamily: "inherit", overflow: "visible" },
    x: { grid: false, nice: false, ...ticks(x, width), ...axis(x), label: null },
    y: { grid: true, ...ticks(y, tall), ...axis(y), label: null },
    ...more,
    marks: [
      ...marks,
      Plot.text([x.label || ""], { frameAnchor: "bottom", dy: 36, fontSize: 12 }),
      Plot.text([y.label || ""], { frameAnchor: "top-left", dx: -44, dy: -25, textAnchor: "start", fontSize: 12 }),
    ],
  });
}

// Powers of ten in a domain, with their doubles and halves if there are few.
export function tens([low, high], most = 8) {
  const every = (factors) => d3.range(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)) + 1).flatMap((power) => factors.map((factor) => factor * 10 ** power)).filter((at) => at >= low * 0.999 && at <= high * 1.001);
  const [whole, fine] = [every([1]), every([1, 2, 5])];
  const found = whole.length < 3 ? fine : whole;
  return found.length > most ? found.filter((_, n) => n % Math.ceil(found.length / most) === 0) : found;
}

// Lines of a table over `x`: one column per line, with a name and a colour, labelled at the end.
export function lines(table, x, series) {
  const data = series.flatMap((one) => table[x].map((at, n) => ({ x: at, y: table[one.column][n], name: one.name })).filter((d) => d.y !== null && d.y > (one.above ?? -Infinity)));
  const style = new Map(series.map((one) => [one.name, one]));
  return [
    ...series.map((one) => Plot.lineY(data.filter((d) => d.name === one.name), { x: "x", y: "y", stroke: colour(one.colour), strokeWidth: one.wide || 1.8, strokeDasharray: one.dash === undefined ? dash(one.colour) : one.dash, clip: true })),
    ...labels(data, style),
  ];
}

// Names at the right ends of lines, spread so that they do not overlap (a Plot transform has no access to the scale).
function labels(data, style) {
  const last = [...d3.group(data, (d) => d.name)].map(([name, all]) => ({ ...all[all.length - 1], name }));
  return [Plot.text(last, { x: "x", y: "y", text: "name", fill: (d) => colour(style.get(d.name).colour), textAnchor: "start", dx: 6, fontSize: 12, stroke: colour("paper"), strokeWidth: 4, className: "ends" })];
}

// Widths of names that were drawn before: to ask for one lays out the page.
const WIDTHS = new Map();
function nameWidth(text) {
  const name = text.textContent, wide = WIDTHS.get(name) || text.getComputedTextLength();
  if (wide) WIDTHS.set(name, wide);
  return wide || Infinity;
}

// After drawing: move labels that overlap apart. Labels beside each other stay.
export function spread(svg, least = 14) {
  const every = [...svg.querySelectorAll(".ends text")].map((text) => {
    const [x, y] = /translate\(([^,]+),([^)]+)\)/.exec(text.getAttribute("transform")).slice(1).map(Number);
    return { text, x, y, end: x + nameWidth(text) };
  }).sort((a, b) => a.x - b.x);
  let column = [], end = -Infinity;
  for (const one of every) {
    if (one.x > end) { stack(svg, column, least); column = []; }
    column.push(one);
    end = Math.max(end, one.end);
  }
  stack(svg, column, least);
  return svg;
}

function stack(svg, column, least) {
  const at = column.sort((a, b) => a.y - b.y);
  for (let n = 1; n < at.length; n++) at[n].to = Math.max(at[n].y, (at[n - 1].to ?? at[n - 1].y) + least);
  // The lowest name stands at the axis, not below it, and pushes the others up.
  const low = (svg.viewBox?.baseVal.height || Infinity) - 46;
  for (let n = at.length - 1, most = low; n >= 0; n--) {
    const now = at[n].to ?? at[n].y;
    if (now > most) at[n].to = most;
    most = Math.min(now, most) - least;
  }
  for (const { text, to, y } of at) if (to !== undefined && to !== y) text.setAttribute("transform", text.getAttribute("transform").replace(/,([^)]+)\)/, `,${to})`));
}

// Text on hover: the value of every series at the x of the pointer, to three digits.
export function hover(table, x, series, { unit = "", xUnit = "" } = {}) {
  const data = table[x].map((at, n) => ({ x: at, y: Math.max(...series.map((one) => table[one.column][n] ?? 0)), n }));
  const words = (d) => [["s", "B", "USD"].includes(xUnit) ? brief(d.x, xUnit) : `${brief(d.x)} ${xUnit}`.trim(), ...series.map((one) => `${one.name}: ${brief(table[one.column][d.n], unit)}`)].join("\n");
  return [
    Plot.ruleX(data, Plot.pointerX({ x: "x", stroke: colour("quiet"), strokeDasharray: "2 3" })),
    Plot.tip(data, Plot.pointerX({ x: "x", y: "y", title: words, fill: colour("card"), stroke: colour("line"), fontSize: 12, lineHeight: 1.25, anchor: "top-left" })),
  ];
}

// The operating point; `drag` of the board names the input that it moves.
export const point = (x, y, name = "total") => Plot.dot([{ x, y }], { x: "x", y: "y", r: 6.5, fill: colour(name), stroke: colour("paper"), strokeWidth: 2, className: "point" });

export const band = (table, x, low, high, name = "band") =>
  Plot.areaY(table[x].map((at, n) => ({ x: at, low: table[low][n], high: table[high][n] })).filter((d) => d.low !== null), { x: "x", y1: "low", y2: "high", fill: colour(name), clip: true });

// The area between both bounds of a step, with a label.
export const bounds = (steps, x) => [
  band(steps, x, "lower", "upper"),
  Plot.text(["grey: from full overlap to no overlap"], { frameAnchor: "top-left", lineAnchor: "top", dx: 6, dy: 4, fill: colour("quiet"), stroke: colour("paper"), strokeWidth: 4, fontSize: 11 }),
];

// A vertical mark with its name at the top, left or right of it; nothing if there is no value.
export const upright = (x, words, { top = 0, left = false } = {}) => (x === null || x === undefined ? [] : [
  Plot.ruleX([x], { stroke: colour("quiet"), strokeDasharray: "3 4", clip: true }),
  Plot.text([words], { x, clip: true, frameAnchor: "top", lineAnchor: "top", dy: top + 2, dx: left ? -4 : 4, textAnchor: left ? "end" : "start", fill: colour("quiet"), stroke: colour("paper"), strokeWidth: 4, fontSize: 11.5 }),
]);

// A horizontal mark with its name at its right end.
export const level = (y, words, { name = "quiet" } = {}) => (y === null || y === undefined ? [] : [
  Plot.ruleY([y], { stroke: colour(name), strokeDasharray: "3 4" }),
  Plot.text([words], { y, frameAnchor: "right", dx: 4, dy: -7, textAnchor: "end", fill: colour(name), fontSize: 11.5 }),
]);

// The previous curve, pale.
export const ghost = (before, table, x, y) => (before && before.tables[table] && before.tables[table][y]
  ? [Plot.lineY(before.tables[table][x].map((at, n) => ({ x: at, y: before.tables[table][y][n] })), { x: "x", y: "y", stroke: colour("ghost"), strokeWidth: 1.4, clip: true })] : []);
