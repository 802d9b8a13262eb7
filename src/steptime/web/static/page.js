// The page: a common bar, and the boards. The server computes; the browser sends requests, draws, and stores the state in the address.

import { control, el, rounded } from "./inputs.js";
import { brief, colour, spread } from "./draw.js";
import { address, read, set, state, value, write } from "./state.js";

const $ = (id) => document.getElementById(id);
const AGAIN = 10;  // further requests after "no answer yet"
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
      // A first simulation compiles, and plans are slow on a busy machine: the work goes on, and a later request gets it.
      if (answer.status === 503 && !this.next && (this.tries = (this.tries || 0) + 1) <= AGAIN) {
        this.board.complain([{ field: "", msg: `The server is still at work (a first answer compiles the simulator). Asking again, ${this.tries} of ${AGAIN}.` }]);
        await new Promise((done) => setTimeout(done, 2000));
        this.next ||= { body, settled };
      } else {
        this.tries = 0;
        if (answer.ok) this.board.show(answer.data, body, settled);
        else this.board.complain(answer.data.detail || []);
      }
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
  const data = await response.json().catch(() => ({ detail: [{ field: "", msg: `the server answers with status ${response.status}` }] }));
  return { ok: response.ok, status: response.status, data };
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
    this.scripts = el("div", { class: "scripts" });
    this.pins = el("div", { class: "pins" });
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
      ...(Object.keys(spoken).length ? [press("lecture's numbers", () => this.preset(spoken))] : []),
      ...(Object.keys(today).length ? [press("today's numbers", () => this.preset(today))] : []),
      press("copy command", (at) => copy(at, this.answer?.command)),
      press("copy Python", (at) => copy(at, this.answer?.python)),
      press("table", () => tables(title, this.answer)),
      this.pinButton = press("pin as A", () => this.pin()),
      press("copy link", (at) => { state.board = name; write(); copy(at, location.origin + address()); }),
      press("JSON", () => save(`${name}.json`, "application/json", JSON.stringify(this.answer, null, 1))),
      press("CSV", () => save(`${name}.csv`, "text/csv", csv(this.answer))),
      press("SVG", () => save(`${name}.svg`, "image/svg+xml", svgText(this))),
      press("PNG", () => png(this)),
    ]);
    return el("section", { class: "board", id: name, "aria-label": title }, [
      el("h2", {}, [el("a", { href: `#${name}` }, [title])]),
      el("div", { class: "sides" }, [el("div", {}, [this.picture, this.sentence, this.figures]), controls]),
      el("details", {}, [el("summary", {}, ["formula with its numbers"]), this.formula]),
      this.notes, this.scripts, this.pins, buttons,
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
    this.wakePin();
  }

  show(answer, body, settled) {
    if (settled && this.answer && JSON.stringify(body) !== this.asked) this.before = this.answer;
    this.asked = JSON.stringify(body);
    this.answer = answer;
    if (answer.kept) for (const [name, made] of this.controls) made.show(answer.kept[name]);  // inputs of the nearest answer of a static copy
    this.complain([]);
    this.redraw();
    // A number and its unit stay on one line.
    this.sentence.textContent = answer.sentence.replace(/(\d) (?=(%|[a-zA-Zµ]{1,2}|min|tok\/s)(\W|$))/g, "$1\u00a0");
    this.figures.replaceChildren(...answer.figures.map((one) => el("div", { title: one.words, "data-figure": one.name }, [el("dt", {}, [one.name]), el("dd", {}, [one.text])])));
    const formula = answer.formula.join("\n"), notes = answer.notes.join("\n");
    if (this.formula.textContent !== formula) this.formula.textContent = formula;
    if (this.noted !== notes) this.notes.replaceChildren(...answer.notes.map((words) => el("li", {}, [words])));
    this.noted = notes;
    this.scripts.replaceChildren(...Object.entries(answer.scripts || {}).map(([name, text]) => {
      const button = el("button", { type: "button" }, ["copy"]);
      button.addEventListener("click", () => copy(button, text));
      return el("details", {}, [el("summary", {}, [name]), button, el("pre", { tabindex: 0, role: "group", "aria-label": name }, [text])]);
    }));
    this.comparePins();
    this.element.dataset.shown = String(+(this.element.dataset.shown || 0) + 1);
    if (settled) this.picture.classList.remove("stale");
    // While a slider moves, its board stays where it is.
    if (settled) aim.keep();
  }

  // A against B: the pinned answer stays as a pale curve and as a column beside the present one, and in the address.
  pin() {
    const key = `${this.about.name}.pin`;
    if (this.pinned) { this.pinned = this.before = null; set(key, "", ""); }
    else { this.pinned = this.answer; set(key, this.asked, ""); }
    this.redraw();
    this.comparePins();
  }

  async wakePin() {
    const kept = value(`${this.about.name}.pin`, "");
    if (!kept || fixed) return;
    try {
      const answer = await post(`api/boards/${this.about.name}`, JSON.parse(kept));
      if (answer.ok) { this.pinned = answer.data; this.redraw(); this.comparePins(); }
    } catch { set(`${this.about.name}.pin`, "", ""); }
  }

  comparePins() {
    this.pinButton.textContent = this.pinned ? "unpin A" : "pin as A";
    const names = this.pinned ? [...new Set([...this.pinned.figures, ...this.answer.figures].map((one) => one.name))] : [];
    const find = (answer, name) => answer.figures.find((one) => one.name === name);
    const ratio = (a, b) => (a?.value && b?.value && a.unit === b.unit ? `${+(b.value / a.value).toPrecision(3)}x` : "");
    this.pins.replaceChildren(...(names.length ? [el("table", {}, [
      el("caption", {}, ["A (pinned) against B (now)"]),
      el("thead", {}, [el("tr", {}, ["", "A", "B", "B / A"].map((text) => el("th", { scope: "col" }, [text])))]),
      el("tbody", {}, names.map((name) => { const [a, b] = [find(this.pinned, name), find(this.answer, name)]; return el("tr", {}, [el("th", { scope: "row" }, [name]), ...[a?.text || "", b?.text || "", ratio(a, b)].map((text) => el("td", {}, [text]))]); })),
    ])] : []));
  }

  redraw() {
    if (!this.answer) return;
    const width = Math.max(this.picture.clientWidth, 280);
    const made = this.draw(this.answer, { width, before: this.pinned || this.before, body: JSON.parse(this.asked) });
    this.figure = made;
    this.picture.replaceChildren(...(Array.isArray(made) ? made : [made]));
    this.picture.querySelectorAll("svg").forEach((svg) => spread(svg));
    // The picture has one name, and its numbers are in the table; names of its parts would be read without a role.
    this.picture.querySelectorAll("svg, svg [aria-label]").forEach((part) => part.removeAttribute("aria-label"));
    darken(this.picture);
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
    this.picture.addEventListener("pointerup", () => { if (held) { held = false; this.changed(one, this.value(one), true); } });
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
  $("hub").hidden = one.name !== "model";
  $("hub-said").textContent = "";
  // The only request to another machine, by the server, and only on this button.
  $("hub-get").onclick = async () => {
    const name = $("hub-name").value.trim();
    $("hub-said").textContent = "downloading ...";
    const answer = await post("api/config", { name }).catch(() => ({ ok: false, data: { detail: [{ msg: "no answer from the server" }] } }));
    if (answer.ok) $("pasted").value = answer.data.config;
    $("hub-said").textContent = answer.ok ? `config.json of ${name} is in the field.` : [answer.data.detail].flat().map((each) => each.msg || String(each)).join("; ");
  };
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

// The numbers of the pictures in a dialog, at most `ROWS` of each table.
const ROWS = 60;
function tables(title, answer) {
  if (!answer) return;
  const cell = (given) => (given === null ? "" : typeof given === "number" ? brief(given) : String(given));
  const made = Object.entries(answer.tables).filter(([, table]) => Object.keys(table).length).map(([name, table]) => {
    const names = Object.keys(table), count = Math.min(table[names[0]].length, ROWS);
    return el("table", {}, [el("caption", {}, [name]), el("thead", {}, [el("tr", {}, names.map((text) => el("th", { scope: "col" }, [text])))]),
      el("tbody", {}, Array.from({ length: count }, (_, n) => el("tr", {}, names.map((each) => el("td", {}, [cell(table[each][n])])))))]);
  });
  $("numbers-title").textContent = title;
  $("numbers-tables").replaceChildren(...made);
  $("numbers").showModal();
}

// Text needs more contrast than a line: names of lines have a darker form of their colour.
const INKS = ["compute", "weights", "kv", "network", "overhead", "money"];
function darken(place) {
  const inks = new Map(INKS.map((name) => [colour(name), colour(`${name}-text`)]));
  for (const text of place.querySelectorAll("text, g[fill]")) {
    const ink = inks.get(text.getAttribute("fill"));
    if (ink && (text.tagName === "text" || text.querySelector(":scope > text"))) text.setAttribute("fill", ink);
  }
}

// All pictures of a board as one file, with title, inputs and source, in the colours of the page.
const PAD = 16, LINE = 18;
function svgText(board) {
  const style = getComputedStyle(board.picture), ink = style.color, paper = style.getPropertyValue("--paper").trim();
  const parts = [...board.picture.querySelectorAll("svg")].filter((one) => !one.parentElement.closest("svg") && one.viewBox.baseVal?.width);
  const width = Math.max(...parts.map((one) => one.viewBox.baseVal.width)) + 2 * PAD;
  const made = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const words = (text, y, size, weight) => { const one = document.createElementNS(made.namespaceURI, "text"); for (const [key, given] of Object.entries({ x: PAD, y, fill: ink, "font-size": size, "font-weight": weight })) one.setAttribute(key, given); one.textContent = text; made.append(one); };
  let y = PAD + LINE;
  words(board.about.title, y, 16, 700);
  y += LINE / 2;
  for (const one of parts) {
    const copied = one.cloneNode(true), size = one.viewBox.baseVal, before = one.querySelectorAll("text"), after = copied.querySelectorAll("text");
    after.forEach((text, n) => { const shown = getComputedStyle(before[n]); text.setAttribute("fill", shown.fill); text.setAttribute("font-family", "system-ui, Helvetica, Arial, sans-serif"); });
    for (const [key, given] of Object.entries({ x: PAD, y, width: size.width, height: size.height })) copied.setAttribute(key, given);
    copied.style.overflow = "visible";
    made.append(copied);
    y += size.height + 6;
  }
  const inputs = Object.entries(JSON.parse(board.asked)).filter(([, given]) => given !== "" && given !== false).map(([name, given]) => `${name} ${String(given).slice(0, 60)}`).join(", ");
  const most = Math.floor((width - 2 * PAD) / 6.2);
  for (const text of [...(inputs.match(new RegExp(`.{1,${most}}(, |$)`, "g")) || [inputs]), `steptime ${start.version}: ${board.answer.command}`.slice(0, most)]) { y += LINE; words(text, y, 11, 400); }
  for (const [key, given] of Object.entries({ width, height: y + PAD, viewBox: `0 0 ${width} ${y + PAD}`, color: ink, "font-family": "system-ui, Helvetica, Arial, sans-serif" })) made.setAttribute(key, given);
  made.style.background = paper;
  return new XMLSerializer().serializeToString(made);
}

function png(board) {
  const text = svgText(board), [, width, height] = /viewBox="0 0 ([0-9.]+) ([0-9.]+)"/.exec(text);
  const image = new Image();
  image.onload = () => {
    const canvas = el("canvas", { width: width * 2, height: height * 2 });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(`${board.about.name}.png`, "image/png", blob));
  };
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
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
