import { brief, colour, hover, lines, picture, point, rows, upright } from "../draw.js";

// Share of the output that one flipped bit changes, by round; below it, activation memory of stacks of layers.
const CIPHERS = [
  { column: "aes", name: "AES", colour: "compute", wide: 2.4, up: -9 },
  { column: "feistel", name: "Feistel", colour: "total", wide: 2.4, dash: "7 3", up: 5 },
  { column: "arx", name: "Speck (ARX)", colour: "weights", wide: 2, up: 19 },
  { column: "rows", name: "AES without ShiftRows", colour: "network", wide: 1.6, up: -9 },
  { column: "network", name: "network", colour: "kv", wide: 2, up: -5 },
  { column: "columns", name: "AES without MixColumns", colour: "overhead", wide: 1.6, up: 5 },
];
const STACKS = [
  { column: "plain", name: "plain", colour: "weights" },
  { column: "checkpointed", name: "checkpoints", colour: "quiet", dash: "5 4" },
  { column: "reversible", name: "reversible", colour: "total", dash: null, wide: 2.6 },
];

export const drag = { input: "rounds", axis: "x" };

export function draw({ tables, marks }, { width }) {
  const narrow = width < 520;
  const { rounds, depths } = tables;
  const margin = narrow ? 88 : 124;
  const data = rows(rounds);
  const words = (one) => (narrow ? one.name.replace("AES without ShiftRows", "no ShiftRows").replace("AES without MixColumns", "no MixColumns") : one.name);
  const end = (one) => data.filter((d) => d[one.column] !== null).at(-1);
  const ciphers = picture(width, {
    x: { unit: "", label: "rounds of a cipher, layers of a network", domain: [1, 16], ticks: narrow ? [1, 4, 8, 12, 16] : d3.range(1, 17), tickFormat: String },
    y: { unit: "%", label: "bits that one flipped bit changes", domain: [0, 0.55], ticks: [0, 0.125, 0.25, 0.375, 0.5], tickFormat: (given) => `${100 * given} %` },
    height: narrow ? 290 : 350, marginRight: margin,
    marks: [
      ...upright(marks.rounds, ""),
      ...CIPHERS.map((one) => Plot.line(data.filter((d) => d[one.column] !== null), { x: "round", y: one.column, stroke: colour(one.colour), strokeWidth: one.wide, strokeDasharray: one.dash ?? null })),
      ...CIPHERS.map((one) => Plot.dot(data.filter((d) => d[one.column] !== null), { x: "round", y: one.column, r: 2.2, fill: colour(one.colour) })),
      ...CIPHERS.map((one) => Plot.text([end(one)], { x: "round", y: one.column, text: [words(one)], dx: 9, dy: one.up, textAnchor: "start", fill: colour(one.colour), fontSize: 12 })),
      ...hover(rounds, "round", CIPHERS, { unit: "%" }),
      point(marks.rounds, marks.feistel, "total"),
    ],
  });
  const least = Math.min(...depths.reversible, ...depths.plain);
  const most = Math.max(...depths.plain);
  const memory = picture(width, {
    x: { type: "log", base: 2, unit: "", label: "layers of the network", domain: d3.extent(depths.layers), ticks: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512].filter((_, n) => !narrow || n % 3 === 0), tickFormat: String },
    y: { type: "log", unit: "B", label: "activations of a chip", domain: [least / 1.5, most * 1.3] },
    height: 250, marginRight: margin,
    marks: [
      ...lines(depths, "layers", STACKS),
      Plot.ruleX([{}], { x: marks.layers, y1: marks.reversible, y2: marks.plain, stroke: colour("quiet"), strokeDasharray: "3 4" }),
      Plot.dot([marks.plain, marks.reversible], { x: () => marks.layers, y: (d) => d, r: 4, fill: (d) => colour(d === marks.plain ? "weights" : "total") }),
      Plot.text([`${brief(marks.plain, "B", 2)}`], { x: marks.layers, y: marks.plain, dx: -8, dy: -8, textAnchor: "end", fill: colour("weights"), fontSize: 12 }),
      Plot.text([`${brief(marks.reversible, "B", 2)}`], { x: marks.layers, y: marks.reversible, dy: -10, dx: 8, textAnchor: "start", fill: colour("total"), fontSize: 12 }),
      ...hover(depths, "layers", STACKS, { unit: "B" }),
    ],
  });
  return Object.assign([ciphers, memory], { scale: ciphers.scale });
}
