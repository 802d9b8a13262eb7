import { brief, colour, hover, lines, picture, point, rows, upright } from "../draw.js";

// Listed prices against context, with both estimates of the lecture; then KV bytes.
const LISTED = [
  { column: "output", name: "output", colour: "money", wide: 2.6 },
  { column: "input", name: "input", colour: "compute", dash: null },
  { column: "cached", name: "cached", colour: "kv" },
];
const READ = [
  { column: "together", name: "break and ratio", colour: "quiet", dash: "5 4" },
  { column: "apart", name: "break only", colour: "weights", dash: "2 3" },
];
const usd = (given) => `$${+given.toPrecision(3)}`;

export const drag = { input: "tier", axis: "x" };

export function draw({ tables, marks }, { width }) {
  const { prices } = tables;
  const series = [...LISTED, ...READ].filter((one) => prices[one.column].some((given) => given !== null));
  const all = series.flatMap((one) => prices[one.column]).filter((given) => given > 0);
  const domain = [Math.min(...all) / 1.8, Math.max(...all) * 1.7];
  const one = picture(width, {
    x: { type: "log", unit: "", label: "context of a request, tokens", domain: d3.extent(prices.context) },
    y: { type: "log", unit: "", label: "USD per million tokens", domain, tickFormat: usd, ticks: d3.range(-4, 4).map((power) => 10 ** power).filter((at) => at >= domain[0] && at <= domain[1]) },
    height: width < 520 ? 300 : 360, marginRight: 106,
    marks: [
      ...upright(marks.tier, `${brief(marks.tier)} tokens`, { left: true }),
      ...lines(prices, "context", series),
      ...hover(prices, "context", series, { unit: "USD" }),
      point(marks.tier, marks.at, "money"),
    ],
  });
  return Object.assign([one, bytes(tables.bytes, marks, width)], { scale: one.scale });
}

// KV bytes per token: two estimates, two known models, and the range of the prices.
function bytes(table, marks, width) {
  const narrow = width < 520;
  const read = rows(table).filter((d) => d.bytes !== null);
  const own = narrow ? "90 % range" : "90 % range of the prices";
  const names = [...read.filter((d) => !d.known).map((d) => d.name), own, ...read.filter((d) => d.known).map((d) => d.name)];
  const kB = (given) => brief(given, "B", 2);
  return picture(width, {
    x: { type: "log", unit: "B", label: "KV cache of one token", domain: [Math.min(200, ...read.map((d) => d.bytes / 1.4)), Math.max(2e6, 2 * marks.bound)] },
    y: { type: "band", unit: "", label: "", domain: names, tickFormat: String, tickSize: 0, ticks: undefined, grid: false },
    height: 30 * names.length + 62, marginLeft: narrow ? 112 : 162, marginTop: 10, marginRight: narrow ? 46 : 106,
    marks: [
      ...(marks.identifiable ? [
        Plot.barX([own], { x1: marks.low, x2: marks.high, y: (name) => name, fill: colour("money"), fillOpacity: 0.3, insetTop: 7, insetBottom: 7, clip: true }),
        Plot.tickX([own], { x: marks.median, y: (name) => name, stroke: colour("money"), strokeWidth: 2.5, insetTop: 5, insetBottom: 5 }),
        Plot.tickX([own], { x: marks.bound, y: (name) => name, stroke: colour("total"), strokeWidth: 1.5, strokeDasharray: "2 2", insetTop: 3, insetBottom: 3 }),
        Plot.text([own], { x: marks.bound, y: (name) => name, text: () => "at most", dx: 6, textAnchor: "start", fontSize: 11.5, fill: colour("total"), stroke: colour("paper"), strokeWidth: 4 }),
      ] : [Plot.text([own], { frameAnchor: "left", y: (name) => name, text: () => (narrow ? "not identifiable" : `not identifiable: ${marks.reason}`), textAnchor: "start", fontSize: 11.5, fill: colour("quiet") })]),
      Plot.dot(read, { x: "bytes", y: "name", r: 5, symbol: (d) => (d.known ? "square" : "circle"), fill: (d) => colour(d.known ? "kv" : "weights") }),
      Plot.text(read, { x: "bytes", y: "name", text: (d) => kB(d.bytes), dx: 10, textAnchor: "start", fontSize: 11.5, fill: (d) => colour(d.known ? "kv" : "weights") }),
    ],
  });
}
