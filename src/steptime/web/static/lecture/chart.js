// Pictures in SVG: a plane with axes, lines with their names, and a point to drag.

const STILL = matchMedia("(prefers-reduced-motion: reduce)");
const DARKER = "var(--paper)";
const colour = (name) => `var(--${name})`;

// A new element; in a group that `redraw` fills, the element that stood at this place before, with its new attributes.
function svg(name, attributes = {}, parent = null, text = "") {
  if (parent?.place !== undefined) return takeOver(name, attributes, parent, text);
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined && value !== null) made.setAttribute(key, value);
  if (text) made.textContent = text;
  parent?.append(made);
  return made;
}
// Fill a group again. Elements that stay keep their layout: a browser makes new ones far slower.
function redraw(group, fill) {
  group.place = 0;
  fill();
  while (group.childNodes.length > group.place) group.lastChild.remove();
  group.place = undefined;
}
function takeOver(name, attributes, parent, text) {
  const old = parent.childNodes[parent.place];
  parent.place += 1;
  if (old?.nodeName !== name) {
    const made = svg(name, attributes, null, text);
    made.given = attributes;
    if (old) old.replaceWith(made); else parent.append(made);
    return made;
  }
  for (const key in old.given) if (!(key in attributes)) old.removeAttribute(key);
  for (const key in attributes) {
    const value = attributes[key];
    if (value === old.given[key]) continue;
    if (value === undefined || value === null) old.removeAttribute(key); else old.setAttribute(key, value);
  }
  old.given = attributes;
  if (old.style.fontSize) old.style.fontSize = "";
  if (old.textContent !== text) old.textContent = text;
  return old;
}
// An attribute or a text that stays is not written again: a browser would lay it out and paint it again.
function put(element, attributes) {
  for (const key in attributes) { const text = String(attributes[key]); if (element.getAttribute(key) !== text) element.setAttribute(key, text); }
}
function putText(place, text) { if (place.textContent !== text) place.textContent = text; }
function label(parent, x, y, text, attributes = {}) {
  return svg("text", { x, y, class: "halo", ...attributes }, parent, text);
}

// Scale of an axis: data to pixels and back.
function scale(low, high, from, to, log = false) {
  const f = log ? Math.log : (v) => v, g = log ? Math.exp : (v) => v;
  const span = f(high) - f(low) || 1;
  const at = (value) => from + (to - from) * (f(value) - f(low)) / span;
  at.invert = (pixel) => g(f(low) + span * (pixel - from) / (to - from));
  at.low = low; at.high = high; at.log = log;
  return at;
}
function ticks(at, count) {
  const { low, high, log } = at;
  if (log && high / low > 20) {
    const all = [];
    for (let power = Math.ceil(Math.log10(low) - 1e-9); power <= Math.log10(high) + 1e-9; power += 1) all.push(10 ** power);
    const every = Math.ceil(all.length / count);
    return all.filter((_, index) => index % every === 0);
  }
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].find((one) => one * power >= rough * 0.999) * power;
  const all = [];
  for (let value = Math.ceil(low / size - 1e-9) * size; value <= high + size * 1e-6; value += size) all.push(Math.abs(value) < size * 1e-6 ? 0 : value);
  return all;
}
// A tick without the unit's plural: 2 ms, 5 k, $0.40, 50 %. Thousands of an axis are all written alike: 1,000 and 10,000, or 1 k and 100 k.
const isLarge = (values) => Math.max(...values.map(Math.abs)) >= 1e5;
function tickText(value, unit, large = false) {
  if (value === 0) return "0";
  if (unit in DATA.scales || unit.startsWith("USD")) return written(value, unit);
  if (value >= 1e15) return `${inDigits(value / 1e12, 5)} T`;
  if (value >= 1e6) return written(value).replace(" million", " M").replace(" billion", " B").replace(" trillion", " T");
  return value >= 1e3 && large ? `${inDigits(value / 1e3, 3)} k` : inDigits(value, 3);
}

const WIDTHS = new Map();

class Plane {
  constructor(root, width, height, margin = {}) {
    this.margin = { top: 30, right: 14, bottom: 40, left: 55, ...margin };
    Object.assign(this, { root, width, height });
    this.back = svg("g", { class: "axes" }, root);
    // Paper behind texts, one path: grid lines end there, so that none crosses a word.
    this.masks = svg("path", { class: "mask" }, root);
    const id = `clip-${Plane.count = (Plane.count || 0) + 1}`;
    const clip = svg("clipPath", { id }, root);
    this.clipBox = svg("rect", {}, clip);
    this.body = svg("g", { "clip-path": `url(#${id})` }, root);
    this.front = svg("g", {}, root);
  }

  place(x, y) {
    const { top, right, bottom, left } = this.margin;
    this.x = scale(x.low, x.high, left, this.width - right, x.log);
    this.y = scale(y.low, y.high, this.height - bottom, top, y.log);
    put(this.clipBox, { x: left, y: top - 6, width: this.width - left - right, height: this.height - top - bottom + 7 });
  }

  mask([x1, y1, x2, y2]) {
    const low = Math.min(y2, this.height - this.margin.bottom - 1), number = (value) => +value.toFixed(1);
    if (x2 <= x1 || low <= y1) return;
    this.masked += `M${number(x1)} ${number(y1)}H${number(x2)}V${number(low)}H${number(x1)}z`;
    this.masks.setAttribute("d", this.masked);
  }

  axes(xAxis, yAxis) {
    this.masked = "";
    this.masks.setAttribute("d", "");
    // Axes that stay are not drawn again.
    const key = JSON.stringify([this.x, this.y, xAxis, yAxis].map((one) => [one.low, one.high, one.log, one.label, one.unit, one.ticks]));
    if (key !== this.drawn) redraw(this.back, () => this.drawAxes(xAxis, yAxis));
    this.drawn = key;
  }

  drawAxes(xAxis, yAxis) {
    const { right, bottom, left } = this.margin;
    const base = this.height - bottom, wide = this.width > 460;
    const yValues = ticks(this.y, this.height > 300 ? 5 : 4), xValues = xAxis.ticks || ticks(this.x, wide ? 6 : 4);
    for (const value of yValues) {
      const y = this.y(value);
      svg("line", { x1: left, x2: this.width - right, y1: y, y2: y, class: value === 0 ? "base" : "grid" }, this.back);
      svg("text", { x: left - 7, y: y + 4, "text-anchor": "end", class: "tick" }, this.back, tickText(value, yAxis.unit || "", isLarge(yValues)));
    }
    svg("line", { x1: left, x2: this.width - right, y1: base, y2: base, class: "base" }, this.back);
    for (const value of xValues) {
      const x = this.x(value);
      svg("line", { x1: x, x2: x, y1: base, y2: base + 5, class: "base" }, this.back);
      const text = xAxis.plain ? String(value) : tickText(value, xAxis.unit || "", isLarge(xValues));
      // A tick at the right end stays inside the picture.
      svg("text", { x: Math.min(x, this.width - 2 - 3.7 * text.length), y: base + 18, "text-anchor": "middle", class: "tick" }, this.back, text);
    }
    svg("text", { x: 0, y: 13, class: "axis" }, this.back, yAxis.label);
    svg("text", { x: this.width - right, y: this.height - 4, "text-anchor": "end", class: "axis" }, this.back, `${xAxis.label} →`);
  }

  path(xs, ys) {
    let text = "", pen = "M";
    for (let n = 0; n < xs.length; n += 1) {
      const x = this.x(xs[n]), y = this.y(ys[n]);
      if (!Number.isFinite(y)) { pen = "M"; continue; }
      text += `${pen}${x.toFixed(1)} ${Math.max(Math.min(y, 5000), -5000).toFixed(1)}`;
      pen = "L";
    }
    return text;
  }

  // Points of a line on the screen, some 5 pixels apart.
  trace(xs, ys) {
    const { top, right, bottom, left } = this.margin, points = [];
    let before = null;
    for (let n = 0; n < xs.length; n += 1) {
      const x = this.x(xs[n]), y = this.y(ys[n]);
      if (!Number.isFinite(y)) { before = null; continue; }
      const count = before ? Math.min(Math.ceil(Math.hypot(x - before[0], y - before[1]) / 5), 80) : 1;
      for (let part = 1; part <= count; part += 1) {
        const [px, py] = before ? [before[0] + (x - before[0]) * part / count, before[1] + (y - before[1]) * part / count] : [x, y];
        if (px >= left - 4 && px <= this.width - right + 4 && py >= top - 12 && py <= this.height - bottom + 4) points.push([px, py]);
      }
      before = [x, y];
    }
    return points;
  }

  // Cost of a text at a place: lines behind it, other texts under it, and what is outside the picture. A cost above `most` is not counted to its end.
  conflicts([x1, y1, x2, y2], boxes, start = 0, most = Infinity) {
    const { top, right, bottom, left } = this.margin;
    const out = Math.max(left + 2 - x1, 0) + Math.max(x2 - (this.width - right + 4), 0) + Math.max(top - 16 - y1, 0) + Math.max(y2 - (this.height - bottom - 2), 0);
    let cost = start + (out > 0 ? 40 + 3 * out : 0);
    for (const [a, b, c, d] of boxes) if (a < x2 + 4 && c > x1 - 4 && b < y2 + 2 && d > y1 - 2) cost += c - a > 2 ? 60 : 5;  // a thin box is an upright
    for (const line of this.traces) {
      if (cost >= most) return cost;
      for (let n = 0; n < line.length; n += 1) {
        const [x, y] = line[n];
        if (x > x1 - 2 && x < x2 + 2 && y > y1 - 2 && y < y2 + 2) cost += 1;
      }
    }
    return cost;
  }

  // Width of a name as it is drawn; 7.9 pixels a character where the picture is not shown.
  nameWidth(name) {
    if (WIDTHS.has(name)) return WIDTHS.get(name);
    const drawn = label(this.front, 0, 0, name, { class: "halo name" }), wide = drawn.getComputedTextLength();
    drawn.remove();
    if (wide > 0) WIDTHS.set(name, wide);
    return wide || 7.9 * name.length;
  }

  // Names of lines beside them: the place of each is the one that covers the fewest lines and texts, first its end.
  names(list, taken = [], traces = list.map(({ xs, ys }) => this.trace(xs, ys))) {
    this.labels ||= svg("g", {}, this.front);
    this.traces = traces;
    this.boxes = [...taken];
    redraw(this.labels, () => this.drawNames(list));
  }

  drawNames(list) {
    const { top, right, bottom, left } = this.margin;
    for (const [index, { name, colour: tint, left: atLeft }] of list.entries()) {
      const points = this.traces[index].filter(([x, y]) => x >= left && x <= this.width - right && y >= top - 1 && y <= this.height - bottom + 1);
      if (!points.length) continue;
      const wide = this.nameWidth(name);
      let best = null;
      // Places farther from the end cost more, so the search ends where they cannot be better.
      for (let step = 0; step <= 16 && !(best?.cost <= 0.6 * step); step += 1) {
        const part = atLeft ? step / 16 : 1 - step / 16;
        const [x, y] = points[Math.round(part * (points.length - 1))];
        for (const [dx, dy] of [[-wide - 4, -8], [6, -8], [-wide - 4, 18], [6, 18], [-wide - 12, 5], [12, 5], [-wide / 2, -12], [-wide / 2, 22]]) {
          const box = [x + dx, y + dy - 12, x + dx + wide, y + dy + 3], cost = this.conflicts(box, this.boxes, 0.6 * step, best?.cost);
          if (!best || cost < best.cost) best = { box, cost };
        }
      }
      this.boxes.push(best.box);
      this.mask(best.box);
      label(this.labels, best.box[0], best.box[3] - 3, name, { fill: colour(`${tint}-text`), class: "halo name" });
    }
  }
}

// --- a chart of numbers against one variable ------------------------------------------------------------------------------

const POINTS = 97;
// Measured runs as decode steps of the domain of this page, at the same sequences per chip.
function runsHere(all) {
  const million = all.rent_per_million;
  return (DATA.runs[state.model]?.[state.system] || []).map(([engine, context, concurrency, seconds, chips]) => ({
    engine, context, concurrency, seconds, chips, batch: concurrency * all.chips / chips, cost: FORMS.cost_per_token({ seconds, batch: concurrency, chips, rent: million }),
  }));
}
const runWords = (one) => `${one.engine}, ${written(one.context, "tokens")}, ${written(one.concurrency, "sequences")} on ${written(one.chips, "chips")}: ${written(one.seconds, "s")}`;

class Chart {
  constructor(root, spec, size) {
    this.spec = spec;
    // The number that a drag of the point changes.
    this.variable = VARIABLES.get(spec.drag || spec.x.value);
    this.plane = new Plane(root, size.width, size.height);
    this.shade = svg("rect", { class: "shade", opacity: 0 }, this.plane.body);
    this.shadeName = label(this.plane.front, 0, 0, "no pass that reads every weight", { class: "halo note", opacity: 0 });
    this.lines = spec.lines.map((line) => ({ ...line, path: svg("path", { class: `line ${line.wide ? "wide" : ""}`, stroke: colour(line.colour), "stroke-dasharray": line.dash, opacity: 0 }, this.plane.body) }));
    this.dots = svg("g", {}, this.plane.body);
    this.marks = svg("g", {}, this.plane.front);
    this.dot = svg("circle", { r: 8, class: "point", role: "slider", tabindex: 0, "aria-label": labelOf(spec.x.value), "aria-valuemin": this.variable.low, "aria-valuemax": this.variable.high }, this.plane.front);
    this.tag = label(this.plane.front, 0, 0, "", { class: "halo tag" });
    this.drag(root);
  }

  domain(all, shown) {
    const { x, y } = this.spec;
    const xs = { low: x.low_of ? all[x.low_of] : x.low, high: x.of ? x.times * all[x.of] : x.high, log: x.log };
    if (xs.high <= xs.low) xs.high = xs.low * 2 + 1;
    // The axis has the point of the page, wherever its slider ends.
    const at = all[x.value];
    if (at > xs.high) xs.high = at * 1.15;
    if (at > 0 && at < xs.low) xs.low = at * 0.85;
    const { xValues, columns } = this.sample(xs, all);
    const runs = y.log ? this.measured(all).map((one) => one.y) : [];
    const within = runs.concat(shown.flatMap((line) => columns[line.value].filter((v, n) => Number.isFinite(v) && xValues[n] >= xs.low)));
    if (!within.length) within.push(1e-3, 1);
    const top = y.of ? y.times * all[y.of] : y.high ?? Math.max(...within) * (y.log ? 1.5 : 1.1);
    const bottom = y.log ? Math.min(...within.filter((v) => v > 0)) / 1.5 : 0;
    return { xs, ys: { low: bottom, high: top > bottom ? top : bottom + 1, log: y.log } };
  }

  sample(xs, all) {
    const names = [...new Set(this.spec.lines.filter((line) => !line.of && this.step.show.includes(line.value)).map((line) => line.value))];
    const extra = (this.spec.uprights || []).map((one) => all[one.value]).filter((v) => Number.isFinite(v) && v > xs.low && v < xs.high);
    // Few whole numbers, such as racks, have no values between them.
    const isWhole = VARIABLES.get(this.spec.x.value)?.whole && !xs.log && xs.high - xs.low <= 16;
    const xValues = isWhole ? range(Math.floor(xs.high) - Math.ceil(xs.low) + 1).map((n) => Math.ceil(xs.low) + n) : Array.from({ length: POINTS }, (_, n) => xs.log ? xs.low * (xs.high / xs.low) ** (n / (POINTS - 1)) : xs.low + (xs.high - xs.low) * n / (POINTS - 1)).concat(extra).sort((a, b) => a - b);
    const columns = deriveColumns(this.base, this.spec.x.value, xValues, names);
    // Lines of the lecture's numbers have names that end in "spoken".
    for (const { value: name, of } of this.spoken) columns[name] = deriveColumns({ ...this.base, ...this.words }, this.spec.x.value, xValues, [of])[of];
    return { xValues, columns };
  }

  // base: variables of the page, with those of a view; words: variables of the lecture.
  draw(step, all, base = state.values, words = {}) {
    Object.assign(this, { base, words, step });
    this.spoken = this.spec.lines.filter((line) => line.of && step.show.includes(line.value));
    const shown = this.lines.filter((line) => step.show.includes(line.value));
    // Axes keep still while a number moves, and settle after.
    if (!this.view || !changing) this.settle(this.domain(all, shown));
    this.paint(all);
  }

  settle(goal) {
    cancelAnimationFrame(this.tween);
    const from = this.view;
    if (!from || STILL.matches || JSON.stringify(from) === JSON.stringify(goal)) { this.view = goal; return; }
    const began = performance.now();
    const mix = (a, b, part, log) => log && a > 0 && b > 0 ? a * (b / a) ** part : a + (b - a) * part;
    const move = (time) => {
      const raw = Math.min((time - began) / 350, 1), part = raw * raw * (3 - 2 * raw);
      this.view = raw >= 1 ? goal : Object.fromEntries(["xs", "ys"].map((key) => [key, { low: mix(from[key].low, goal[key].low, part, goal[key].log), high: mix(from[key].high, goal[key].high, part, goal[key].log), log: goal[key].log }]));
      this.paint(this.all);
      if (raw < 1) this.tween = requestAnimationFrame(move);
    };
    this.tween = requestAnimationFrame(move);
  }

  paint(all) {
    const { plane, spec, step } = this;
    this.all = all;
    plane.place(this.view.xs, this.view.ys);
    plane.axes({ label: spec.x.label, unit: spec.x.unit || "" }, { label: spec.y.label, unit: spec.y.unit });
    const { xValues, columns } = this.sample(this.view.xs, all);
    this.columns = { xValues, columns };
    const named = [];
    for (const line of this.lines) {
      const visible = step.show.includes(line.value);
      put(line.path, { opacity: visible ? 1 : 0, d: visible ? plane.path(xValues, columns[line.value]) : "" });
      if (visible) named.push({ name: line.name, colour: line.colour, xs: xValues, ys: columns[line.value], left: line.left ?? (line.wide && step.show.length > 1) });
    }
    const { top, right, bottom, left } = plane.margin;
    // Nothing is below the floor.
    const floorY = step.floor && spec.below ? plane.y(all[spec.below]) : null;
    put(this.shade, { x: left, y: floorY ?? 0, width: plane.width - left - right, height: floorY === null ? 0 : Math.max(plane.height - bottom - floorY, 0), opacity: floorY === null ? 0 : 1 });
    put(this.shadeName, { x: left + 14, y: plane.height - bottom - 10, opacity: floorY === null ? 0 : 1 });
    const boxes = [];
    redraw(this.marks, () => this.drawMarks(all, boxes));
    this.runs(all);
    const traces = named.map(({ xs, ys }) => plane.trace(xs, ys));
    this.drawPoint(all, boxes, traces);
    plane.names(named, boxes, traces);
  }

  // Uprights and points with their names; `boxes` gets the places that they take.
  drawMarks(all, boxes) {
    const { plane, spec, step } = this, { top, right, bottom, left } = plane.margin;
    const nameMark = (value, name) => {
      const x = plane.x(value);
      if (!(x >= left && x <= plane.width - right)) return;
      svg("line", { x1: x, x2: x, y1: top, y2: plane.height - bottom, class: "upright" }, this.marks);
      // Characters are some 7 pixels wide.
      const end = x + 7 * name.length > plane.width - right && x - left > plane.width - right - x;
      const room = end ? x - left : plane.width - right - x;
      // A name that is too long for one row stands in two.
      const rows = 7 * name.length > room ? name.split(/(?<= =) /) : [name], wide = 7 * Math.max(...rows.map((row) => row.length));
      let low = top + 6;
      const box = () => [end ? x - 5 - wide : x + 5, low - 12, end ? x - 5 : x + 5 + wide, low + 3 + 15 * (rows.length - 1)];
      const isTaken = ([a, b, c, d]) => boxes.some(([e, f, g, h]) => g - e > 2 && a < g && c > e && b < h && d > f);
      while (low < top + 80 && isTaken(box())) low += 6;
      for (const [n, row] of rows.entries()) label(this.marks, x + (end ? -5 : 5), low + 15 * n, row, { "text-anchor": end ? "end" : "start", class: "halo note" });
      plane.mask(box());
      boxes.push([x - 1, top, x + 1, plane.height - bottom], box());
    };
    for (const one of spec.uprights || []) if (step.show.includes(one.shows) && Number.isFinite(all[one.value])) nameMark(all[one.value], `${one.name} = ${written(all[one.value], unitOf(one.value), ABOUT.get(one.value)?.digits)}`);
    for (const one of spec.ticks || []) nameMark(one.at, one.name);
    // Other points of a line, at fixed places: they stay where a drag moves the point of the page.
    for (const one of spec.points || []) {
      if (!step.show.includes(one.shows)) continue;
      const x = plane.x(one.at), y = plane.y(all[one.value]), words = `${one.name}: ${written(all[one.value], spec.y.unit)}`;
      svg("circle", { cx: x, cy: y, r: 5.5, fill: colour("weights"), class: "dot" }, this.marks);
      label(this.marks, x + 11, y + 4, words, { class: "halo tag" });
      plane.mask([x + 11, y - 9, x + 11 + 8 * words.length, y + 8]);
      boxes.push([x - 7, y - 7, x + 7, y + 7], [x + 11, y - 9, x + 11 + 8 * words.length, y + 8]);
    }
  }

  // The point of the page with its number.
  drawPoint(all, boxes, traces) {
    const { plane, spec, step } = this, { top, right, bottom, left } = plane.margin;
    const at = all[spec.x.value], y = all[step.point];
    // A point outside the picture stays at its edge, with an arrow to where it is.
    const trueX = plane.x(at), trueY = plane.y(y), visible = Number.isFinite(trueX) && Number.isFinite(trueY);
    const px = Math.min(Math.max(trueX, left), plane.width - right), py = Math.min(Math.max(trueY, top), plane.height - bottom);
    const arrow = trueX > px + 2 ? "→ " : trueX < px - 2 ? "← " : trueY < py - 2 ? "↑ " : trueY > py + 2 ? "↓ " : "";
    for (const one of [this.dot, this.tag]) put(one, { display: visible ? "inline" : "none" });
    if (visible) {
      put(this.dot, { cx: px, cy: py });
      putText(this.tag, arrow + written(y, unitOf(step.point) || spec.y.unit));
      // The number stands where it covers the fewest lines; the names of the lines make room for it.
      // A measured run counts as much as a line through the number.
      plane.traces = [...traces, this.measured(all).flatMap((one) => range(8).map(() => [plane.x(one.x), plane.y(one.y)]))];
      const wide = 8 * this.tag.textContent.length, end = px > plane.width * 0.62;
      const spots = [[13, 22], [-13 - wide, -12], [13, -12], [-13 - wide, 22], [-wide / 2, -18], [-wide / 2, 30], [13, 44], [-13 - wide, 44]].map(([dx, dy]) => [px + dx, Math.max(py + dy, top + 4)]);
      if (end) spots.unshift(spots.splice(1, 1)[0]);
      const costs = spots.map(([x, base], n) => plane.conflicts([x, base - 13, x + wide, base + 4], boxes) + 0.5 * n), best = spots[costs.indexOf(Math.min(...costs))];
      put(this.tag, { x: best[0], y: best[1] });
      plane.mask([best[0], best[1] - 13, best[0] + wide, best[1] + 4]);
      boxes.push([best[0], best[1] - 13, best[0] + wide, best[1] + 4], [px - 10, py - 10, px + 10, py + 10]);
    }
    put(this.dot, { "aria-valuenow": at, "aria-valuetext": `${written(at, this.variable.unit)}: ${written(y, unitOf(step.point) || spec.y.unit)}` });
  }

  // Measured runs of this model and system: their place and words; those of nearly the same context are darker.
  measured(all) {
    const { runs, x } = this.spec;
    if (!runs || !this.step.show.includes("runs") || !isPair(state.values)) return [];
    return runsHere(all).map((one) => ({ ...one, x: x.value === "context" ? one.context : one.batch, y: runs === "cost" ? one.cost : one.seconds,
      near: Math.abs(Math.log(x.value === "context" ? one.batch / all.batch : one.context / all.context)) < 0.7 }));
  }

  runs(all) {
    const dots = this.measured(all).map((one) => [{ cx: this.plane.x(one.x).toFixed(1), cy: this.plane.y(one.y).toFixed(1), r: one.near ? 5 : 3.5, class: "run", opacity: one.near ? 1 : 0.5 }, runWords(one)]);
    const key = JSON.stringify(dots);
    if (key === this.drawnRuns) return;
    this.drawnRuns = key;
    this.dots.replaceChildren();
    for (const [place, words] of dots) svg("title", {}, svg("circle", place, this.dots), words);
  }

  drag(root) {
    let held = false;
    const move = (event) => {
      const box = root.getBoundingClientRect();
      const value = rounded(this.variable, this.plane.x.invert((event.clientX - box.left) * this.plane.width / box.width));
      change({ [this.variable.name]: value }, false);
    };
    root.addEventListener("pointerdown", (event) => {
      const box = this.dot.getBoundingClientRect();
      if (Math.hypot(event.clientX - box.x - box.width / 2, event.clientY - box.y - box.height / 2) > 28) return;
      held = true;
      root.setPointerCapture(event.pointerId);
      event.preventDefault();
      this.dot.focus({ preventScroll: true });
    });
    root.addEventListener("pointermove", (event) => { if (held) move(event); });
    root.addEventListener("touchmove", (event) => { if (held) event.preventDefault(); }, { passive: false });
    for (const name of ["pointerup", "pointercancel"]) root.addEventListener(name, () => { if (held) { held = false; change({}, true); } });
    this.dot.addEventListener("keydown", (event) => stepByKey(event, this.variable));
  }

  table() {
    const shown = this.lines.filter((line) => this.step.show.includes(line.value));
    const { xValues, columns } = this.columns;
    const places = xValues.map((_, n) => n).filter((n) => n % 8 === 0 || xValues.length < 20);
    return {
      head: [this.spec.x.label, ...shown.map((line) => line.name)],
      rows: places.map((n) => [written(xValues[n], this.variable.unit), ...shown.map((line) => written(columns[line.value][n], this.spec.y.unit))]),
    };
  }
}

// Arrow keys move by one unit, or by a hundredth of the track; Page keys by a tenth.
function stepByKey(event, one) {
  const sign = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 }[event.key];
  const value = state.values[one.name];
  let next = null;
  if (sign) {
    const moved = fromTrack(one, Math.min(Math.max(toTrack(one, value) + sign / 100, 0), 1));
    next = one.whole && Math.abs(moved - value) < 1 ? rounded(one, value + Math.sign(sign)) : moved;
  } else if (event.key === "Home") next = one.low;
  else if (event.key === "End") next = one.high;
  if (next === null) return;
  event.preventDefault();
  change({ [one.name]: next }, true);
}

// --- values of chips by year ------------------------------------------------------------------------------------------------

class Years {
  constructor(root, spec, size) {
    this.spec = spec;
    this.plane = new Plane(root, size.width, size.height);
    this.group = svg("g", {}, this.plane.front);
  }

  draw(step, all, base = state.values) {
    const { plane, spec } = this, whose = base === state.values ? "this page" : "lecture's numbers", rows = DATA.tables[spec.table];
    const first = Math.min(...rows.map((one) => one.year)), last = Math.max(...rows.map((one) => one.year));
    const high = spec.top || Math.max(spec.near * 1.5, ...rows.map((one) => one.value)) * 1.12;
    plane.place({ low: first - 0.4, high: last + (plane.width > 460 ? 1.3 : 1.9) }, { low: 0, high });
    plane.axes({ label: "year of the chip", ticks: Array.from({ length: last - first + 1 }, (_, n) => first + n).filter((y, n) => plane.width > 460 || n % 2 === 0), plain: true }, { label: spec.label, unit: spec.unit });
    redraw(this.group, () => this.fill(all, rows, whose));
  }

  fill(all, rows, whose) {
    const { plane, spec } = this, { left, right, top } = plane.margin;
    // Dots, lines and their names are obstacles for the names of chips, which are left out where they would cover one.
    const placed = rows.map((one) => [plane.x(one.year) - 6, plane.y(one.value) - 6, plane.x(one.year) + 6, plane.y(one.value) + 6]);
    // Boxes lower than `least` pixels, such as dots and lines, may be crossed.
    const isFree = (x, y, wide, tall, least = 0) => x > left - 2 && x + wide < plane.width && placed.every(([a, b, c, d]) => d - b < least || x > c || x + wide < a || y > d || y + tall < b);
    const across = (value, names, tint, dashed, atRight) => {
      const y = plane.y(value);
      if (y < top - 6) return;
      svg("line", { x1: left, x2: plane.width - right, y1: y, y2: y, stroke: colour(tint), "stroke-width": 2, "stroke-dasharray": dashed ? "5 5" : null }, this.group);
      // A short name where the long one would cover a dot.
      const spots = names.flatMap((name) => {
        const wide = 7.4 * name.length, ends = [left + 6, plane.width - right - wide];
        return (atRight ? ends.reverse() : ends).flatMap((x) => (atRight ? [5, -20] : [-20, 5]).map((dy) => [x, y + dy, wide, name]));
      });
      const [x, above, wide, name] = spots.find(([a, b, c]) => isFree(a, b, c, 15)) || spots[spots.length - 1];
      plane.mask([x, above, x + wide, above + 15]);
      placed.push([x, above, x + wide, above + 15], [left, y - 1, plane.width - right, y + 1]);
      label(this.group, x, above + 12, name, { fill: colour(`${tint}-text`), class: "halo name" });
    };
    const value = all[spec.value || "drain"];
    across(spec.near, [spec.near_name], "quiet", true, true);
    if (Math.abs(value / spec.near - 1) > 0.1) across(value, [`${whose}: ${written(value, spec.unit)}`, whose], "accent", false, false);
    for (const one of rows) {
      const x = plane.x(one.year), y = plane.y(one.value);
      svg("circle", { cx: x, cy: y, r: 5.5, fill: colour("weights"), class: "dot" }, this.group);
      const long = 7.4 * one.name.length;
      const spots = [[-8, 2, -18, 9, -25], [-34, 20, -44, 32, -56, 44, -68, 58]].flatMap((steps) => [x + 10, x - 10 - long, x - long / 2].flatMap((a) => steps.map((dy) => [a, y + dy])));
      const inside = spots.filter(([a, b]) => b > top - 14 && b + 15 < plane.height - plane.margin.bottom && isFree(a, b, long, 15));
      // A name is nearer to its own dot than to any other.
      const distance = (other, [a, b]) => Math.hypot(Math.max(a - plane.x(other.year), plane.x(other.year) - a - long, 0), Math.max(b - plane.y(other.value), plane.y(other.value) - b - 15, 0));
      const isNear = (at) => rows.every((other) => other === one || distance(other, at) > distance(one, at));
      // A name far from its dot has a line to it, which crosses no other name where there is room.
      const lead = ([a, b]) => (b < y - 30 || b > y + 14 ? { x1: x, y1: y + (b < y ? -6 : 6), x2: Math.min(Math.max(x, a + 4), a + long - 4), y2: b < y ? b + 15 : b } : null);
      const isClear = (at) => { const to = lead(at); return !to || range(9).every((n) => isFree(to.x1 + (to.x2 - to.x1) * n / 8, to.y1 + (to.y2 - to.y1) * n / 8, 0, 0, 15)); };
      const spot = inside.find((at) => isNear(at) && isClear(at)) || inside.find(isNear) || inside[0];
      if (!spot) continue;
      if (lead(spot)) svg("line", { ...lead(spot), class: "base" }, this.group);
      plane.mask([spot[0], spot[1], spot[0] + long, spot[1] + 15]);
      placed.push([spot[0], spot[1], spot[0] + long, spot[1] + 15]);
      label(this.group, spot[0], spot[1] + 12, one.name, { class: "halo small" });
    }
  }

  table() {
    return { head: ["chip", "year", this.spec.title], rows: DATA.tables[this.spec.table].map((one) => [one.name, one.year, written(one.value, this.spec.unit)]) };
  }
}
