// The state of the page, stored in the address: #board?model=...&step.batch=64; only values that differ from the defaults.

let kept = location.hash;  // the last address
export const state = { board: "", values: new Map() };

export function read() {
  const [board, query = ""] = location.hash.slice(1).split(/\?(.*)/s);
  state.board = board;
  state.values = new Map(new URLSearchParams(query));
  kept = location.hash;
}

export function value(key, fallback) {
  return state.values.has(key) ? state.values.get(key) : fallback;
}

export function set(key, given, fallback, settled = true) {
  if (given === undefined || String(given) === String(fallback)) state.values.delete(key);
  else state.values.set(key, String(given));
  write(settled);
}

// A finished change is an entry of the browser history; while a slider moves, the address is only replaced.
let waiting = 0, step = false;
export function write(settled = false) {  // at most ten times a second: browsers refuse more
  step ||= settled;
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    const to = address();
    if (step && kept !== new URL(to, location.href).hash) { history.pushState(null, "", to); kept = location.hash; }
    else history.replaceState(null, "", to);
    step = false;
  }, 100);
}

export function address() {
  const query = new URLSearchParams(state.values).toString();
  return location.pathname + location.search + "#" + state.board + (query ? "?" + query : "");
}
