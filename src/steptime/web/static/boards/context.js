import { bounds, brief, colour, ghost, hover, lines, picture, point, RESOURCES, upright } from "../draw.js";

// Step time, and the price of a token, against the context.
const PARTS = [
  ...RESOURCES,
  { column: "total", name: "step", colour: "total", wide: 2.6 },
];

export const drag = { input: "context", axis: "x" };

export function draw({ tables, marks }, { width, before }) {
  const { steps, prices } = tables;
  const shown = PARTS.filter((part) => steps[part.column].some((seconds) => seconds > 0));
  const least = Math.min(...steps.weights.filter((seconds) => seconds > 0), ...steps.total) / 10;
  const most = Math.max(...steps.upper);
  const domain = d3.extent(steps.context);
  const price = new Map(prices.seconds.map((seconds, n) => [Math.round(Math.log10(seconds)), prices.usd[n]]));
  const both = (seconds) => {
    const usd = price.get(Math.round(Math.log10(seconds)));
    return `${brief(seconds, "s", 2)}${usd ? `\n${brief(usd, "USD", width < 520 ? 1 : 2)}` : ""}`;
  };
  return picture(width, {
    marginLeft: 62,
    x: { type: "log", label: "tokens of context", domain },
    y: { type: "log", unit: "s", label: "step time, and price per million tokens", domain: [least, most], ticks: prices.seconds.filter((at) => at >= least && at < most / 1.5), tickFormat: both },
    marks: [
      ...(marks.wall ? [Plot.rect([0], { x1: marks.wall, x2: domain[1], y1: least, y2: most, fill: colour("band") })] : []),
      ...bounds(steps, "context"),
      ...ghost(before, "steps", "context", "total"),
      ...upright(marks.knee, "L*", { top: width < 520 ? 28 : 0 }),
      ...upright(marks.wall, "memory is full", { left: marks.wall > 20000, top: 14 }),
      ...lines(steps, "context", shown.map((part) => ({ ...part, above: least }))),
      point(marks.context, marks.total),
      ...hover(steps, "context", shown, { unit: "s" }),
    ],
  });
}
