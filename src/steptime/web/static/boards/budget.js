import { brief, colour, hover, level, lines, picture, point, rows, tens } from "../draw.js";

// Cost against size at equal quality; below it, overtraining of the cheapest model against served tokens.
const PARTS = [
  { column: "training", name: "training", colour: "compute" },
  { column: "rl", name: "RL", colour: "weights" },
  { column: "serving", name: "serving", colour: "kv" },
  { column: "total", name: "total", colour: "money", wide: 2.6 },
];
const size = (given, digits = 3) => brief(given, "", digits).replace("G", "B").replace(/(\S+) P$/, (_, n) => `${(1000 * n).toLocaleString("en")} T`);
const money = (given) => `$${brief(given, "", 3).replace("G", "B")}`;

export const drag = { input: "served", axis: "x", scale: (tokens) => tokens / 1e12 };

export function draw({ tables, marks }, { width, before }) {
  const { bill, ratios } = tables;
  const ratio = overtrained(ratios, marks, width);
  if (!bill.params.length) return Object.assign([ratio], { scale: ratio.scale });
  const shown = PARTS.filter((part) => bill[part.column].some((usd) => usd > 0));
  const domain = [marks.usd / 40, marks.usd * 25];
  const x = d3.extent(bill.params);
  const former = before && before.tables.bill.params.length ? rows(before.tables.bill) : [];
  const one = picture(width, {
    x: { type: "log", unit: "", label: "active parameters, at equal quality", domain: x, tickFormat: (given) => size(given), ticks: tens(x, width / 90) },
    y: { type: "log", unit: "", label: "lifetime cost", domain, tickFormat: (given) => money(given) },
    height: width < 520 ? 300 : 350, marginBottom: 54,
    marks: [
      Plot.lineY(former, { x: "params", y: "total", stroke: colour("ghost"), strokeWidth: 1.4, clip: true }),
      ...lines(bill, "params", shown),
      ...(marks.equality ? [Plot.dot([{}], { x: marks.equality, y: marks.equality_usd, r: 5, stroke: colour("quiet"), strokeWidth: 1.6, fill: colour("paper") }),
        Plot.text(["equal parts"], { x: marks.equality, y: marks.equality_usd, dy: -27, fill: colour("quiet"), fontSize: 11.5, stroke: colour("paper"), strokeWidth: 3 })] : []),
      ...hover(bill, "params", shown, { unit: "USD" }),
      Plot.dot([{}], { x: marks.params, y: marks.usd, r: 6, symbol: "diamond", fill: colour("money"), stroke: colour("paper"), strokeWidth: 1.5 }),
      Plot.ruleX([{}], { x: marks.params, y1: domain[0], y2: marks.usd, stroke: colour("money"), strokeDasharray: "3 4" }),
      Plot.text([`minimum: ${size(marks.params)}, ${money(marks.usd)}`], { x: marks.params, frameAnchor: "bottom", dy: -7, dx: 7, textAnchor: "start", fill: colour("money"), fontSize: 12, fontWeight: 600 }),
    ],
  });
  return Object.assign([one, ratio], { scale: ratio.scale });
}

// Both pictures have the same width and left margin, so that dragging in the lower picture follows its axis.
function overtrained(ratios, marks, width) {
  const laws = Object.keys(ratios).filter((name) => name !== "served");
  const series = laws.map((law) => ({ column: law, name: law, colour: law === marks.law ? "total" : "quiet", dash: law === marks.law ? null : "5 4", wide: law === marks.law ? 2.4 : 1.5 }));
  const all = laws.flatMap((law) => ratios[law]).filter((given) => given !== null && given > 0);
  const x = d3.extent(ratios.served);
  return picture(width, {
    x: { type: "log", unit: "", label: "tokens served over the model's life", domain: x, tickFormat: (given) => size(given), ticks: tens(x, width / 90) },
    y: { type: "log", unit: "", label: "training tokens over 20 per parameter (Chinchilla)", domain: [Math.min(1, ...all) / 1.4, Math.max(...all) * 1.4], tickFormat: (given) => `${given >= 1000 ? given.toLocaleString("en") : given}x` },
    height: 240,
    marks: [
      ...level(1, "Chinchilla"),
      ...lines(ratios, "served", series),
      ...hover(ratios, "served", series, { unit: "x" }),
      ...(marks.served ? [point(marks.served, marks.ratio, "total")] : []),
    ],
  });
}
