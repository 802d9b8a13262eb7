// The page: a common bar, and the boards. The server computes; the browser sends requests, draws, and stores the state in the address.

import { control, el, rounded } from "./inputs.js";
import { spread } from "./draw.js";
import { address, read, set, state, value, write } from "./state.js";

const $ = (id) => document.getElementById(id);
const NEAR = 18;  // largest distance of a finger from the point [pixels]
const boards = new Map();
let start;
let fixed = null;  // answers of a static copy

// --- requests: one in flight per board; the latest values win -------------------------------------------------

class Asker {
  constructor(board) { this.board = board; this.flying = false; this.next = null; }

  ask(body, settled) {
    this.next = { body, settled };
    this.board.element.dataset.busy = "yes";
    if (!this.flying) this.go();
  }

  async go() {
    const { body, settled } = this.next;
    this.next = null;
    this.flying = true;
    try {
      const answer = fixed ? await fixed(this.board.about.name, body) : await post(`api/boards/${this.board.about.name}`, body);
      if (answer.ok) this.board.show(answer.data, body, settled);
      else this.board.complain(answer.data.detail || []);
    } catch (error) {
      this.board.complain([{ field: "", msg: "no answer from the server; is steptime web still running?" }]);
    }
    this.flying = false;
    if (this.next) this.go();
    else delete this.board.element.dataset.busy;
  }
}

async function post(path, body) {
  const response = await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  return { ok: response.ok, data: await response.json() };
}

// --- a board ------------------------------------------------------------------------------------------------------------

class Board {
  constructor(about) {
    this.about = about;
    this.asker = new Asker(this);
    this.controls = new Map();
    this.answer = this.before = null;
    this.element = this.build();
  }

  build() {
    const { name, title, inputs, spoken, today } = this.about;
    this.picture = el("div", { class: "picture", role: "img", "aria-label": title });
    this.sentence = el("p", { class: "sentence", "aria-live": "polite" });
    this.figures = el("dl", { class: "figures" });
    this.formula = el("div", { class: "formula" });
    this.notes = el("ul", { class: "notes" });
    this.message = el("p", { class: "message", role: "alert" });
    const controls = el("div", { class: "controls" });
    const more = el("details", {}, [el("summary", {}, ["more"])]);
    for (const one of inputs) {
      const made = control({ ...one, board: name }, this.value(one), (given, settled) => this.changed(one, given, settled));
      this.controls.set(one.name, made);
      (one.more ? more : controls).append(made);
    }
    if (inputs.some((one) => one.more)) controls.append(more);
    controls.append(this.message);
    const press = (words, action) => { const made = el("button", { type: "button" }, [words]); made.addEventListener("click", () => action(made)); return made; };
    const buttons = el("div", { class: "buttons" }, [
      ...(Object.keys(spoken).length ? [press("as spoken", () => this.preset(spoken))] : []),
      ...(Object.keys(today).length ? [press("today", () => this.preset(today))] : []),
      press("copy command", (at) => copy(at, this.answer?.command)),
      press("copy Python", (at) => copy(at, this.answer?.python)),
      press("copy link", (at) => { state.board = name; write(); copy(at, location.origin + address()); }),
      press("JSON", () => save(`${name}.json`, "application/json", JSON.stringify(this.answer, null, 1))),
      press("CSV", () => save(`${name}.csv`, "text/csv", csv(this.answer))),
      press("SVG", () => save(`${name}.svg`, "image/svg+xml", svgText(this.picture))),
      press("PNG", () => png(this.picture, `${name}.png`)),
    ]);
    return el("section", { class: "board", id: name, "aria-label": title }, [
      el("h2", {}, [el("a", { href: `#${name}` }, [title])]),
      el("div", { class: "sides" }, [el("div", {}, [this.picture, this.sentence, this.figures]), controls]),
      el("details", {}, [el("summary", {}, ["formula with its numbers"]), this.formula]),
      this.notes, buttons,
    ]);
  }

  key(one) { return `${this.about.name}.${one.name}`; }

  value(one) {
    const kept = value(this.key(one), undefined);
    if (kept === undefined) return one.default;
    return one.kind === "slider" && kept.trim() !== "" && isFinite(kept) ? +kept : kept;
  }

  changed(one, given, settled) {
    set(this.key(one), given, one.default, settled);
    this.ask(settled);
  }

  body() {
    const found = {};
    for (const one of start.bar) if (this.about.bar.includes(one.name)) found[one.name] = value(one.name, one.default);
    for (const one of this.about.inputs) found[one.name] = this.value(one);
    return found;
  }

  ask(settled = true) {
    if (!this.draw) return;
    this.picture.classList.toggle("stale", !settled && this.about.slow);
    this.asker.ask({ ...this.body(), ...(this.about.slow && !settled ? { coarse: true } : {}) }, settled);
  }

  preset(values) {
    for (const one of start.bar) if (this.about.bar.includes(one.name)) set(one.name, values[one.name] ?? one.default, one.default);
    for (const one of this.about.inputs) {
      set(this.key(one), values[one.name] ?? one.default, one.default);
      this.controls.get(one.name).show(this.value(one));
    }
    showBar();
    askAll();
  }

  async wake() {
    if (this.draw) return;
    const { draw, drag } = await import(`./boards/${this.about.name}.js`);
    this.draw = draw;
    if (drag) this.makeDraggable(drag);
    this.ask();
  }

  show(answer, body, settled) {
    if (settled && this.answer && JSON.stringify(body) !== this.asked) this.before = this.answer;
    this.asked = JSON.stringify(body);
    this.answer = answer;
    if (answer.kept) for (const [name, made] of this.controls) made.show(answer.kept[name]);  // inputs of the nearest answer of a static copy
    this.complain([]);
    this.redraw();
    this.sentence.textContent = answer.sentence;
    this.figures.replaceChildren(...answer.figures.map((one) => el("div", { title: one.words, "data-figure": one.name }, [el("dt", {}, [one.name]), el("dd", {}, [one.text])])));
    this.formula.textContent = answer.formula.join("\n");
    this.notes.replaceChildren(...answer.notes.map((words) => el("li", {}, [words])));
    this.element.dataset.shown = String(+(this.element.dataset.shown || 0) + 1);
    if (settled) this.picture.classList.remove("stale");
    aim.keep();
  }

  redraw() {
    if (!this.answer) return;
    const width = Math.max(this.picture.clientWidth, 280);
    const made = this.draw(this.answer, { width, before: this.before, body: JSON.parse(this.asked) });
    this.figure = made;
    this.picture.replaceChildren(...(Array.isArray(made) ? made : [made]));
    this.picture.querySelectorAll("svg").forEach((svg) => spread(svg));
    this.picture.classList.toggle("small", !made.scale);
  }

  complain(detail) {
    for (const one of this.controls.values()) one.complain("");
    this.message.textContent = "";
    this.picture.classList.toggle("stale", detail.length > 0);
    if (detail.length && !this.answer) this.sentence.textContent = detail.map((one) => one.msg).join("; ");
    for (const { field, msg } of detail) {
      const place = this.controls.get(field);
      const above = bar.get(field);
      if (place) place.complain(msg);
      else if (above) above.complain(msg);
      else this.message.textContent = msg;
    }
    if (!detail.length) for (const name of this.about.bar) bar.get(name)?.complain("");
  }

  // The operating point moves with the pointer along the axis of one input.
  makeDraggable({ input, axis = "x", scale = (given) => given }) {
    const one = this.about.inputs.find((each) => each.name === input);
    let held = false;
    const move = (event) => {
      const svg = this.picture.querySelector("svg:not([class*=ramp])");
      const axisScale = this.figure?.scale?.(axis);
      if (!svg || !axisScale) return;
      const box = svg.getBoundingClientRect();
      const at = axis === "x" ? (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width : (event.clientY - box.top) * svg.viewBox.baseVal.height / box.height;
      const given = rounded(one, scale(axisScale.invert(at)));
      this.controls.get(input).show(given);
      this.changed(one, given, false);
    };
    this.picture.addEventListener("pointerdown", (event) => {
      const box = this.picture.querySelector(".point circle")?.getBoundingClientRect();
      if (!box || Math.hypot(event.clientX - box.x - box.width / 2, event.clientY - box.y - box.height / 2) > NEAR) return;
      held = true;
      this.picture.setPointerCapture(event.pointerId);
      event.preventDefault();
      event.stopPropagation();  // otherwise Plot would pin its tip
    }, true);
    this.picture.addEventListener("pointermove", (event) => { if (held) move(event); });
    this.picture.addEventListener("pointerup", () => { if (held) { held = false; this.ask(true); } });
    this.picture.addEventListener("pointercancel", () => { held = false; });
  }
}

// --- the bar -----------------------------------------------------------------------------------------------------------

const bar = new Map();

function buildBar() {
  for (const one of start.bar) {
    const list = { model: start.models, system: start.systems, engine: start.engines }[one.name];
    const id = `bar-${one.name}`;
    const field = el("input", { id, list: list ? `${id}-list` : undefined, autocomplete: "off", spellcheck: "false", placeholder: one.default || "usual", title: one.words });
    const message = el("p", { class: "message", role: "alert" });
    const box = el("div", { class: one.name === "model" || one.name === "system" ? "wide" : "" }, [el("label", { for: id }, [one.label]), field]);
    if (list) box.append(el("datalist", { id: `${id}-list` }, list.map((each) => el("option", { value: each.name }, [each.title || ""]))));
    if (one.name === "model" || one.name === "system") {
      const button = el("button", { type: "button", title: one.name === "model" ? "Paste a config.json" : "Paste a TOML file of a system" }, ["paste"]);
      button.addEventListener("click", () => paste(one));
      box.append(" ", button);
    }
    box.append(message);
    box.complain = (words) => { message.textContent = words; box.classList.toggle("wrong", Boolean(words)); };
    box.show = () => {
      const given = value(one.name, one.default);
      field.value = given.length > 200 || given.includes("\n") || given.startsWith("{") ? "(pasted)" : given;
    };
    field.addEventListener("change", () => {
      if (field.value === "(pasted)") return;
      set(one.name, field.value || one.default, one.default);
      box.show();
      askAll();
    });
    field.addEventListener("focus", () => field.select());
    if (document.documentElement.dataset.copy) field.disabled = true;
    bar.set(one.name, box);
    $("bar").append(box);
  }
  $("bar").addEventListener("submit", (event) => event.preventDefault());
  showBar();
}

const showBar = () => { for (const box of bar.values()) box.show(); };

function paste(one) {
  const dialog = $("paste");
  $("pasted-what").textContent = one.name === "model" ? "config.json of a model" : "TOML file of a system";
  const before = value(one.name, "");
  $("pasted").value = before.startsWith("{") || before.includes("\n") ? before : "";
  dialog.returnValue = "";
  dialog.showModal();
  dialog.onclose = () => {
    const text = $("pasted").value.trim();
    if (dialog.returnValue !== "take" || !text) return;
    set(one.name, one.name === "system" ? text + "\n" : text, one.default);
    bar.get(one.name).show();
    askAll();
  };
}

const askAll = () => { for (const board of boards.values()) board.ask(true); };

// The board of the address: boards above it push it down while they draw, until the user touches something else.
const aim = {
  board: null,
  at(board) { aim.board = board; aim.keep(); },
  keep() { if (aim.board) aim.board.element.scrollIntoView({ behavior: "instant" }); },
};

// --- copies ------------------------------------------------------------------------------------------------------------

async function copy(button, text) {
  if (!text) return;
  const before = button.textContent;
  try { await navigator.clipboard.writeText(text); button.textContent = "copied"; }
  catch { save("steptime.txt", "text/plain", text); button.textContent = "saved"; }
  setTimeout(() => { button.textContent = before; }, 1200);
}

function save(name, kind, text) {
  const link = el("a", { href: URL.createObjectURL(text instanceof Blob ? text : new Blob([text], { type: kind })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function csv(answer) {
  const cell = (given) => (given === null ? "" : /[",\n]/.test(String(given)) ? `"${String(given).replaceAll('"', '""')}"` : String(given));
  return Object.entries(answer.tables).map(([name, table]) => {
    const names = Object.keys(table);
    const count = names.length ? table[names[0]].length : 0;
    return [`# ${name}`, names.join(","), ...Array.from({ length: count }, (_, n) => names.map((each) => cell(table[each][n])).join(","))].join("\n");
  }).join("\n\n") + "\n";
}

// A picture as a file, with the colours of the page.
function svgText(place) {
  const svg = place.querySelector("svg:not([class*=ramp])");
  const made = svg.cloneNode(true);
  const style = getComputedStyle(place);
  made.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  made.setAttribute("color", style.color);
  made.setAttribute("font-family", "system-ui, sans-serif");
  made.style.background = style.getPropertyValue("--paper");
  for (const text of made.querySelectorAll("text, g[aria-label$=axis]")) if (!text.getAttribute("fill") || text.getAttribute("fill") === "currentColor") text.setAttribute("fill", style.color);
  return new XMLSerializer().serializeToString(made);
}

function png(place, name) {
  const svg = place.querySelector("svg:not([class*=ramp])").viewBox.baseVal;
  const image = new Image();
  image.onload = () => {
    const canvas = el("canvas", { width: svg.width * 2, height: svg.height * 2 });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(name, "image/png", blob));
  };
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(svgText(place));
}

// --- start -------------------------------------------------------------------------------------------------------------

function theme(to) {
  document.documentElement.dataset.theme = to;
  for (const board of boards.values()) board.redraw();
}

async function begin() {
  read();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  theme(value("theme", dark.matches ? "dark" : "light"));
  $("theme").addEventListener("click", () => {
    const to = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    set("theme", to, dark.matches ? "dark" : "light");
    theme(to);
  });
  const copyOfPage = document.documentElement.dataset.copy;
  start = await (await fetch(copyOfPage ? "data/start.json" : "api/start")).json();
  if (copyOfPage) fixed = (await import("./fixed.js")).answers(start);
  buildBar();
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) boards.get(target.id).wake();
  }, { rootMargin: "500px" });
  $("boards").replaceChildren();
  for (const about of start.boards) {
    const board = new Board(about);
    boards.set(about.name, board);
    $("boards").append(board.element);
    $("contents").append(el("a", { href: `#${about.name}` }, [about.title]));
    seen.observe(board.element);
  }
  $("contents").addEventListener("click", (event) => {
    const to = event.target.closest("a")?.getAttribute("href")?.slice(1);
    if (to) { event.preventDefault(); state.board = to; write(true); aim.at(boards.get(to)); }
  });
  for (const kind of ["wheel", "touchstart", "keydown", "pointerdown"]) addEventListener(kind, () => { aim.board = null; }, { passive: true, capture: true });
  addEventListener("beforeprint", () => { for (const board of boards.values()) board.wake(); });
  if (boards.has(state.board)) aim.at(boards.get(state.board));
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; for (const board of boards.values()) board.redraw(); } });
  addEventListener("hashchange", () => {
    read();
    showBar();
    for (const board of boards.values()) for (const one of board.about.inputs) board.controls.get(one.name).show(board.value(one));
    askAll();
  });
}

begin();
