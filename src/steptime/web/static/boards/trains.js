import { colour, brief, picture, point } from "../draw.js";

// Each request is a line: pale while it waits, thick while it runs. Below it, the latency of requests.
export const drag = { input: "step", axis: "x", scale: (seconds) => 1000 * seconds };

export function draw({ tables, marks }, { width }) {
  const { requests, trains, waits } = tables;
  const data = requests.number.map((number, n) => ({ number, arrival: requests.arrival[n], departure: requests.departure[n], end: requests.end[n] }));
  const thick = data.length > 180 ? 1 : data.length > 70 ? 1.6 : 2.6;
  const rows = Math.max(marks.height * 1.12, ...requests.number);
  const timetable = picture(width, {
    x: { unit: "s", label: "time", domain: [0, marks.shown] },
    y: { unit: "", label: "request", domain: [rows, 0], grid: false },
    height: width < 520 ? 280 : 330,
    marks: [
      Plot.ruleX(trains.departure, { stroke: colour("quiet"), strokeDasharray: "3 4" }),
      Plot.ruleY(data, { x1: "arrival", x2: "departure", y: "number", stroke: colour("overhead"), strokeWidth: thick, strokeOpacity: 0.65, clip: true }),
      Plot.ruleY(data, { x1: "departure", x2: "end", y: "number", stroke: colour("compute"), strokeWidth: thick, clip: true }),
      Plot.dot(data, { x: "arrival", y: "number", r: thick, fill: colour("total"), clip: true }),
      Plot.text(["waits"], { x: marks.shown * 0.985, frameAnchor: "top", lineAnchor: "top", dy: 8, fill: colour("overhead"), textAnchor: "end", fontSize: 12, fontWeight: 600, stroke: colour("paper"), strokeWidth: 4 }),
      Plot.text(["runs"], { x: marks.shown * 0.985, frameAnchor: "top", lineAnchor: "top", dy: 23, fill: colour("compute"), textAnchor: "end", fontSize: 12, fontWeight: 600, stroke: colour("paper"), strokeWidth: 4 }),
      Plot.text(["departs"], { x: marks.step, frameAnchor: "bottom", dy: -6, dx: 10, textAnchor: "start", fill: colour("quiet"), fontSize: 11.5 }),
      Plot.tip(data, Plot.pointer({ x: "departure", y: "number", title: (d) => `request ${d.number}\nwaits ${brief(d.departure - d.arrival, "s")}\nruns ${brief(d.end - d.departure, "s")}`, fill: colour("card"), stroke: colour("line"), fontSize: 12 })),
      point(marks.step, rows, "total"),
    ],
  });
  const times = waits.share.map((share, n) => ({ share, simulated: waits.simulated[n], closed: waits.closed[n] }));
  const last = times[times.length - 1];
  const far = Math.max(last.closed, last.simulated) * 1.06;
  const middle = times[Math.round(times.length * 0.3)];
  const latency = picture(width, {
    x: { unit: "s", label: "latency from arrival to the end of the step", domain: [0, far] },
    y: { unit: "%", label: "share of finished requests", domain: [0, 1] },
    height: 220,
    marks: [
      Plot.line(times, { x: "closed", y: "share", stroke: colour("total"), strokeWidth: 1.6, strokeDasharray: "5 4" }),
      Plot.line(times, { x: "simulated", y: "share", stroke: colour("compute"), strokeWidth: 2.6 }),
      Plot.text(marks.full > 1 ? [] : ["while batches are not full:", "between one and two steps"], { x: middle.closed, y: (_, n) => 0.62 - 0.11 * n, dx: -14, textAnchor: "end", fill: colour("total"), fontSize: 11.5, filter: () => width >= 520 }),
      Plot.text(["simulated"], { x: marks.simulated_mean, y: 0.32, dx: 14, textAnchor: "start", fill: colour("compute"), fontSize: 12 }),
      Plot.dot([{ x: marks.mean }], { x: "x", y: 0.5, r: 4, fill: colour("total") }),
      Plot.text([marks.full > 1 ? "closed form" : `mean ${brief(marks.mean, "s")}`], { x: marks.mean, y: 0.5, dx: 12, dy: 8, textAnchor: "start", fontSize: 11.5, fill: colour("total"), stroke: colour("paper"), strokeWidth: 4 }),
    ],
  });
  return Object.assign([timetable, latency], { scale: timetable.scale });
}
