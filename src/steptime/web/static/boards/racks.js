import { brief, colour, dash, picture, point, rows } from "../draw.js";

// All-to-all time over several racks; below, the racks: the filled boxes show the used memory.
const LINES = [
  { column: "experts", name: "experts over all racks", colour: "network", wide: 2.6 },
  { column: "board", name: "ideal, full exchange", colour: "quiet", dash: "6 4" },
  { column: "layers", name: "layers over the racks", colour: "weights" },
];

export const drag = { input: "racks", axis: "x" };

export function draw({ tables, marks }, { width }) {
  const made = [boxes(tables.held, marks, width)];
  if (!tables.exchange) return made;
  const curves = curve(tables.exchange, marks, width);
  made.push(curves);
  made.reverse();
  made.scale = (name) => curves.scale(name);
  return made;
}

function curve(table, marks, width) {
  const narrow = width < 520;
  const all = rows(table);
  const most = d3.max(all, (d) => Math.max(d.experts ?? 1, d.board));
  const side = (at) => (narrow && at < 4 ? 8 : narrow ? -118 : 6);
  const ends = LINES.flatMap((line) => { const known = all.filter((d) => d[line.column] !== null); return known.length ? [{ ...known[known.length - 1], line }] : []; });
  return picture(width, {
    height: narrow ? 250 : 280, marginRight: narrow ? 24 : 160,
    x: { label: "racks", domain: [1, all.length], ticks: all.length, tickFormat: (d) => `${d}` },
    y: { type: "log", label: "all-to-all of a layer, relative to one rack", domain: [0.8, most * 1.3], tickFormat: (d) => `${d}x` },
    marks: [
      ...LINES.map((line) => Plot.line(all.filter((d) => d[line.column] !== null), { x: "racks", y: line.column, stroke: colour(line.colour), strokeWidth: line.wide || 1.8, strokeDasharray: line.dash ?? dash(line.colour) })),
      ...ends.map((end) => Plot.text([end], { x: "racks", y: (d) => d[d.line.column], text: (d) => d.line.name, fill: colour(end.line.colour),
        textAnchor: "start", dx: side(end.racks), dy: narrow && end.racks > 3 ? -9 : 0 })),
      point(marks.racks, marks.experts ?? table.board[marks.racks - 1], marks.experts === null ? "quiet" : "network"),
      Plot.tip(all, Plot.pointerX({ x: "racks", y: "board", fill: colour("card"), stroke: colour("line"), fontSize: 12, anchor: "top-left",
        title: (d) => [`${d.racks} racks`, ...LINES.map((line) => `${line.name}: ${d[line.column] === null ? "too few experts" : `${brief(d[line.column])}x`}`)].join("\n") })),
    ],
  });
}

function boxes(table, marks, width) {
  const weights = table.weights[marks.racks - 1];
  const cache = table.kv[marks.racks - 1];
  const wide = Math.ceil(Math.sqrt(marks.chips));
  const high = Math.ceil(marks.chips / wide);
  const across = Math.min(width < 520 ? 4 : 8, table.racks.length);
  const down = Math.ceil(marks.racks / across);
  const chips = d3.range(marks.racks).flatMap((rack) => d3.range(marks.chips).map((n) => ({
    n, x: (rack % across) * (wide + 1) + (n % wide), y: (down - 1 - Math.floor(rack / across)) * (high + 1) + high - 1 - Math.floor(n / wide),
  })));
  const side = (width - 8) / (across * (wide + 1) - 1);
  const held = (n, share) => Math.min(Math.max(share * marks.chips - n, 0), 1);
  const rect = (from, to, more) => Plot.rect(chips, { x1: (d) => d.x + from(d.n) * 0.88, x2: (d) => d.x + to(d.n) * 0.88, y1: (d) => d.y, y2: (d) => d.y + 0.88, ...more });
  const words = [[`■ weights ${brief(weights, "%")}`, "weights"], [`■ KV cache ${brief(cache, "%")}`, "kv"], [marks.fits ? (width < 520 ? "of a rack" : "of the memory of a rack; a box is the memory of a chip") : (width < 520 ? "too much" : "more than the memory"), marks.fits ? "quiet" : "wrong"]];
  return Plot.plot({
    width, height: down * (high + 1) * side + 24, marginTop: 24, marginLeft: 4, marginRight: 4, marginBottom: 0,
    style: { background: "transparent", fontSize: "12px", fontFamily: "inherit", overflow: "visible" },
    x: { axis: null, domain: [0, across * (wide + 1) - 1] }, y: { axis: null, domain: [0, down * (high + 1)] },
    marks: [
      rect(() => 0, () => 1, { fill: colour("card"), stroke: colour(marks.fits ? "line" : "wrong"), strokeWidth: 0.8 }),
      rect(() => 0, (n) => held(n, weights), { fill: colour("weights") }),
      rect((n) => held(n, weights), (n) => held(n, weights + cache), { fill: colour("kv") }),
      ...words.map(([text, name], n) => Plot.text([text], { frameAnchor: "top-left", dy: -18, dx: [0, 116, 236][n], textAnchor: "start", fill: colour(name) })),
    ],
  });
}
