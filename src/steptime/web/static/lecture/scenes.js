// Scenes that move: each draws its state at a time of its own, so that it plays, is scrubbed, and stands still.

// Numbers that repeat: the same scene at each visit.
function randomFrom(seed) {
  let at = seed >>> 0;
  return () => { at = (at * 1664525 + 1013904223) >>> 0; return at / 4294967296; };
}
const range = (count) => Array.from({ length: count }, (_, n) => n);
const ease = (t) => { const held = Math.min(Math.max(t, 0), 1); return held * held * (3 - 2 * held); };

class Scene {
  constructor(root, spec, size) {
    Object.assign(this, { root, spec, ...size, time: STILL.matches ? this.still : 0 });
    this.group = svg("g", {}, root);
  }

  // Seconds of one play, the time that a still picture shows, and what is drawn at a time.
  get seconds() { return 8; }
  get still() { return 0.7; }
  draw(step, all, base = state.values) { Object.assign(this, { step, all, base }); this.paint(); }
  paint() { redraw(this.group, () => this.frame(this.time)); }
  // A character is some 0.56 of its size wide, in bold 0.62; long words shrink to the width of a phone.
  text(x, y, words, more = {}) {
    const made = label(this.group, x, y, words, more), middle = more["text-anchor"] === "middle";
    const room = middle ? 2 * Math.min(x, this.width - x) : this.width - x, size = room / words.length / (more.class?.includes("name") ? 0.62 : 0.56);
    if (more["text-anchor"] !== "end" && size < 13) made.style.fontSize = `${Math.max(size, 10)}px`;
    return made;
  }
  // A plane with axes behind what is drawn.
  makePlane() {
    this.plane ||= new Plane(this.root, this.width, this.height);
    this.root.insertBefore(this.group, this.plane.front);
  }
  box(x, y, width, height, fill, more = {}) { return svg("rect", { x, y, width: Math.max(width, 0), height: Math.max(height, 0), rx: 3, fill, ...more }, this.group); }
  // Many boxes of one kind as one path, each [x, y, width, height]: a browser draws it far faster than many elements.
  boxes(list, round, attributes) {
    const number = (value) => +value.toFixed(2);
    const one = ([x, y, width, height]) => {
      const wide = Math.max(width, 0.3), tall = Math.max(height, 0.3), r = number(Math.min(round, wide / 2, tall / 2)), across = number(wide - 2 * r), down = number(tall - 2 * r);
      return `M${number(x + r)} ${number(y)}h${across}a${r} ${r} 0 0 1 ${r} ${r}v${down}a${r} ${r} 0 0 1 ${-r} ${r}h${-across}a${r} ${r} 0 0 1 ${-r} ${-r}v${-down}a${r} ${r} 0 0 1 ${r} ${-r}z`;
    };
    if (list.length) svg("path", { d: list.map(one).join(""), ...attributes }, this.group);
  }
}

// --- trains ----------------------------------------------------------------------------------------------------------------

class Trains extends Scene {
  get seconds() { return 12; }
  get still() { return 0.62; }

  frame(time) {
    const { width, height, all } = this, TRIPS = 6;
    const mean = all.arrivals * all.interval, random = randomFrom(7);
    // Arrivals of each interval: a Poisson process of the rate.
    let clock = 0;
    const people = [];
    while (clock < TRIPS + 1 && people.length < 4000) { clock -= Math.log(1 - random()) / Math.max(mean, 1e-6); people.push(clock); }
    const at = time * TRIPS;
    const rides = [];
    let boarded = 0;
    for (let trip = 1; trip <= TRIPS + 1; trip += 1) {
      const ready = people.filter((one) => one < trip).length - boarded;
      const riders = Math.min(ready, all.seats);
      rides.push({ trip, riders, left: ready - riders });
      boarded += riders;
    }
    const platform = width * 0.26, rail = height * 0.6, columns = Math.ceil(all.seats / 2);
    const cell = Math.max(Math.min((width * 0.37 - 14) / columns, height * 0.07), 3.2), long = columns * cell + 14, tall = 2 * cell + 12;
    svg("line", { x1: 0, x2: width, y1: rail + tall / 2 + 5, y2: rail + tall / 2 + 5, class: "rail" }, this.group);
    svg("path", { d: range(Math.floor(width / 16)).map((n) => `M${n * 16 + 4} ${rail + tall / 2 + 5}v6`).join(""), class: "grid" }, this.group);
    const drawTrain = (x, riders) => {
      this.box(x, rail - tall / 2, long, tall, colour("card"), { stroke: colour("ink"), "stroke-width": 1.6, rx: 5 });
      const seats = range(all.seats).map((seat) => [x + 7 + Math.floor(seat / 2) * cell, rail - tall / 2 + 6 + (seat % 2) * cell, cell - 1.5, cell - 1.5]);
      this.boxes(seats.slice(0, riders), 2, { fill: colour("accent") });
      this.boxes(seats.slice(riders), 2, { fill: "none", stroke: colour("line") });
    };
    for (const { trip, riders } of rides) {
      const since = at - trip;
      if (since < -1 || since > 2.6) continue;
      // A train leaves on schedule; the next one comes in when it is gone, and waits.
      const x = since < 0 ? platform - (1 - ease((since + 0.65) * 4)) * (platform + long) : platform + ease(since / 0.5) * width * 0.42 + Math.max(since - 0.5, 0) * width * 0.5;
      drawTrain(x, since < 0 ? 0 : riders);
      if (since >= 0 && x + long / 2 < width - 32) this.text(x + long / 2, rail - tall / 2 - 10, `${riders} of ${all.seats}`, { "text-anchor": "middle", class: "halo small" });
    }
    const next = Math.floor(at) + 1, gone = rides.filter((one) => one.trip <= at).reduce((sum, one) => sum + one.riders, 0);
    const waiting = people.filter((one) => one < at).length - gone;
    const apart = Math.min(13, (platform - 20) / 9.5);
    for (const n of range(Math.min(waiting, 150))) svg("circle", { cx: platform - 14 - (n % 10) * apart, cy: rail - tall / 2 - 34 - Math.floor(n / 10) * apart, r: 0.39 * apart, fill: colour("accent") }, this.group);
    this.text(platform - 10, rail - tall / 2 - 12, `${waiting} wait`, { "text-anchor": "end", class: "halo name" });
    this.text(14, 22, `next departure in ${written((next - at) * all.interval, "s")}`, { class: "halo name" });
    this.text(14, 42, `an interval of ${written(all.interval, "s")}, in slow motion`, { class: "halo note" });
    const taken = Math.min(mean / all.seats, 1);
    this.text(14, height - 40, mean > all.seats ? "More people arrive than seats leave: the queue grows." : `${inDigits(100 * taken, 2)} % of the seats are taken on average.`, { class: "halo note" });
    this.text(14, height - 20, `worst case: wait ${written(all.interval, "s")} + ride ${written(all.interval, "s")} = ${written(all.worst, "s")}`, { class: "halo note" });
  }

  table() {
    const { all } = this;
    return { head: ["number", "value"], rows: [["interval", written(all.interval, "s")], ["people per interval", inDigits(all.arrivals * all.interval, 3)], ["seats", all.seats], ["worst wait", written(all.worst, "s")], ["mean wait", written(all.mean, "s")]] };
  }
}

// --- tokens on their way to experts -----------------------------------------------------------------------------------------

class Rack extends Scene {
  get seconds() { return 5 + 1.2 * Math.min(this.all?.exchange || 1, 6); }

  frame(time) {
    const { width, height, all } = this, racks = all.racks;
    const across = racks <= 2 ? racks : racks <= 4 ? 2 : 4, down = Math.ceil(racks / across);
    const gap = 26, wide = (width - gap * (across + 1)) / across, tall = (height - 74 - gap * down) / down;
    const cell = Math.min(wide / 8.6, tall / 8.6), chip = cell * 0.74, side = cell * 8;
    const corner = (rack) => [gap + (rack % across) * (wide + gap) + (wide - side) / 2, 14 + Math.floor(rack / across) * (tall + gap) + (tall - side) / 2];
    const place = (rack, index) => { const [x, y] = corner(rack); return [x + (index % 8) * cell + cell / 2, y + Math.floor(index / 8) * cell + cell / 2]; };
    for (const rack of range(racks)) {
      const [x, y] = corner(rack);
      this.box(x - 7, y - 7, side + 14, side + 14, "none", { stroke: colour("ink"), "stroke-width": 1.6, rx: 7 });
      this.boxes(range(64).map((index) => place(rack, index)).map(([cx, cy]) => [cx - chip / 2, cy - chip / 2, chip, chip]), 2, { fill: colour("band"), stroke: colour("quiet"), "stroke-width": 0.8 });
    }
    // Copies of tokens: in the rack they arrive by 1 / r, over the edge by the slower link.
    const random = randomFrom(11), whole = Math.max(all.exchange, 1 / racks), at = time * whole * 1.08;
    let done = 0, count = 0, home = 0;
    const size = Math.max(Math.min(chip * 0.36, 5), 2.2);
    for (const token of range(9)) {
      const fromRack = token % racks, from = Math.floor(random() * 64);
      for (const copy of range(all.active_experts)) {
        const toRack = racks === 1 ? 0 : Math.floor(random() * racks), to = Math.floor(random() * 64), queue = random();
        const crosses = toRack !== fromRack, span = crosses ? all.exchange : 1 / racks;
        const start = queue * span * 0.72, t = ease((at - start) / (span * 0.28 + 1e-9));
        const [x1, y1] = place(fromRack, from), [x2, y2] = place(toRack, to);
        count += 1; if (t >= 1) done += 1; if (!crosses) home += 1;
        if (t <= 0 && copy > 0) continue;
        svg("circle", { cx: x1 + (x2 - x1) * t, cy: y1 + (y2 - y1) * t, r: size, fill: colour(crosses ? "weights" : "accent"), opacity: t >= 1 ? 0.8 : 1 }, this.group);
        if (t > 0 && t < 1) svg("line", { x1, y1, x2: x1 + (x2 - x1) * t, y2: y1 + (y2 - y1) * t, stroke: colour(crosses ? "weights" : "accent"), "stroke-width": 1, opacity: 0.8 }, this.group);
      }
    }
    this.text(14, height - 40, `${done} of ${count} token copies after ${inDigits(at, 2)}x one rack's time`, { class: "halo name" });
    this.text(14, height - 20, racks === 1 ? `each token goes to ${all.active_experts} experts; 64 of the rack's chips hold them` : `blue: inside a rack; orange: over the edge, ${inDigits(all.bandwidth_ratio, 3)} times slower`, { class: "halo note" });
  }

  table() {
    const { all } = this;
    return { head: ["number", "value"], rows: [["experts of a chip", inDigits(all.expert_share, 3)], ["share that leaves a rack", written(all.away, "share")], ["all-to-all, one rack = 1", inDigits(all.exchange, 3)]] };
  }
}

// --- pipelines ---------------------------------------------------------------------------------------------------------------

const TINTS = ["accent", "weights", "kv", "network", "money", "compute", "overhead", "ink"];

class Loop extends Scene {
  get seconds() { return 9; }

  frame(time) {
    const { width, height, all } = this, stages = all.stages, slots = Math.max(2 * stages + 2, 8);
    const left = width > 460 ? 74 : 58, half = (height - 66) / 2, cursor = left + time * (width - left - 14);
    const drawn = (top, inFlight, title) => {
      this.text(14, top + 12, title, { class: "halo name" });
      const row = Math.min((half - 40) / stages, 34), wide = (width - left - 14) / slots, kinds = new Map();
      for (const stage of range(stages)) {
        const y = top + 22 + stage * row;
        // Low rows have smaller names, and very low ones a name for every second row.
        const every = Math.ceil(9 / row);
        if (stage % every === 0) this.text(left - 8, y + row / 2 + 3, `stage ${stage + 1}`, { "text-anchor": "end", class: "tick" }).style.fontSize = `${Math.min(row * every, 12.5)}px`;
        for (const slot of range(slots)) {
          const work = slot - stage, batch = ((work % stages) + stages) % stages, busy = work >= 0 && batch < inFlight;
          const x = left + slot * wide, kind = `${busy ? TINTS[batch % TINTS.length] : ""} ${x > cursor}`;
          if (!kinds.has(kind)) kinds.set(kind, { list: [], more: { ...(busy ? { fill: colour(TINTS[batch % TINTS.length]) } : { fill: "none", stroke: colour("quiet"), "stroke-dasharray": "3 3" }), opacity: x > cursor ? 0.5 : 1 } });
          kinds.get(kind).list.push([x + 1, y + 1, wide - 2, row - 3]);
        }
      }
      for (const { list, more } of kinds.values()) this.boxes(list, 3, more);
    };
    drawn(6, 1, `one micro-batch: ${inDigits(100 * (1 - 1 / stages), 2)} % of the time is idle`);
    drawn(6 + half + 8, stages, `${written(stages, "micro-batches")}: no idle time`);
    svg("line", { x1: cursor, x2: cursor, y1: 22, y2: height - 44, class: "upright" }, this.group);
    this.text(14, height - 14, `with ${stages} hops of ${written(all.hop, "s")} a token takes ${written(all.hop_latency, "s")}, not ${written(all.interval, "s")}`, { class: "halo note" });
  }

  table() {
    return { head: ["stages", "idle with one micro-batch", "token with hops"], rows: [1, 2, 4, 8].map((n) => [n, `${inDigits(100 * (1 - 1 / n), 3)} %`, written(derive({ ...this.base, stages: n }, ["hop_latency"]).hop_latency, "s")]) };
  }
}

class Bubble extends Scene {
  get seconds() { return 9; }

  frame(time) {
    const { width, height, all } = this, stages = all.stages, count = all.microbatches;
    // Forward passes take one slot, backward passes two; the flush is the end of the picture.
    const slots = 3 * (count + stages - 1), left = width > 460 ? 74 : 58, wide = (width - left - 14) / slots, row = Math.min((height - 110) / stages, 70);
    const cursor = left + time * (width - left - 14);
    const passes = { compute: [[], []], weights: [[], []] };
    for (const stage of range(stages)) {
      const y = 34 + stage * row;
      this.text(left - 8, y + row / 2 + 3, `stage ${stage + 1}`, { "text-anchor": "end", class: "tick" });
      this.box(left, y + 1, width - left - 14, row - 3, "none", { stroke: colour("quiet"), "stroke-dasharray": "3 3" });
      for (const batch of range(count)) {
        const forward = left + (stage + batch) * wide, backward = left + (count + stages - 1 + 2 * (stages - 1 - stage + batch)) * wide;
        passes.compute[+(forward > cursor)].push([forward + 0.5, y + 1, wide - 1, row - 3]);
        passes.weights[+(backward > cursor)].push([backward + 0.5, y + 1, 2 * wide - 1, row - 3]);
      }
    }
    for (const [tint, lists] of Object.entries(passes)) for (const [n, list] of lists.entries()) this.boxes(list, 3, { fill: colour(tint), opacity: n ? 0.45 : 1 });
    this.text(left, 20, "forward", { fill: colour("compute-text"), class: "halo name" });
    this.text(left + 70, 20, "backward", { fill: colour("weights-text"), class: "halo name" });
    this.text(width - 14, 20, "new weights", { "text-anchor": "end", class: "halo note" });
    svg("line", { x1: width - 14, x2: width - 14, y1: 26, y2: 40 + stages * row, stroke: colour("ink"), "stroke-width": 3 }, this.group);
    this.text(14, height - 40, `idle: ${written(all.bubble, "share")} of the step`, { class: "halo name" });
    this.text(14, height - 20, `${stages} stages, ${written(count, "micro-batches")}`, { class: "halo note" });
  }

  table() {
    return { head: ["micro-batches", "idle share"], rows: [1, 2, 4, 8, 16, 32].map((n) => [n, written(derive({ ...this.base, microbatches: n }, ["bubble"]).bubble, "share")]) };
  }
}

class Memory extends Scene {
  get seconds() { return 0; }

  frame() {
    const { width, height, all } = this, counts = [1, 2, 3, 4, 5, 6, 7, 8];
    const parts = counts.map((stages) => derive({ ...this.base, stages }, ["chip_weights", "chip_cache"]));
    const most = Math.max(...parts.map((one) => one.chip_weights + one.chip_cache)), isFar = all.capacity > 3 * most;
    const high = isFar ? most * 1.25 : Math.max(all.capacity * 1.1, most);
    this.makePlane();
    const top = Math.min(high, 4 * all.capacity);
    this.plane.place({ low: 0.4, high: 8.6 }, { low: 0, high: top });
    this.plane.axes({ label: "pipeline stages", ticks: counts, plain: true }, { label: "memory of a chip", unit: "B" });
    const { plane } = this, wide = (plane.x(2) - plane.x(1)) * 0.62, base = plane.y(0);
    const clip = (value) => Math.max(plane.y(value), plane.margin.top - 5);
    for (const [n, one] of parts.entries()) {
      const x = plane.x(n + 1) - wide / 2, edge = clip(one.chip_cache), head = clip(one.chip_cache + one.chip_weights), pale = n + 1 === all.stages ? 1 : 0.5;
      this.box(x, edge, wide, base - edge, colour("kv"), { opacity: pale });
      this.box(x, head, wide, edge - head - 1, colour("weights"), { opacity: pale });
    }
    const y = isFar ? plane.margin.top : plane.y(all.capacity);
    if (!isFar) svg("line", { x1: plane.margin.left, x2: width - 14, y1: y, y2: y, stroke: colour("ink"), "stroke-width": 2, "stroke-dasharray": "5 5" }, this.group);
    this.text(width - 16, isFar ? y + 8 : y - 8, `a chip has ${written(all.capacity, "B")}${isFar ? ", far above" : ""}`, { "text-anchor": "end", class: "halo note" });
    const first = parts[0];
    // Both names stand above the bars of five stages and more.
    const above = Math.max(clip(parts[4].chip_cache + parts[4].chip_weights), plane.margin.top + 54);
    plane.mask([plane.x(8) + wide / 2 - 115, above - 40, plane.x(8) + wide / 2 + 2, above - 4]);
    this.text(plane.x(8) + wide / 2, above - 26, "weights shrink", { "text-anchor": "end", fill: colour("weights-text"), class: "halo name" });
    this.text(plane.x(8) + wide / 2, above - 9, "caches stay", { "text-anchor": "end", fill: colour("kv-text"), class: "halo name" });
    this.parts = parts;
    if (first.chip_cache + first.chip_weights > top) this.text(plane.margin.left + 6, 40, "more than four chips' memory: bars are cut", { class: "halo note" });
  }

  table() { return { head: ["stages", "weights", "KV cache"], rows: this.parts.map((one, n) => [n + 1, written(one.chip_weights, "B"), written(one.chip_cache, "B")]) }; }
}

// --- training ----------------------------------------------------------------------------------------------------------------

class Equal extends Scene {
  get seconds() { return 0; }

  frame() {
    const { width, height, all } = this;
    const rows = [["Chinchilla's training", all.chinchilla_flop, "quiet"], ["training", all.train_flop, "compute"], ["serving, at its speed", all.serve_flop, "kv"]];
    const high = Math.max(...rows.map((one) => one[1])) * 1.02, left = 16, row = (height - 60) / 3, wide = width - left - 20;
    for (const [n, [name, value, tint]] of rows.entries()) {
      const y = 14 + n * row;
      this.text(left, y + 16, name, { fill: colour(`${tint}-text`), class: "halo name" });
      this.box(left, y + 24, Math.max(wide * value / high, 2), row - 38, colour(tint));
      const inside = value / high > 0.55;
      this.text(left + wide * value / high + (inside ? -10 : 8), y + 24 + (row - 38) / 2 + 5, written(value, "FLOP"), { "text-anchor": inside ? "end" : "start", class: inside ? "inside" : "halo small" });
    }
    const ratio = all.train_flop / all.serve_flop;
    this.text(left, height - 18, ratio > 1.15 ? `training costs ${inDigits(ratio, 2)} times the serving: equal parts need less training` : ratio < 0.87 ? `serving costs ${inDigits(1 / ratio, 2)} times the training: equal parts need more training` : "both cost about the same", { class: "halo note" });
  }

  table() { const { all } = this; return { head: ["part", "FLOP at training's speed"], rows: [["Chinchilla's training", written(all.chinchilla_flop, "FLOP")], ["training", written(all.train_flop, "FLOP")], ["serving", written(all.serve_flop, "FLOP")]] }; }
}

// Lines of a table that no variable changes.
class Curves extends Scene {
  get seconds() { return 0; }

  curves(x, y, lines, uprights, dots = []) {
    const { width, height } = this;
    this.makePlane();
    const { plane } = this;
    plane.place(x, y);
    plane.axes(x, y);
    for (const line of lines) svg("path", { d: plane.path(line.xs, line.ys), class: "line wide", stroke: colour(line.colour), "stroke-dasharray": line.dash }, this.group);
    const boxes = [];
    for (const [at, name] of uprights) {
      const place = plane.x(at);
      if (place < plane.margin.left || place > width - 14) continue;
      svg("line", { x1: place, x2: place, y1: plane.margin.top, y2: height - plane.margin.bottom, class: "upright" }, this.group);
      const end = place > width - 150, wide = 7 * name.length, base = height - plane.margin.bottom - 8;
      this.text(place + (end ? -6 : 6), base, name, { "text-anchor": end ? "end" : "start", class: "halo note" });
      boxes.push([place - 1, plane.margin.top, place + 1, base], end ? [place - 6 - wide, base - 12, place - 6, base + 3] : [place + 6, base - 12, place + 6 + wide, base + 3]);
    }
    for (const [at, value, tint] of dots) {
      const px = plane.x(at), py = plane.y(value), words = inDigits(value, 3);
      svg("circle", { cx: px, cy: py, r: 6, fill: colour(tint), class: "dot" }, this.group);
      this.text(px + 10, py + 18, words, { class: "halo tag" });
      boxes.push([px + 10, py + 4, px + 10 + 8 * words.length, py + 22]);
    }
    plane.names(lines, boxes);
  }
}

class Laws extends Curves {
  frame() {
    const { served, hoffmann, epoch } = DATA.tables.laws;
    // Where the laws are for the tokens served: the table on logarithmic axes.
    const n = Math.min(Math.max(served.findIndex((each) => each >= this.all.served), 1), served.length - 1);
    const part = Math.log(this.all.served / served[n - 1]) / Math.log(served[n] / served[n - 1]);
    this.curves(
      { low: served[0], high: served[served.length - 1], log: true, label: "tokens served" },
      { low: 1, high: 1.5 * Math.max(...hoffmann, ...epoch), log: true, label: "times the Chinchilla tokens", unit: "" },
      [
        { name: "law of Hoffmann et al.", colour: "compute", xs: served, ys: hoffmann },
        { name: "refit of Epoch", colour: "weights", xs: served, ys: epoch, left: true },
        { name: "the lecture: 100", colour: "quiet", dash: "5 5", xs: served, ys: served.map(() => 100), left: true },
      ],
      [[this.all.served, written(this.all.served, "tokens")]],
      part >= 0 && part <= 1 ? [[hoffmann, "compute"], [epoch, "weights"]].map(([ys, tint]) => [this.all.served, ys[n - 1] * (ys[n] / ys[n - 1]) ** part, tint]) : [],
    );
  }

  table() { const { served, hoffmann, epoch } = DATA.tables.laws; return { head: ["tokens served", "Hoffmann", "Epoch"], rows: served.filter((_, n) => n % 4 === 0).map((at, n) => [written(at), inDigits(hoffmann[4 * n], 3), inDigits(epoch[4 * n], 3)]) }; }
}

class Flips extends Curves {
  frame() {
    const tints = ["compute", "weights", "network", "kv"], names = ["AES", "AES without ShiftRows", "random network", "with residual paths"];
    const lines = Object.values(DATA.tables.flips).map((ys, n) => ({ name: names[n], colour: tints[n], xs: range(ys.length), ys }));
    // The lowest line is named before the one above it, so that its name finds room below.
    lines.push(lines.splice(2, 1)[0]);
    this.curves({ low: 0, high: 12, label: "rounds or layers" }, { low: this.width > 460 ? 0 : -0.12, high: 0.6, label: "share of outputs that flip", unit: "share" }, lines, []);
    const y = this.plane.y(0.5);
    svg("line", { x1: this.plane.margin.left, x2: this.width - 14, y1: y, y2: y, class: "upright" }, this.group);
  }

  table() { const names = Object.keys(DATA.tables.flips), columns = Object.values(DATA.tables.flips); return { head: ["rounds", ...names], rows: range(13).map((n) => [n, ...columns.map((one) => written(one[n], "share"))]) }; }
}

// --- tiers of memory -----------------------------------------------------------------------------------------------------------

class Tiers extends Scene {
  get seconds() { return 0; }

  frame() {
    const { width, height, all } = this;
    const tiers = [{ name: "HBM of this page's chip", drain: all.drain }, ...DATA.tables.tiers];
    const y = scale(0.004, 4e5, 34, height - 24, true), mid = width > 460 ? width * 0.44 : width * 0.4, at = mid - (width > 460 ? 70 : 48);
    const best = tiers.reduce((a, b) => Math.abs(Math.log(b.drain / all.hold)) < Math.abs(Math.log(a.drain / all.hold)) ? b : a);
    for (const time of [0.01, 1, 60, 3600, 86400]) {
      svg("line", { x1: 60, x2: width - 14, y1: y(time), y2: y(time), class: "grid" }, this.group);
      this.text(54, y(time) + 4, time === 86400 ? "1 day" : time === 3600 ? "1 h" : time === 60 ? "1 min" : written(time, "s"), { "text-anchor": "end", class: "tick" });
    }
    this.text(14, 13, "time to read the memory once", { class: "axis" });
    const depth = y(Math.min(Math.max(all.hold, 0.004), 4e5));
    svg("path", { d: `M${at} 20L${at} ${depth - 13}`, class: "sink" }, this.group);
    this.box(at - 26, depth - 12, 52, 24, colour("kv"), { rx: 5 });
    this.text(at, depth + 4.5, "cache", { "text-anchor": "middle", class: "inside" });
    for (const tier of tiers) {
      const isBest = tier === best, place = y(tier.drain), tall = width > 460 ? 26 : 20;
      this.box(mid, place - tall / 2, width - mid - 14, tall, isBest ? colour("accent") : colour("card"), { stroke: isBest ? "none" : colour("quiet"), rx: 5 });
      this.text(mid + 9, place + 4.5, width > 460 ? tier.name : tier.name.replace(" of this page's chip", ""), { class: isBest ? "inside" : "small" });
      this.text(width - 22, place + 4.5, written(tier.drain, "s"), { "text-anchor": "end", class: isBest ? "inside" : "small" });
    }
    if (Math.abs(y(best.drain) - depth) > 4) svg("path", { d: `M${at + 27} ${depth}L${mid - 3} ${y(best.drain)}`, class: "sink" }, this.group);
    this.tiers = tiers;
  }

  table() { return { head: ["memory", "time to read it once"], rows: this.tiers.map((one) => [one.name, written(one.drain, "s")]) }; }
}

// --- mixing --------------------------------------------------------------------------------------------------------------------

class Mixing extends Scene {
  get seconds() { return 5; }
  get still() { return 1; }

  frame(time) {
    const { width, height, all } = this, size = 8, cell = Math.min((height - 78) / size, (width - 40) / size), left = (width - size * cell) / 2, top = 10;
    const change = [5, 2];
    const reached = (rounds) => (row, column) => rounds >= 2 || (rounds >= 1 ? row === change[0] : row === change[0] && column === change[1]);
    const isReached = reached(all.rounds), wasReached = reached(all.rounds - 1);
    const byRow = all.rounds % 2 === 1;
    let count = 0;
    const square = (row, column) => [left + column * cell + 2, top + row * cell + 2, cell - 4, cell - 4];
    this.boxes(range(size * size).map((n) => square(Math.floor(n / size), n % size)), 4, { fill: colour("band") });
    for (const row of range(size)) for (const column of range(size)) {
      const hit = isReached(row, column), old = all.rounds > 0 && wasReached(row, column);
      const far = byRow ? Math.abs(column - change[1]) : Math.abs(row - change[0]);
      const part = hit ? (old ? 1 : ease(time * 4 - far * 0.35)) : 0;
      if (hit) count += 1;
      if (part > 0) this.box(...square(row, column), colour(row === change[0] && column === change[1] ? "weights" : "accent"), { rx: 4, opacity: part });
    }
    const words = all.rounds === 0 ? "one cell is changed" : all.rounds === 1 ? "round 1 mixes each row" : all.rounds === 2 ? "round 2 mixes each column" : "everything has reached everything";
    this.text(width / 2, height - 40, `${words}: ${count} of 64 cells depend on it`, { "text-anchor": "middle", class: "halo name" });
    this.text(width / 2, height - 18, `${written(all.rounds, "rounds")}: ${inDigits(100 * count / 64, 3)} %`, { "text-anchor": "middle", class: "halo note" });
  }

  table() { return { head: ["rounds", "cells that depend on the changed one"], rows: [[0, "1 of 64"], [1, "8 of 64"], [2, "64 of 64"]] }; }
}

class Reversible extends Scene {
  get seconds() { return 10; }
  get still() { return 0.5; }

  frame(time) {
    const { width, height } = this, x = 6, y = 4, f = (x * x + 3) % 10, z = y + f;
    const top = height * 0.24, low = height * 0.62, left = width * 0.13, right = width * 0.87, mid = width / 2;
    const back = time > 0.5, t = back ? (time - 0.5) * 2 : time * 2;
    const wire = (d, tint = "quiet") => svg("path", { d, fill: "none", stroke: colour(tint), "stroke-width": 2 }, this.group);
    wire(`M${left} ${top}L${right} ${top}`); wire(`M${left} ${low}L${right} ${low}`); wire(`M${mid} ${top}L${mid} ${low}`);
    const node = (cx, cy, words, tint, r = 21) => { svg("circle", { cx, cy, r, fill: colour("card"), stroke: colour(tint), "stroke-width": 2.2 }, this.group); this.text(cx, cy + 6, words, { "text-anchor": "middle", class: "big" }); };
    this.box(mid - 27, (top + low) / 2 - 20, 54, 40, colour("compute"), { rx: 7 });
    this.text(mid, (top + low) / 2 + 5, `f = ${f}`, { "text-anchor": "middle", class: "inside" });
    node(mid, low, back ? "−" : "+", "ink", 15);
    const show = (at, words, cx, cy, tint) => { if (at) node(cx, cy, words, tint); };
    // The known pair, the function, and the other pair appear one after the other.
    show(!back || t > 0.08, String(x), left, top, "compute"); show(true, String(x), right, top, "compute");
    show(!back || t > 0.66, String(y), left, low, "kv"); show(back || t > 0.66, String(z), right, low, "weights");
    const part = ease((t - 0.12) / 0.3), drop = ease((t - 0.34) / 0.3), start = back ? right : left;
    if (t > 0.1 && t < 0.66) {
      const cx = drop > 0 ? mid : start + (mid - start) * part, cy = drop > 0 ? top + (low - top) * drop : top;
      svg("circle", { cx, cy, r: 7, fill: colour("accent") }, this.group);
      svg("circle", { cx: start + (mid - start) * part, cy: low, r: 7, fill: colour(back ? "weights" : "kv") }, this.group);
    }
    this.text(left, top - 34, "x", { "text-anchor": "middle", class: "halo note" }); this.text(left, low - 29, "y", { "text-anchor": "middle", class: "halo note" });
    this.text(right, top - 34, "x", { "text-anchor": "middle", class: "halo note" }); this.text(right, low - 29, "z", { "text-anchor": "middle", class: "halo note" });
    this.text(mid, height - 34, back ? `backwards: y = z − f(x) = ${z} − ${f} = ${y}` : `forwards: z = y + f(x) = ${y} + ${f} = ${z}`, { "text-anchor": "middle", class: "halo name" });
    this.text(mid, height - 12, "f(x) = (x² + 3) mod 10 has no inverse, and the block has one", { "text-anchor": "middle", class: "halo note" });
  }

  table() { return { head: ["direction", "in", "out"], rows: [["forwards", "x = 6, y = 4", "x = 6, z = 13"], ["backwards", "x = 6, z = 13", "x = 6, y = 4"]] }; }
}

const KINDS = { chart: Chart, strip: Years, trains: Trains, rack: Rack, loop: Loop, bubble: Bubble, memory: Memory, equal: Equal, laws: Laws, tiers: Tiers, mixing: Mixing, flips: Flips, reversible: Reversible };
