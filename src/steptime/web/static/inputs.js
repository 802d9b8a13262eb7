// Inputs of boards: a slider with a field and a unit, a list of words, or a line of text. The page sends typed text as it is;
// the library checks it.

const DIGITS = 4;

export function control(one, current, changed) {
  const box = el("div", { class: "control", "data-input": one.name });
  const id = `${one.board}-${one.name}`;
  const label = el("label", { for: id, title: one.words }, [one.label, el("span", { class: "unit" }, [one.unit || ""])]);
  const message = el("p", { class: "message", role: "alert" });
  box.append(label);
  if (one.kind === "choice") {
    const list = el("select", { id, name: one.name }, one.options.map((word) => el("option", { value: word }, [word])));
    list.value = current;
    list.addEventListener("change", () => changed(list.value, true));
    box.append(list);
    box.show = (given) => { list.value = given; };
  } else if (one.kind === "text") {
    const field = el("input", { id, name: one.name, value: current });
    field.addEventListener("change", () => changed(field.value, true));
    box.append(field);
    box.show = (given) => { field.value = given; };
  } else {
    const field = el("input", { id, name: one.name, inputmode: "decimal", value: short(current), autocomplete: "off" });
    const range = el("input", { type: "range", min: 0, max: 1000, step: 1, "aria-label": `${one.label}, slider`, value: toRange(one, current) });
    const told = (given) => range.setAttribute("aria-valuetext", `${short(given)} ${one.unit || ""}`.trim());
    told(current);
    // Arrow keys move whole numbers by at least one unit; other keys move by the track.
    range.addEventListener("keydown", (event) => {
      const sign = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      const unit = one.step || (one.whole ? 1 : 0), held = fromRange(one, +range.value);
      if (!sign || !unit || Math.abs(fromRange(one, +range.value + sign) - held) >= unit) return;
      event.preventDefault();
      const given = rounded(one, (asNumber(field.value) ?? held) + sign * unit);
      range.value = toRange(one, given); field.value = short(given); told(given); changed(given, true);
    });
    range.addEventListener("input", () => { const given = fromRange(one, +range.value); field.value = short(given); told(given); changed(given, false); });
    range.addEventListener("change", () => changed(fromRange(one, +range.value), true));
    field.addEventListener("input", () => { const given = asNumber(field.value); if (given !== null) { range.value = toRange(one, given); changed(given, false); } });
    field.addEventListener("change", () => { const given = asNumber(field.value); changed(given === null ? field.value : given, true); });
    box.append(el("div", { class: "row" }, [range, field]));
    box.show = (given) => { field.value = short(given); range.value = toRange(one, given); told(given); };
  }
  box.append(message);
  box.complain = (words) => { message.textContent = words; box.classList.toggle("wrong", Boolean(words)); };
  return box;
}

const toRange = (one, given) => {
  if (one.log) { const low = Math.max(one.low, 1e-9); return 1000 * Math.log(Math.max(given, low) / low) / Math.log(one.high / low); }
  return 1000 * (given - one.low) / (one.high - one.low);
};

export const fromRange = (one, place) => {
  const low = one.log ? Math.max(one.low, 1e-9) : one.low;
  const given = one.log ? low * (one.high / low) ** (place / 1000) : low + (one.high - low) * place / 1000;
  return rounded(one, given);
};

export function rounded(one, given) {
  const held = Math.min(Math.max(given, one.low), one.high);
  if (one.step) return Math.round(held / one.step) * one.step;
  const close = +held.toPrecision(3);
  return one.whole ? Math.round(close) : close;
}

const asNumber = (text) => {
  const scale = { k: 1e3, K: 1e3, M: 1e6, G: 1e9, B: 1e9, T: 1e12 };
  // Commas separate thousands; 1,5 is not a number here, and the library says so.
  const match = /^\s*((?:[0-9]{1,3}(?:[,_][0-9]{3})+|[0-9]+)\.?[0-9]*(?:e[+-]?[0-9]+)?)\s*([kKMGBT]?)\s*$/.exec(text);
  return match ? +match[1].replace(/[,_]/g, "") * (scale[match[2]] || 1) : null;
};

const short = (given) => (typeof given === "number" && !Number.isInteger(given) ? String(+given.toPrecision(DIGITS)) : String(given));

export function el(name, attributes = {}, children = []) {
  const made = document.createElement(name);
  for (const [key, given] of Object.entries(attributes)) if (given !== undefined && given !== null && given !== false) made.setAttribute(key, given);
  made.append(...children);
  return made;
}
