// Answers of a static copy: the nearest of the stored answers.

export function answers(start) {
  const inputs = new Map(start.boards.map((board) => [board.name, board.inputs]));
  const lists = new Map();
  return async (name, body) => {
    if (!lists.has(name)) lists.set(name, await (await fetch(`data/${name}/index.json`)).json());
    const list = lists.get(name);
    const far = (kept) => Object.entries(body).reduce((sum, [key, given]) => sum + apart(inputs.get(name).find((one) => one.name === key), kept[key], given), 0);
    const place = list.reduce((best, kept, n) => (far(kept) < best[0] ? [far(kept), n] : best), [Infinity, 0])[1];
    const data = await (await fetch(`data/${name}/${place}.json`)).json();
    const same = Object.entries(body).every(([key, given]) => key === "coarse" || String(list[place][key]) === String(given));
    data.kept = list[place];
    if (!same) data.notes = [...data.notes, "This copy has no server: it shows the nearest stored answer. `steptime web` computes all answers."];
    return { ok: true, data };
  };
}

// Distance of two values of an input: share of the slider for numbers, 1 for different words.
function apart(one, kept, given) {
  if (kept === undefined || String(kept) === String(given)) return 0;
  if (!one || one.kind !== "slider" || !isFinite(given)) return one ? 1 : 4;
  const place = (at) => (one.log ? Math.log(Math.max(at, 1e-9)) / Math.log(one.high / Math.max(one.low, 1e-9)) : at / (one.high - one.low));
  return (place(kept) - place(+given)) ** 2;
}
