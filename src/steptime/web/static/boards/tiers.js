import { colour, ghost, hover, lines, picture, point } from "../draw.js";

// Cost of a billion cached tokens in each memory tier, against storage time.
const LOOKS = {
  hbm: { colour: "compute", dash: null }, host: { colour: "kv", dash: "2 3" }, ssd: { colour: "weights", dash: "6 3" },
  hdd: { colour: "network", dash: "8 3 2 3" }, again: { colour: "money", dash: null, wide: 2.6 },
};
const TICKS = [[1e-3, "1 ms"], [1, "1 s"], [60, "1 min"], [3600, "1 h"], [86400, "1 day"], [2592000, "30 days"]];

export const drag = { input: "hold_seconds", axis: "x" };

export function draw({ tables, marks }, { width, before }) {
  const { costs, spans } = tables;
  const series = Object.keys(LOOKS).filter((name) => costs[name]).map((name) => ({ column: name, name: marks.words[name], ...LOOKS[name] }));
  const domain = d3.extent(costs.seconds);
  const least = Math.min(...costs.best) / 3;
  const most = marks.again * 30;
  const wide = d3.range(spans.from.length).map((n) => ({ from: spans.from[n], to: spans.to[n], name: spans.tier[n] }));
  const narrow = width < 520;
  const cut = Object.fromEntries(Object.entries(costs).map(([name, values]) => [name, LOOKS[name] ? values.map((usd) => (usd > most ? null : usd)) : values]));
  return picture(width, {
    marginLeft: narrow ? 58 : 62, marginRight: narrow ? 88 : 104,
    x: { type: "log", label: "time until the cache is used again", domain, ticks: TICKS.map(([at]) => at).filter((_, n) => !narrow || n % 2 === 1 || n === 0), tickFormat: (at) => TICKS.find(([one]) => one === at)?.[1] ?? "" },
    y: { type: "log", unit: "USD", label: "per billion tokens of context", domain: [least, most] },
    marks: [
      Plot.rect(wide, { x1: "from", x2: "to", y1: least, y2: least * (most / least) ** 0.015, fill: (d) => colour(LOOKS[d.name].colour) }),
      Plot.ruleX(Object.values(marks.lives), { stroke: colour("quiet"), strokeDasharray: "3 4" }),
      Plot.text(Object.entries(marks.lives), { x: "1", text: "0", frameAnchor: "bottom", dy: -12, dx: -4, textAnchor: "end", fill: colour("quiet"), fontSize: 11.5 }),
      ...ghost(before, "costs", "seconds", "best"),
      ...lines(cut, "seconds", series.map((one) => ({ ...one, above: 0 }))),
      Plot.lineY(d3.range(costs.seconds.length), { x: (n) => costs.seconds[n], y: (n) => costs.best[n], stroke: colour("band"), strokeWidth: 9, clip: true }),
      point(marks.held, marks.cost),
      ...hover(costs, "seconds", series, { unit: "USD", xUnit: "s" }),
    ],
  });
}
