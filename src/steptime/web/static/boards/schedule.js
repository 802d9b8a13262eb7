import { brief, colour, picture, rows } from "../draw.js";

// One row per device, one box per pass: forward dark, backward pale, weight gradients in the colour of weights.
// An overlapping pair has its forward pass above. Boxes of later layer chunks of a device have a stripe.
const LOOK = { F: ["compute", 1], B: ["compute", 0.42], B_in: ["compute", 0.42], W: ["weights", 0.85] };
const KEYS = [["forward", "F"], ["backward", "B"], ["weight gradients", "W"]];

export function draw({ tables, marks }, { width }) {
  const narrow = width < 520;
  const boxes = rows(tables.boxes);
  const high = Math.max(Math.min(34, 400 / marks.devices), 14);
  const pieces = boxes.flatMap((box) => (box.kind === "FB"
    ? [{ ...box, look: LOOK.F, y1: box.device - 0.43, y2: box.device }, { ...box, look: LOOK.B, y1: box.device, y2: box.device + 0.43 }]
    : [{ ...box, look: LOOK[box.kind], y1: box.device - 0.43, y2: box.device + 0.43 }]));
  const room = (width - 80) / (marks.total || 1);
  const named = boxes.filter((box) => (box.end - box.start) * room > (box.back ? 34 : 15) && high > 13);
  const later = boxes.filter((box) => box.chunk > 0 && (box.end - box.start) * room > 4);
  const split = boxes.some((box) => box.kind === "W");
  const shown = KEYS.filter(([, kind]) => kind !== "W" || split);
  const gantt = picture(width, {
    x: { unit: "", label: "time, in forward passes of a device", domain: [0, marks.total || 1], ...(marks.total ? {} : { ticks: [] }) },
    y: { unit: "", label: "", domain: [marks.devices + 0.5, 0.5], ticks: d3.range(1, marks.devices + 1), tickFormat: (n) => `${narrow ? "" : "device "}${n}`, tickSize: 0, grid: false },
    height: high * marks.devices + 64, marginLeft: narrow ? 24 : 62, marginRight: 14, marginTop: 12,
    marks: [
      marks.total ? Plot.rect(d3.range(1, marks.devices + 1), { x1: 0, x2: marks.total, y1: (d) => d - 0.43, y2: (d) => d + 0.43, fill: colour("overhead"), fillOpacity: 0.13 }) : Plot.text(["this schedule cannot run"], { frameAnchor: "middle", fill: colour("quiet"), fontSize: 14 }),
      Plot.rect(pieces, { x1: "start", x2: "end", y1: "y1", y2: "y2", fill: (d) => colour(d.look[0]), fillOpacity: (d) => d.look[1], stroke: colour("paper"), strokeWidth: room < 4 ? 0.3 : 1 }),
      Plot.rect(later, { x1: "start", x2: "end", y1: (d) => d.device + 0.2, y2: (d) => d.device + 0.32, fill: colour("paper"), fillOpacity: 0.75 }),
      Plot.text(named, { x: (d) => (d.start + d.end) / 2, y: "device", text: (d) => (d.back ? `${d.micro}, ${d.back}` : `${d.micro}`), fill: (d) => colour(d.kind === "B" || d.kind === "B_in" ? "ink" : "paper"), fontSize: 11 }),
      Plot.tip(boxes, Plot.pointer({ x: (d) => (d.start + d.end) / 2, y: "device", title: (d) => `device ${d.device}, part ${d.chunk + 1}\n${tables.kinds.words[tables.kinds.kind.indexOf(d.kind)]}\nmicro-batch ${d.micro}${d.back ? ` with ${d.back}` : ""}\n${brief(d.start)} to ${brief(d.end)}`, fill: colour("card"), stroke: colour("line"), fontSize: 12 })),
    ],
  });
  return Object.assign([legend(shown, width, later.length > 0), gantt, others(tables.schedules, marks, width, narrow)], { scale: gantt.scale });
}

// The key has a separate line, because boxes are too small for words.
function legend(shown, width, striped) {
  const words = [...shown.map(([name, kind]) => ({ name, fill: colour(LOOK[kind][0]), opacity: LOOK[kind][1] })), { name: "idle", fill: colour("overhead"), opacity: 0.2 }, ...(striped ? [{ name: "striped: later layers of the device", opacity: 0 }] : [])];
  const place = document.createElement("div");
  place.className = "quiet";
  for (const { name, fill, opacity } of words) {
    const [item, box] = [document.createElement("span"), document.createElement("span")];
    box.className = "swatch";
    Object.assign(box.style, { background: fill, opacity });
    Object.assign(item.style, { marginRight: "1.2em", fontSize: "12.5px", whiteSpace: "nowrap" });
    item.append(...(opacity ? [box] : []), name);
    place.append(item);
  }
  place.style.maxWidth = `${width}px`;
  return place;
}

// Idle time and memory of the same work by every schedule that can run it.
function others(table, marks, width, narrow) {
  const data = rows(table).sort((a, b) => b.idle - a.idle || b.in_flight - a.in_flight);
  const words = (d) => `${brief(d.idle, "%", 2)}${narrow ? "" : " idle"}, ${brief(d.in_flight)} in flight${d.copies > 1 ? `, ${d.copies} copies` : ""}`;
  return picture(width, {
    x: { unit: "%", label: narrow ? "idle share of a step" : "idle share of a step, and micro-batches in flight", domain: [0, Math.max(0.1, ...table.idle)] },
    y: { unit: "", label: "", type: "band", domain: data.map((d) => d.name), tickFormat: String, tickSize: 0, ticks: undefined, grid: false },
    height: 22 * data.length + 66, marginLeft: 84, marginRight: narrow ? 118 : 190, marginTop: 14,
    marks: [
      Plot.barX(data, { x: "idle", y: "name", fill: colour("overhead"), fillOpacity: (d) => (d.name === marks.chosen ? 0.95 : 0.4), insetTop: 3, insetBottom: 3 }),
      Plot.text(data, { x: "idle", y: "name", text: words, textAnchor: "start", dx: 7, fill: (d) => colour(d.name === marks.chosen ? "total" : "quiet"), fontWeight: 500, fontSize: 11.5 }),
    ],
  });
}
