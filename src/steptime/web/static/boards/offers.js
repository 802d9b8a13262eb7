import { brief, colour, rows } from "../draw.js";

// The price of the request at each seller, cheapest first, with its parts.
export function draw({ tables, marks }, { width }) {
  const all = rows(tables.offers).map((one, n) => ({ ...one, key: `${n} ${one.seller}`, words: one.variant ? `${one.seller} (${one.variant})` : one.seller }));
  const most = d3.max(all, (one) => one.price) || 1, narrow = width < 520;
  const cut = (text) => (text.length > (narrow ? 18 : 26) ? `${text.slice(0, narrow ? 17 : 25)}…` : text);
  return Plot.plot({
    width, height: all.length * 22 + 64, marginLeft: narrow ? 138 : 190, marginRight: 64, marginTop: 20, marginBottom: 40,
    style: { background: "transparent", fontSize: "12px", fontFamily: "inherit", overflow: "visible" },
    x: { domain: [0, most], ticks: narrow ? 3 : 5, tickFormat: (d) => (d === 0 ? "0" : brief(d, "USD", 2)), label: null },
    y: { domain: all.map((one) => one.key), tickFormat: (key) => cut(all.find((one) => one.key === key).words), label: null, tickSize: 0 },
    marks: [
      Plot.ruleX([marks.median], { stroke: colour("quiet"), strokeDasharray: "3 4" }),
      Plot.barX(all, { x: "price", y: "key", fill: (one) => colour(one.role === "reseller" ? "ghost" : "money"), insetTop: 4, insetBottom: 4 }),
      Plot.text(all, { x: "price", y: "key", text: (one) => brief(one.price, "USD"), textAnchor: "start", dx: 5, stroke: colour("paper"), strokeWidth: 4, fill: colour("ink") }),
      Plot.text(["median"], { x: marks.median, frameAnchor: "top", dy: -12, fill: colour("quiet") }),
      Plot.text(["price of the request (grey: resellers)"], { frameAnchor: "bottom", dy: 34 }),
      Plot.tip(all, Plot.pointerY({ x: "price", y: "key", fill: colour("card"), stroke: colour("line"), fontSize: 12,
        title: (one) => `${one.words}, ${one.role}\ninput $${one.input}, output $${one.output} per million\n${one.cache_read === null ? "no cache price" : `cached $${one.cache_read}`}\nread ${one.date}` })),
    ],
  });
}
