// The routes of openapi.json, with their inputs and a request to copy.

import { el } from "./inputs.js";

document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
const about = await (await fetch("openapi.json")).json();

function inputsOf(route) {
  const name = route.requestBody?.content["application/json"].schema.$ref?.split("/").pop();
  const found = name ? about.components.schemas[name].properties : {};
  return Object.entries(found);
}

function bounds(one) {
  const parts = [one.type || "", one.minimum !== undefined ? `from ${one.minimum}` : "", one.maximum !== undefined ? `to ${one.maximum}` : "", one.unit || ""];
  return parts.filter(Boolean).join(" ");
}

const sections = Object.entries(about.paths).flatMap(([path, methods]) => Object.entries(methods).filter(([method]) => method === "post" || !methods.post).map(([method, route]) => {
  const inputs = inputsOf(route);
  const rows = inputs.map(([name, one]) => el("tr", {}, [el("td", {}, [name]), el("td", {}, [bounds(one)]), el("td", {}, [JSON.stringify(one.default ?? null)]), el("td", {}, [one.description || ""])]));
  const some = inputs.filter(([, one]) => typeof one.default === "number").slice(0, 2).map(([name, one]) => `"${name}": ${one.default}`).join(", ");
  const line = method === "post" ? `curl ${location.origin}${path} -H 'content-type: application/json' -d '{${some}}'` : `curl ${location.origin}${path}`;
  return el("section", { class: "board" }, [
    el("h2", {}, [`${Object.keys(methods).map((each) => each.toUpperCase()).join(", ")} ${path}`]),
    el("p", {}, [route.summary || ""]),
    ...(rows.length ? [el("table", {}, [el("thead", {}, [el("tr", {}, ["input", "kind", "default", "meaning"].map((words) => el("th", {}, [words])))]), el("tbody", {}, rows)])] : []),
    el("pre", { class: "formula" }, [line]),
  ]);
}));
document.getElementById("routes").replaceChildren(el("p", {}, [about.info.description]), ...sections);
