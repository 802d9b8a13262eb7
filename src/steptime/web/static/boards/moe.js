import { colour, ghost, hover, lines, picture, point } from "../draw.js";

// Gain of a mixture by several laws, its weights and its price, relative to a dense model of its active parameters.
export const drag = { input: "experts", axis: "x" };

export function draw({ tables, marks }, { width, before }) {
  const { mixtures } = tables;
  const laws = Object.keys(marks.names).filter((law) => mixtures[law]);
  const called = (law) => (width < 520 ? marks.names[law].split(" ")[0] : marks.names[law]);
  const look = (law) => ({ name: called(law), colour: law === marks.law ? "total" : "quiet", wide: law === marks.law ? 2.8 : 1.4 });
  const domain = d3.extent(mixtures.experts);
  const others = [
    { column: "weights", name: "weights", colour: "weights" },
    { column: "price", name: width < 520 ? "price" : "price of a token", colour: "money", dash: "8 3" },
  ];
  return picture(width, {
    marginRight: width < 520 ? 84 : 124,
    x: { type: "log", label: "experts", domain, ticks: [1, 4, 16, 64, 256, 1024], tickFormat: d3.format(","), base: 2 },
    y: { type: "log", unit: "", label: "relative to a dense model of the same active parameters", domain: [0.8, 1400], tickFormat: (times) => `${d3.format(",")(times)}x` },
    marks: [
      ...ghost(before?.marks.law === marks.law ? before : null, "mixtures", "experts", marks.law),
      ...lines(mixtures, "experts", others),
      ...lines(mixtures, "experts", laws.map((law) => ({ column: law, dash: "1 4", ...look(law) }))),
      ...laws.flatMap((law) => lines(mixtures, "experts", [{ column: `${law}, fitted`, dash: null, ...look(law) }]).slice(0, 1)),
      ...(marks.other.gain ? [
        Plot.dot([marks.other], { x: "experts", y: "gain", symbol: "times", r: 4, stroke: colour("quiet") }),
        Plot.text([called(marks.other.law)], { x: marks.other.experts, y: marks.other.gain, dx: 8, textAnchor: "start", fill: colour("quiet"), fontSize: 11.5 }),
      ] : []),
      ...(marks.gain ? [point(marks.experts, marks.gain)] : []),
      ...hover(mixtures, "experts", [...laws.map((law) => ({ column: law, name: marks.names[law] })), ...others]),
    ],
  });
}
