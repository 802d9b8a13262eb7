// The page: stages with pictures that stay, sliders, numbers in sentences, guesses, and the choice of model and system.

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
function el(name, attributes = {}, children = []) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
const narrow = matchMedia("(max-width: 56rem)");

// --- a stage: the picture of the step at hand, its sliders and its buttons ----------------------------------------------------

class Stage {
  constructor(about) {
    this.about = about;
    this.root = document.getElementById(about.id);
    this.steps = $$(".step", this.root);
    this.place = $(".picture", this.root);
    this.caption = $("figcaption", this.root);
    this.pictures = new Map();
    this.step = -1;
    this.sliders = new Map();
    const spoken = $(".spoken", this.root), table = $(".tools .table", this.root);
    spoken?.addEventListener("click", () => { change(about.spoken); said(`The numbers of this chapter are those of the lecture.`); });
    table.addEventListener("click", () => this.openTable());
    this.views = $(".views", this.root);
    this.gap = $(".gap", this.root);
  }

  // --- whose numbers: spoken, ideal, engine, measured, or all four
  get offers() {
    const { four } = DATA.pictures[this.told];
    return [...(spokenHere(DATA.pictures[this.told], this.about.spoken).length ? ["spoken"] : []), "ideal", ...(four ? ["engine", "measured", "all"] : [])];
  }
  get view() { return views[this.told] && this.offers.includes(views[this.told]) ? views[this.told] : DATA.pictures[this.told].view || "ideal"; }
  choose(view) {
    if (view === (DATA.pictures[this.told].view || "ideal")) delete views[this.told]; else views[this.told] = view;
    this.show(this.step, true);
    store();
  }
  get key() { return `${this.told} ${this.view} ${this.offers}`; }
  // The address may have another view than the picture, after Back.
  sync() { if (this.step >= 0) { if (this.views.dataset.key === this.key) this.draw(); else this.show(this.step, true); } }
  makeViews() {
    const offers = this.offers, shown = this.view;
    const radio = (one) => {
      const input = el("input", { type: "radio", name: `view-${this.about.id}`, value: one, checked: one === shown });
      input.addEventListener("change", () => this.choose(one));
      const [name, title] = VIEWS[one];
      return el("label", { title }, [input, el("span", {}, [name])]);
    };
    this.views.hidden = offers.length < 2;
    const { key } = this;
    if (this.views.dataset.key !== key) {
      const held = this.views.contains(document.activeElement);
      this.views.replaceChildren(el("legend", {}, ["Draw"]), ...offers.map(radio));
      this.views.dataset.key = key;
      if (held) $("input:checked", this.views).focus({ preventScroll: true });
    }
  }
  // The step as the view draws it: another picture, other lines, or other numbers.
  get drawn() {
    const step = this.about.steps[this.step], picture = DATA.pictures[this.told], four = picture.four, view = this.view;
    if (!four || (view === "ideal" && picture.view !== "all") || (view === "spoken" && four !== this.told)) return { picture: this.told, step };
    const show = DATA.pictures[four].lines.filter((line) => view === "all" || line.view === view).map((line) => line.value);
    const words = view === "spoken" ? "spoken" : null;
    return { picture: four, step: { ...step, floor: false, show: view === "measured" || view === "all" ? [...show, "runs"] : show, point: words ? "" : view === "measured" ? "" : DATA.pictures[four].lines.find((line) => line.view === (view === "ideal" ? "ideal" : "engine")).value } };
  }

  // Whether the chapter is on the screen or near it, and its picture on the screen, as the last scroll left it: asking at each change would
  // cost a layout of the page.
  look() {
    const box = this.root.getBoundingClientRect(), picture = this.place.getBoundingClientRect();
    this.visible = box.bottom > -200 && box.top < innerHeight + 200;
    this.isSeen = picture.bottom > 0 && picture.top < innerHeight;
    return box;
  }

  show(index, again = false) {
    if (index === this.step && !again) return;
    this.step = index;
    this.steps.forEach((step, n) => step.classList.toggle("here", n === index));
    const step = this.about.steps[index];
    this.told = step.picture;
    this.makeViews();
    const { picture } = this.drawn;
    if (this.at !== picture) this.open(picture);
    this.makeSliders(step.controls);
    this.draw();
  }

  open(id) {
    this.stop();
    this.at = id;
    const spec = DATA.pictures[id];
    this.caption.textContent = spec.title;
    if (!this.pictures.has(id)) {
      const width = Math.max(Math.round(this.place.clientWidth), 280);
      const height = narrow.matches ? Math.min(Math.round(width * 0.66), Math.max(Math.round(innerHeight * 0.29), 200)) : Math.min(Math.round(width * (spec.ratio || 0.64)), Math.max(Math.round(innerHeight * 0.6), 300));
      const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": spec.title });
      this.pictures.set(id, { root, picture: new KINDS[spec.kind](root, spec, { width, height }) });
    }
    const { root, picture } = this.pictures.get(id);
    this.picture = picture;
    this.place.replaceChildren(root);
    if (picture.seconds) this.makePlayer(picture);
    this.started = false;
  }

  draw() {
    if (this.step < 0) return;
    const { step } = this.drawn, isSpoken = this.view === "spoken" && this.at === this.told;
    const { spoken } = this.about, isOther = step.with || isSpoken;
    // A step may show other values than those of the page, such as one rack before two.
    const base = withContext(DATA.pictures[this.at], isOther ? { ...state.values, ...(isSpoken ? withoutAxis(spoken, DATA.pictures[this.at]) : {}), ...step.with } : state.values);
    this.picture.draw(step, base === state.values ? now : derive(base), base, spoken);
    if (!changing) this.showGap();
    for (const [name, one] of this.sliders) one.show(name);
    if (!this.started && this.picture.seconds && !STILL.matches) { this.started = true; this.play(); }
  }

  showGap() { if (this.step >= 0) putText(this.gap, gapWords(this, this.about.spoken)); }

  // --- play and scrub
  makePlayer(picture) {
    this.button = el("button", { type: "button", class: "play" }, ["play"]);
    this.scrub = el("input", { type: "range", min: 0, max: 1000, value: Math.round(picture.time * 1000), "aria-label": "time of the scene" });
    this.button.addEventListener("click", () => (this.running ? this.stop() : this.play()));
    this.scrub.addEventListener("input", () => { this.stop(); picture.time = this.scrub.value / 1000; picture.paint(); });
    this.place.append(el("div", { class: "player" }, [this.button, this.scrub]));
  }
  play() {
    const picture = this.picture, id = this.at;
    this.running = true;
    this.button.textContent = "pause";
    let before = performance.now();
    if (picture.time >= 1) picture.time = 0;
    const tick = (time) => {
      if (!this.running || this.at !== id) return;
      if (this.visible && !document.hidden) picture.time = Math.min(picture.time + Math.min(time - before, 100) / 1000 / picture.seconds, 1);
      before = time;
      this.scrub.value = picture.time * 1000;
      if (this.visible) picture.paint();
      if (picture.time >= 1) { this.stop(); return; }
      requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }
  stop() { this.running = false; if (this.button) this.button.textContent = "play"; }

  // --- sliders
  makeSliders(names) {
    const box = $(".sliders", this.root);
    if (names.join() === [...this.sliders.keys()].join()) return;
    this.sliders = new Map(names.map((name) => [name, slider(name)]));
    box.replaceChildren(...[...this.sliders.values()].map((one) => one.box));
  }

  openTable() {
    const { head, rows } = this.picture.table();
    const dialog = $("#table");
    $("h2", dialog).textContent = DATA.pictures[this.at].title;
    $("div", dialog).replaceChildren(el("table", {}, [
      el("thead", {}, [el("tr", {}, head.map((text) => el("th", {}, [String(text)])))]),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((text) => el("td", {}, [String(text)]))))),
    ]));
    dialog.showModal();
  }
}

// The lecture's numbers, but for the number that the reader drags along the axis.
function withoutAxis(spoken, picture) {
  return Object.fromEntries(Object.entries(spoken).filter(([name]) => name !== picture.x?.value));
}

// The lecture's numbers that a picture has: those that it reads, or all.
function spokenHere(picture, spoken) { return Object.entries(spoken).filter(([name]) => name !== picture.x?.value && (!picture.reads || picture.reads.includes(name))); }

// A picture over long contexts has its context from another variable.
function withContext(picture, values) { return picture.context ? { ...values, context: values[picture.context] } : values; }

// The four numbers at the point of the page, and what is between them.
function gapWords(stage, spoken) {
  const picture = DATA.pictures[stage.told], view = stage.view;
  if (view === "ideal" && picture.view !== "all") return "";
  const shown = picture.four && DATA.pictures[picture.four].context ? derive(withContext(DATA.pictures[picture.four], state.values)) : now;
  const axis = picture.x, at = axis ? `At ${written(now[axis.value], unitOf(axis.value))}` : "";
  if (view === "spoken") {
    const here = spokenHere(picture, spoken), isSame = here.every(([name, value]) => state.values[name] === value);
    // A label such as "total parameters" has the unit already.
    const words = (name, value) => (unitOf(name) && labelOf(name).includes(unitOf(name)) ? written(value, unitOf(name)).replace(unitOf(name), "").trimEnd() : written(value, unitOf(name)));
    const list = here.slice(0, 4).map(([name, value]) => `${labelOf(name)} ${words(name, value)}`).join(", ") + (here.length > 4 ? ", and so on" : "");
    return isSame ? `The page has the lecture's numbers here already: ${list}.` : `This picture has the lecture's numbers: ${list}.`;
  }
  const four = DATA.pictures[picture.four], find = (kind) => four.lines.find((line) => line.view === kind);
  const ideal = find("ideal").value, engine = find("engine").value, unit = unitOf(ideal), said = find("spoken");
  const values = { spoken: said ? derive(withContext(four, { ...state.values, ...withoutAxis(spoken, four) }), [said.of])[said.of] : NaN, ideal: shown[ideal], engine: shown[engine] };
  const parts = [];
  if (view === "all" && said) parts.push(`with the lecture's numbers ${written(values.spoken, unit)}`);
  if (view === "all" || view === "ideal") parts.push(`ideal ${written(values.ideal, unit)}`);
  if (view !== "ideal") {
    if (!Number.isFinite(values.engine)) parts.push(isPair(state.values) ? "no engine at this context" : "no engine for changed numbers (reset brings it back)");
    else {
      const network = engineSeconds(shown, "network") / shown.engine, overhead = engineSeconds(shown, "overhead") / shown.engine;
      parts.push(`engine ${written(values.engine, unit)}, ${inDigits(values.engine / values.ideal, 2)} times the ideal (${written(network, "share", 2)} of it network, ${written(overhead, "share", 2)} overhead)`);
    }
  }
  const runs = isPair(state.values) ? runsHere(shown) : [], of = (one) => four.runs === "cost" ? one.cost : one.seconds;
  const best = runs.map((one) => ({ one, far: Math.abs(Math.log(one.batch / shown.batch)) + Math.abs(Math.log(one.context / shown.context)) })).sort((a, b) => a.far - b.far)[0]?.one;
  if (view === "measured" || view === "all") parts.push(best ? `measured ${written(of(best), unit)} by the nearest of ${runs.length} public runs (${runWords(best)})` : `not measured: no public run of this pair is here (hgx-b200 has ${(DATA.runs[DATA.model]?.["hgx-b200"] || []).length} of ${DATA.model.split("/").pop()})`);
  const text = `${at}: ${parts.join("; ")}.`;
  // On a phone the picture stays above its text, so it has the numbers without their details.
  return narrow.matches ? text.replace(/ \([^()]*\)/g, "").replace("with the lecture's numbers", "lecture") : text;
}

function slider(name) {
  const one = VARIABLES.get(name), id = `slider-${name}-${slider.count = (slider.count || 0) + 1}`;
  const output = el("output", { for: id });
  const input = el("input", { id, type: "range", min: 0, max: 1000, step: 1 });
  const box = el("div", { class: "slider" }, [el("label", { for: id }, [one.label]), output, input]);
  // Between two whole numbers the knob stays at the one that is shown.
  input.addEventListener("input", () => { if (!change({ [name]: fromTrack(one, input.value / 1000) }, false)) show(); });
  // A drag that ends where it began has no event of a change.
  for (const kind of ["change", "pointerup", "pointercancel"]) input.addEventListener(kind, () => { if (changing) change({}, true); });
  input.addEventListener("keydown", (event) => stepByKey(event, one));
  const show = () => {
    const value = state.values[name];
    input.value = Math.round(toTrack(one, value) * 1000);
    const text = written(value, one.unit, one.digits) + (one.suffix || "");
    putText(output, text);
    put(input, { "aria-valuetext": text });
  };
  show();
  return { box, show };
}

// --- numbers in sentences --------------------------------------------------------------------------------------------------------

// Each number with its place in the page and what stands there now. While a number moves, only what is on the screen is written, ten times
// a second: a browser takes as long for the text as for the picture. The number that is held is written at once.
const numbers = $$("[data-name]").map((place) => ({ place, name: place.dataset.name, chapter: place.closest(".chapter")?.id, step: place.closest(".step"), isSlider: place.role === "slider" }));
let wordsTimer = 0;
function showWords() {
  clearTimeout(wordsTimer);
  wordsTimer = 0;
  showNumbers();
  if (changing) for (const stage of stages) if (stage.isSeen) stage.showGap();
}
function followWords() {
  if (!changing) { showWords(); return; }
  wordsTimer ||= setTimeout(showWords, 100);
  showNumbers(true);
}
function showNumbers(onlyHeld = false) {
  const near = new Set(stages.filter((stage) => stage.visible).map((stage) => stage.about.id)), words = new Map();
  for (const one of numbers) {
    const { place, name } = one;
    if ((onlyHeld && !place.classList.contains("held")) || Object.is(one.value, now[name]) || (changing && !(one.step ? one.step.isSeen : near.has(one.chapter)))) continue;
    if (!words.has(name)) words.set(name, written(now[name], unitOf(name), ABOUT.get(name)?.digits));
    const text = words.get(name);
    one.value = now[name];
    if (place.textContent !== text) place.textContent = text;
    if (one.isSlider) { place.setAttribute("aria-valuenow", one.value); place.setAttribute("aria-valuetext", text); }
  }
}
for (const one of numbers.filter((each) => each.place.classList.contains("drag")).map((each) => each.place)) {
  const about = VARIABLES.get(one.dataset.name);
  let from = null;
  one.title = `${about.label}: drag, or use the arrow keys`;
  one.addEventListener("pointerdown", (event) => { from = { x: event.clientX, place: toTrack(about, state.values[about.name]) }; one.setPointerCapture(event.pointerId); one.classList.add("held"); event.preventDefault(); one.focus({ preventScroll: true }); });
  one.addEventListener("pointermove", (event) => { if (from) change({ [about.name]: fromTrack(about, Math.min(Math.max(from.place + (event.clientX - from.x) / 420, 0), 1)) }, false); });
  for (const name of ["pointerup", "pointercancel"]) one.addEventListener(name, () => { if (from) { from = null; one.classList.remove("held"); change({}, true); } });
  one.addEventListener("keydown", (event) => stepByKey(event, about));
}

// Parts of sentences stand only where their number exists.
const parts = $$("[data-if]");
watchers.push(() => { for (const one of parts) { const value = now[one.dataset.if], isHidden = !(Number.isFinite(value) && value > 0); if (one.hidden !== isHidden) one.hidden = isHidden; } });

// The meaning of a word stands below its paragraph, or above it, and never on the sentence that is read.
let term = null;
function placeWord() {
  const word = $(".word:popover-open");
  if (!word || !term) return;
  const text = (term.closest("p") || term).getBoundingClientRect(), tall = word.offsetHeight, wide = word.offsetWidth;
  const above = text.top - tall - 8, isBelow = text.bottom + 8 + tall <= innerHeight || above < 0;
  word.style.left = `${Math.max(Math.min(text.left, innerWidth - wide - 8), 8)}px`;
  word.style.top = `${isBelow ? text.bottom + 8 : above}px`;
}
for (const one of $$(".term")) one.addEventListener("click", () => { term = one; requestAnimationFrame(placeWord); });
addEventListener("scroll", placeWord, { passive: true });

// --- guess first -------------------------------------------------------------------------------------------------------------------

for (const box of $$(".guess")) {
  const about = DATA.chapters.find((one) => one.id === box.dataset.chapter), { guess } = about;
  const one = { low: guess.low, high: guess.high, log: true, whole: guess.low >= 1 && guess.high > 1000 }, unit = guess.unit || unitOf(guess.answer);
  const input = $("input", box), output = $("output", box), words = $(".said", box), button = $("button", box);
  // The first value is exact, and not that of the nearest place on the track.
  let exact = null;
  const value = () => exact ?? fromTrack(one, input.value / 1000);
  const show = () => { output.textContent = written(value(), unit); input.setAttribute("aria-valuetext", output.textContent); };
  const reveal = () => {
    const ratio = value() / now[guess.answer], off = Math.max(ratio, 1 / ratio);
    const far = off < 1.25 ? "Right, within a quarter." : `${inDigits(off, 2)} times too ${ratio > 1 ? "much" : "little"}.`;
    words.textContent = `You say ${written(value(), unit)}. Here it is ${written(now[guess.answer], unit)}. ${far}${guess.after ? ` ${guess.after}` : ""}`;
    box.classList.add("revealed");
  };
  const set = (at) => { exact = at; input.value = Math.round(toTrack(one, at) * 1000); show(); };
  set(guesses[about.id] ?? guess.start);
  if (about.id in guesses) reveal();
  input.addEventListener("input", () => { exact = null; show(); if (box.classList.contains("revealed")) reveal(); });
  button.addEventListener("click", () => { guesses[about.id] = value(); reveal(); store(); });
  watchers.push(() => { if (box.classList.contains("revealed")) reveal(); });
}

// --- the bar at the top --------------------------------------------------------------------------------------------------------------

function said(words) { const place = $("#said"); place.textContent = words; clearTimeout(said.timer); said.timer = setTimeout(() => { place.textContent = ""; }, 4000); }

async function addNames(kind, list, option) {
  if (list.dataset.whole) return;
  list.dataset.whole = "yes";
  const answer = await fetch("api/start").catch(() => null);
  if (!answer?.ok) return;
  const shown = new Set([...list.options].map((one) => one.value));
  const all = (await answer.json())[`${kind}s`].map((one) => one.name).filter((name) => !shown.has(name));
  list.append(el("optgroup", { label: "all of the catalogue" }, all.map(option)));
}
// Numbers of a pair that the page does not have; true if they are there.
async function load({ model, system }) {
  if (DATA.pairs[model]?.[system]) return true;
  if (!DATA.live) return false;
  const answer = await fetch(`api/lecture/pair?${new URLSearchParams({ model, system })}`).catch(() => null);
  if (!answer?.ok) return false;
  const tables = await answer.json();
  DATA.models[model] = tables.model; DATA.systems[system] = tables.system;
  (DATA.pairs[model] ||= {})[system] = tables.pair;
  for (const part of ["seconds", "network", "overhead"]) (DATA.engine[part][model] ||= {})[system] = tables.engine[part] || null;
  for (const [kind, name] of [["model", model], ["system", system]]) {
    const list = $(`#${kind}`);
    if (![...list.options].some((one) => one.value === name)) list.append(el("option", { value: name }, [name.split("/").pop()]));
  }
  return true;
}

for (const kind of ["model", "system"]) {
  const list = $(`#${kind}`);
  const option = (name) => el("option", { value: name }, [name.split("/").pop()]);
  list.append(...Object.keys(DATA[`${kind}s`]).map(option));
  list.addEventListener("change", async () => {
    const names = { model: state.model, system: state.system, [kind]: list.value };
    if (await load(names)) choose(kind, list.value);
    else { list.value = state[kind]; said(`The numbers of ${names.model} on ${names.system} did not arrive.`); }
  });
  // With a server the lists have all names of the catalogue.
  if (DATA.live) list.addEventListener("pointerenter", () => addNames(kind, list, option), { once: true });
  if (DATA.live) list.addEventListener("focus", () => addNames(kind, list, option), { once: true });
  watchers.push(() => { if (list.value !== state[kind]) list.value = state[kind]; });
}
const THEMES = { light: "dark", dark: "light" };
$("#theme").addEventListener("click", () => {
  const root = document.documentElement, shown = root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.theme = THEMES[shown];
});
$("#reset").addEventListener("click", () => { state.model = DATA.model; state.system = DATA.system; change({ ...DATA.defaults }); said("All numbers are as at first."); });
$("#link").addEventListener("click", async () => {
  store();
  const link = location.href.split("#")[0] + address();
  try { await navigator.clipboard.writeText(link); said("The link with all numbers and guesses is copied."); }
  catch { said("Copy the link from the address bar: it has all numbers."); }
});

// --- scrolling -------------------------------------------------------------------------------------------------------------------------

const stages = DATA.chapters.map((about) => new Stage(about));
function locate() {
  const line = innerHeight * (narrow.matches ? 0.8 : 0.55);
  let here = null;
  // All places first, then all changes: one layout.
  const boxes = stages.map((stage) => stage.look()), tops = stages.map((stage) => (stage.visible ? stage.steps.map((step) => step.getBoundingClientRect().top) : []));
  for (const [n, stage] of stages.entries()) {
    for (const [m, step] of stage.steps.entries()) step.isSeen = tops[n][m] < innerHeight && (tops[n][m + 1] ?? boxes[n].bottom) > 0;
  }
  showNumbers();
  for (const [n, stage] of stages.entries()) {
    const box = boxes[n];
    if (!stage.visible) { if (stage.step >= 0 && stage.running) stage.stop(); continue; }
    stage.show(Math.max(tops[n].findLastIndex((top) => top < line), 0));
    if (box.top < innerHeight * 0.5 && box.bottom > innerHeight * 0.3) here = stage;
  }
  const id = here?.about.id || "";
  if (id !== chapter) {
    chapter = id;
    for (const link of $$("#contents a")) {
      const isHere = link.hash === `#${id}`;
      link.classList.toggle("here", isHere);
      if (isHere) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
    }
    store();
  }
}
// Tab goes from the controls of a step's picture to the numbers of the step, then to the picture of the next step; Shift and Tab go back.
const STOPS = "a[href], button, input:not([type=radio]), input:checked, select, summary, [tabindex='0']";
const stops = (place) => $$(STOPS, place).filter((one) => one.checkVisibility());
function bring(stage, index) {
  if (stage.step === index) return;
  scrollTo({ top: scrollY + stage.steps[index].getBoundingClientRect().top - innerHeight * (narrow.matches ? 0.62 : 0.3), behavior: "instant" });
  locate();
}
function nextStop(stage, at, isBack) {
  const box = $(".stage", stage.root), end = $(".verdicts summary", stage.root), own = at.closest(".step"), isOwn = Boolean(own), count = stage.steps.length;
  const index = isOwn ? stage.steps.indexOf(own) : at === end ? count : stage.step;
  const list = isOwn ? stops(own) : at === end && isBack ? [end] : box.contains(at) ? stops(box) : [];
  if (!list.length || at !== list.at(isBack ? 0 : -1)) return null;
  if (isBack && isOwn) { bring(stage, index); return stops(box).at(-1); }
  const inStep = !isBack && !isOwn && stops(stage.steps[index])[0];
  if (inStep) return inStep;
  const to = index + (isBack ? -1 : 1);
  if (to === count) return end;
  if (to < 0) return null;
  bring(stage, to);
  return isBack ? [...stops(box), ...stops(stage.steps[to])].at(-1) : stops(box)[0];
}
document.addEventListener("keydown", (event) => {
  if (event.key !== "Tab" || event.ctrlKey || event.altKey || event.metaKey) return;
  const at = document.activeElement, stage = stages.find((one) => one.root.contains(at)), to = stage && nextStop(stage, at, event.shiftKey);
  if (!to) return;
  event.preventDefault();
  to.focus({ preventScroll: Boolean(to.closest(".stage")) });
});

let queued = false;
const onScroll = () => { if (!queued) { queued = true; requestAnimationFrame(() => { queued = false; locate(); }); } };
addEventListener("scroll", onScroll, { passive: true });
let width = innerWidth;
addEventListener("resize", () => {
  if (Math.abs(innerWidth - width) < 2) { onScroll(); return; }
  width = innerWidth;
  for (const stage of stages) { stage.stop(); stage.pictures.clear(); stage.step = -1; stage.at = null; }
  locate();
});
watchers.push(followWords, () => { for (const stage of stages) if (changing ? stage.isSeen : stage.visible) stage.sync(); });
watchers.push(() => {
  if (changing) return;
  const query = new URLSearchParams({ model: state.model, system: state.system, "step.batch": Math.round(state.values.batch), "step.context": Math.round(state.values.context) });
  for (const link of $$("a.bench")) link.hash = `${link.dataset.board || "step"}?${query}`;
});

// Links to chapters keep the numbers of the page.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']"), place = link && document.getElementById(link.hash.slice(1) || "opening");
  if (!place || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  place.scrollIntoView();
  place.setAttribute("tabindex", "-1");
  place.focus({ preventScroll: true });
});

// On paper each step has its own picture; a picture that the step before has too is not repeated.
addEventListener("beforeprint", () => {
  for (const stage of stages) {
    let before = "";
    for (const [n, step] of stage.steps.entries()) {
      stage.show(n, true);
      const { picture } = stage;
      if (picture.seconds && !picture.time) { picture.time = picture.still; picture.paint(); }
      const drawn = $("svg", stage.place).cloneNode(true), key = drawn.textContent;
      if (key !== before) step.prepend(el("figure", { class: "printed" }, [el("figcaption", {}, [stage.caption.textContent]), drawn]));
      before = key;
    }
    stage.stop(); stage.step = -1; stage.at = null;
  }
  locate();
});
addEventListener("afterprint", () => { for (const one of $$(".printed")) one.remove(); });

async function start() {
  const given = new URLSearchParams(location.hash.split("?")[1]);
  if (DATA.live && (given.get("model") || given.get("system"))) await load({ model: given.get("model") || DATA.model, system: given.get("system") || DATA.system });
  restore();
  const id = chapter.split("?")[0];
  now = derive(state.values);
  for (const watch of watchers) watch();
  locate();
  if (id && document.getElementById(id)) document.getElementById(id).scrollIntoView({ behavior: "instant" });
}
addEventListener("popstate", () => { restore(); update(); });
start().then(() => { document.documentElement.dataset.ready = "yes"; performance.mark("ready"); });
