// What models did with an image: a view a section, a model a column, a slider over the layers.
import { chart, make } from "/page/build.js";

let serial = 0;

export function showViews(place, explained) {
  const keys = [...new Set(explained.flatMap((one) => one.views.map((view) => view.key)))];
  const has = (key) => explained.some((one) => one.views.some((view) => view.key === key && !view.absent));
  const none = keys.filter((key) => !has(key));
  place.replaceChildren(
    ...keys.filter(has).map((key) => section(key, explained)),
    ...(none.length ? [absent(none, explained)] : []),
  );
}

// What does not apply, in one line; the reasons are folded.
function absent(keys, explained) {
  const views = keys.map((key) => explained.flatMap((one) => one.views).find((view) => view.key === key));
  return make(
    "details", { class: "note", "data-view": "absent" },
    make("summary", {}, `Views that do not apply here: ${views.map((view) => view.title).join(", ")}`),
    make("ul", {}, ...views.map((view) => make("li", {}, make("strong", {}, view.title), `: ${view.absent}`))),
  );
}

function section(key, explained) {
  const image = explained.every((one) => one.picture);
  const found = explained.map((one) => ({ model: one.model, view: one.views.find((view) => view.key === key) }));
  const first = (found.find((one) => one.view && !one.view.absent) ?? found.find((one) => one.view)).view;
  const id = `view-${++serial}`;
  const sliders = [];
  const alike = found.every((one) => !one.view || one.view.absent || one.view.about === first.about);
  const columns = found.map(({ model, view }) => {
    const column = make("div", {}, found.length > 1 ? make("h4", {}, model) : null);
    if (!view) column.append(make("p", { class: "note" }, "This model has no such view."));
    else if (view.absent) column.append(make("p", { class: "note" }, view.absent));
    else if (!alike) column.append(make("p", {}, view.about));
    if (view && !view.absent) fill(column, view, { model: found.length > 1 ? model : null, sliders, image });
    return column;
  });
  // Sliders of two models move together: by the share of the depth, since one may have more layers.
  for (const slider of sliders) {
    slider.input.addEventListener("input", () => {
      for (const other of sliders) if (other !== slider) other.move(slider.share());
    });
  }
  return make(
    "section", { class: "view", "aria-labelledby": id, "data-view": key },
    make("h3", { id }, first.title),
    alike ? make("p", {}, first.about) : null,
    make("div", { class: found.length > 1 ? "pair two" : "pair" }, ...columns),
  );
}

function fill(column, view, { model, sliders, image }) {
  // Of images, views that have nothing but charts are for experts.
  for (const figure of view.figures) figure.expert = image && view.figures.every((one) => !one.picture);
  const layered = view.figures.filter((figure) => figure.depth !== null);
  const depths = [...new Set(layered.map((figure) => figure.depth))].sort((a, b) => a - b);
  const groups = depths.map((depth) => layered.filter((figure) => figure.depth === depth));
  if (groups.length) column.append(slide(groups, { title: view.title, model, sliders }));
  const rest = view.figures.filter((figure) => figure.depth === null);
  if (rest.length) column.append(figures(rest));
}

function slide(groups, { title, model, sliders }) {
  const id = `slider-${++serial}`;
  const last = groups.length - 1;
  const input = make("input", { type: "range", id, min: 0, max: last, step: 1, value: last });
  input.value = last; // the last layers are what the answer is made of
  const said = make("output", { for: id });
  const shown = groups.map((group) => figures(group));
  const update = () => {
    const at = Number(input.value);
    const layer = groups[at].find((figure) => figure.layer)?.layer ?? "";
    const text = `${at + 1} of ${groups.length}${layer ? `: ${layer}` : ""}`;
    said.textContent = text;
    input.setAttribute("aria-valuetext", text);
    shown.forEach((element, index) => (element.hidden = index !== at));
  };
  input.addEventListener("input", update);
  update();
  sliders.push({
    input,
    share: () => (last ? Number(input.value) / last : 1),
    move: (share) => {
      input.value = Math.round(share * last);
      update();
    },
  });
  const name = `Layer, ${title}${model ? `, ${model}` : ""}`;
  input.setAttribute("aria-label", name);
  const bar = make("div", { class: "slider" }, make("span", { "aria-hidden": "true" }, "Layer"), input, said);
  bar.hidden = groups.length < 2;
  return make("div", {}, bar, ...shown);
}

function figures(group) {
  const pictures = group.filter((figure) => figure.picture);
  const charts = group.filter((figure) => !figure.picture);
  const box = make("div", {});
  const folded = charts.length && !pictures.length && group.every((figure) => figure.expert);
  const size = pictures.length > 2 ? "figures" : "figures large"; // a few can be seen as large as the page allows
  if (pictures.length) box.append(make("div", { class: size }, ...pictures.map(figure)));
  if (charts.length) {
    const drawn = make("div", { class: "figures charts" }, ...charts.map(figure));
    box.append(folded ? make("details", {}, make("summary", {}, "Charts"), drawn) : drawn);
  }
  return box;
}

function figure(one) {
  return make(
    "figure", { class: "figure" },
    one.picture ? make("img", { src: one.picture, alt: one.caption }) : null,
    one.chart ? chart(one.chart) : null,
    // An image's caption is its text already; it is read once.
    make("figcaption", { "aria-hidden": one.picture ? "true" : null }, one.caption),
  );
}
