// State of the page: variables, the numbers that closed forms derive from them, numbers in words, and the address.

const VARIABLES = new Map(DATA.variables.map((one) => [one.name, one]));
const DERIVED = new Map([...DATA.derived, ...DATA.lookups].map((one) => [one.name, one]));
const ABOUT = new Map([...DERIVED, ...VARIABLES]);
const AB = new Set(["add", "sub", "mul", "truediv", "maximum", "minimum"]);
const state = { model: DATA.model, system: DATA.system, values: { ...DATA.defaults } };
// Variables as the pair of model and system sets them; a new object only for a new pair.
function basis() {
  const { model, system } = state, pair = DATA.pairs[model][system];
  if (basis.pair !== pair) Object.assign(basis, { pair, values: { ...DATA.defaults, ...DATA.models[model], ...DATA.systems[system], ...pair } });
  return basis.values;
}

// The steps that derive some numbers and all that they need; `names` undefined: all numbers. Each step keeps its object of arguments.
const compiled = new Map();
function compile(names) {
  const key = names ? names.join() : "";
  if (!compiled.has(key)) {
    const needed = new Set(names || [...DERIVED.keys()]);
    for (const one of [...DATA.derived].reverse()) if (needed.has(one.name)) for (const given of Object.values(one.arguments)) needed.add(given);
    const works = DATA.derived.filter((one) => needed.has(one.name)).map((one) => {
      const form = FORMS[one.call], bag = { ...one.arguments }, given = Object.entries(one.arguments).filter(([, from]) => typeof from === "string");
      return (all) => {
        for (const [name, from] of given) bag[name] = all[from];
        all[one.name] = form(bag);
      };
    });
    if (needed.has("engine")) works.unshift((all) => { all.engine = engineSeconds(all); });
    compiled.set(key, works);
  }
  return compiled.get(key);
}
function derive(values, names) {
  const all = { ...values };
  for (const work of compile(names)) work(all);
  return all;
}
// Columns of some numbers, where one variable has each of the values `at`.
function deriveColumns(values, name, at, names) {
  const all = { ...values }, works = compile(names), columns = names.map(() => []);
  for (const value of at) {
    all[name] = value;
    for (const work of works) work(all);
    for (let n = 0; n < names.length; n += 1) columns[n].push(all[names[n]]);
  }
  return Object.fromEntries(names.map((one, n) => [one, columns[n]]));
}

// Time of a pass of a real engine: a table of the full model for catalogue pairs, so nothing where a number of the pair was changed.
const OF_PAIR = ["flops", "bandwidth", "chips", "total", "active", "weight_bytes", "kv_bytes"];
function isPair(values) { const base = basis(); return OF_PAIR.every((name) => values[name] === base[name]); }
function engineSeconds(values, part = "seconds") {
  const { batch, context } = values;
  const rows = DATA.engine[part][state.model]?.[state.system];
  const { contexts } = DATA.engine;
  if (!rows || !isPair(values) || context > contexts[contexts.length - 1]) return NaN;
  const batches = part === "seconds" ? DATA.engine.batches : DATA.engine.batches.filter((_, n) => n % 4 === 0);
  const n = Math.min(Math.max(batches.findIndex((each) => each >= batch), 1), batches.length - 1);
  const along = Math.min(Math.max(Math.log(batch / batches[n - 1]) / Math.log(batches[n] / batches[n - 1]), 0), 1);
  // Batches on logarithmic axes, contexts on a linear one, as in Python; null is beyond the context of the model.
  const at = (row) => (row[n] === null ? NaN : row[n - 1] * (row[n] / row[n - 1]) ** along);
  const upper = Math.max(contexts.findIndex((each) => each >= context), 1), low = contexts[upper - 1];
  const share = Math.min(Math.max((context - low) / (contexts[upper] - low), 0), 1);
  if (share === 0 || share === 1) return at(rows[upper - 1 + share]);
  return at(rows[upper - 1]) * (1 - share) + at(rows[upper]) * share;
}
function nearest(list, value) { return list.reduce((best, each, n) => Math.abs(Math.log(each / value)) < Math.abs(Math.log(list[best] / value)) ? n : best, 0); }

// --- numbers in words ---------------------------------------------------------------------------------------------------

function inDigits(value, digits) {
  const text = String(+value.toPrecision(digits));
  const [whole, part] = text.split(".");
  if (text.includes("e")) return text;
  return whole.replace(/\B(?=(\d{3})+$)/g, ",") + (part ? "." + part : "");
}

function written(given, unit = "", more = 0) {
  if (!Number.isFinite(given)) return Number.isNaN(given) ? "unknown here" : "no limit";
  const value = given * (1 + 1e-12);  // ties round up, as in Python
  const digits = more || (unit === "sequences" ? 4 : 3);
  if (unit === "USD/Mtok" || unit === "USD/h") return `$${inDigits(value, digits)}${unit === "USD/h" ? " per hour" : ""}`;
  if (DATA.scales[unit]) {
    const [, size, name] = DATA.scales[unit].find(([low]) => Math.abs(value) >= low * 0.9995);
    return `${inDigits(value / size, digits)} ${name}`;
  }
  if (unit === "x") return `${inDigits(value, digits)}x`;
  const [size, word] = DATA.large.find(([least]) => Math.abs(value) >= least * 0.9995) || [1, ""];
  const text = inDigits(value / size, digits);
  return `${text} ${word}${text === "1" && !word && unit.endsWith("s") ? unit.slice(0, -1) : unit}`.trimEnd();
}
const unitOf = (name) => ABOUT.get(name)?.unit || "";
const labelOf = (name) => ABOUT.get(name)?.label || name;

// --- changes ------------------------------------------------------------------------------------------------------------

const watchers = [];
const rounded = (one, value) => {
  const held = Math.min(Math.max(value, one.low), one.high);
  return one.whole ? Math.max(Math.round(+held.toPrecision(3)), one.low) : +held.toPrecision(3);
};
// Place of a value on the track of its slider, 0 to 1, and back.
const toTrack = (one, value) => one.log ? Math.log(value / one.low) / Math.log(one.high / one.low) : (value - one.low) / (one.high - one.low);
const fromTrack = (one, place) => rounded(one, one.log ? one.low * (one.high / one.low) ** place : one.low + (one.high - one.low) * place);

let now = derive(state.values);
let frame = 0, pendingHistory = false, changing = false;
// Set variables; a drag that stays on the same number draws nothing. Returns whether the page changes.
function change(values, settled = true) {
  const given = Object.entries(values).filter(([name, value]) => VARIABLES.has(name) && Number.isFinite(value));
  if (!settled && given.every(([name, value]) => state.values[name] === value)) return false;
  for (const [name, value] of given) {
    const one = VARIABLES.get(name);
    state.values[name] = value;
    // Total parameters are never below the active ones.
    if (one.at_least && value < state.values[one.at_least]) state.values[one.at_least] = value;
    if (one.at_most && value > state.values[one.at_most]) state.values[one.at_most] = value;
  }
  pendingHistory ||= settled;
  changing = !settled;
  if (!frame) frame = requestAnimationFrame(update);
  return true;
}
function update() {
  frame = 0;
  now = derive(state.values);
  for (const watch of watchers) watch();
  store();
}

function choose(kind, name) {
  state[kind] = name;
  change({ ...DATA.models[state.model], ...DATA.systems[state.system], ...DATA.pairs[state.model][state.system] });
}

// --- the address: only what differs from the model, the system and the defaults ------------------------------------------

let chapter = "";
function address() {
  const query = new URLSearchParams();
  if (state.model !== DATA.model) query.set("model", state.model);
  if (state.system !== DATA.system) query.set("system", state.system);
  const base = basis();
  for (const [name, value] of Object.entries(state.values)) if (value !== base[name]) query.set(name, value);
  for (const [name, value] of Object.entries(guesses)) query.set(`guess.${name}`, value);
  for (const [name, value] of Object.entries(views)) query.set(`view.${name}`, value);
  const text = query.toString();
  return `#${chapter}${text ? "?" + text : ""}`;
}
const guesses = {};
// Whose numbers a picture shows, where they are not those of its step.
const views = {}, VIEWS = {
  spoken: ["lecture's numbers", "this picture with the lecture's numbers of this chapter; the page keeps its numbers"],
  ideal: ["ideal", "closed forms with the numbers of this page"],
  engine: ["engine", "the full model of this page's pair: kernels, network and overheads"],
  measured: ["measured", "public measured runs of this page's pair"],
  all: ["all four", "lecture's numbers, ideal, engine and measured runs in one picture"],
};
let timer = 0;
function store() {
  clearTimeout(timer);
  timer = setTimeout(() => {
    // A drag is one step of the history, and none while it pauses: Back returns to the numbers before it.
    if (changing) return;
    const to = address(), isStep = pendingHistory;
    pendingHistory = false;
    if (to === location.hash || (to === "#" && !location.hash)) return;
    if (isStep) history.pushState(null, "", to);
    else history.replaceState(null, "", to);
  }, 150);
}
function restore() {
  const [place, query = ""] = location.hash.slice(1).split(/\?(.*)/s);
  const given = new URLSearchParams(query);
  chapter = place;
  state.model = Object.hasOwn(DATA.models, given.get("model")) ? given.get("model") : DATA.model;
  state.system = Object.hasOwn(DATA.systems, given.get("system")) ? given.get("system") : DATA.system;
  if (!DATA.pairs[state.model]?.[state.system]) { state.model = DATA.model; state.system = DATA.system; }
  state.values = { ...basis() };
  for (const name of Object.keys(views)) delete views[name];
  for (const [name, text] of given) {
    if (name.startsWith("view.") && Object.hasOwn(DATA.pictures, name.slice(5)) && Object.hasOwn(VIEWS, text)) views[name.slice(5)] = text;
    const value = Number(text), one = VARIABLES.get(name);
    if (one && text.trim() && Number.isFinite(value)) state.values[name] = Math.min(Math.max(value, one.low), one.high);
    if (name.startsWith("guess.") && DATA.chapters.some((each) => `guess.${each.id}` === name) && Number.isFinite(value)) guesses[name.slice(6)] = value;
  }
  if (state.values.total < state.values.active) state.values.total = state.values.active;
}
