// The OpenAPI description, readable.
import { byId, make } from "/page/build.js";

function list(caption, head, rows) {
  if (!rows.length) return null;
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, make(
    "table", {}, make("caption", {}, caption),
    make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...rows.map(([first, ...rest]) => make(
      "tr", {}, make("th", { scope: "row" }, first), ...rest.map((cell) => make("td", {}, cell))))),
  ));
}

const kind = (schema) => schema?.type ?? schema?.anyOf?.map((one) => one.type).join(" or ") ?? "";

function operation(path, method, about) {
  const title = `${method.toUpperCase()} ${path}`;
  const bodies = Object.entries(about.requestBody?.content ?? {}).map(([type, body]) =>
    [type, Object.keys(body.schema?.properties ?? {}).join(", ") || "the image itself"]);
  const options = (about.parameters ?? []).map((one) => [one.name, one.in, kind(one.schema), one.description ?? ""]);
  const answers = Object.entries(about.responses ?? {}).map(([status, one]) => [status, one.description ?? ""]);
  return make("section", {},
    make("h2", {}, make("span", { class: "method" }, title)),
    make("p", {}, about.description ?? about.summary ?? ""),
    list(`Bodies of ${title}`, ["Content type", "Fields"], bodies),
    list(`Options of ${title}`, ["Name", "Where", "Type", "What"], options),
    list(`Answers of ${title}`, ["Status", "When"], answers));
}

const place = byId("content");
try {
  const described = await (await fetch("/openapi.json")).json();
  const parts = Object.entries(described.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, about]) => operation(path, method, about)));
  const host = location.origin;
  place.replaceChildren(
    make("p", {}, described.info.summary ?? ""),
    make("pre", {}, `curl -F file=@image.jpg ${host}/predict`),
    ...parts);
} catch {
  place.replaceChildren(make("p", { role: "alert" }, "The description cannot be had; is the server still running?"));
}
