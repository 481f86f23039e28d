// Elements from data. Text is always set as text: names of classes and files come from elsewhere.

export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// A class that can be hidden: a box to tick, its colour and its name.
export function classChoice(place, { shown, colour, update }, ...name) {
  const check = make("input", { type: "checkbox", checked: true });
  check.addEventListener("change", () => {
    if (check.checked) shown.add(place);
    else shown.delete(place);
    update();
  });
  const swatch = make("i", { class: "swatch", "aria-hidden": "true" });
  swatch.style.background = colour;
  return make("label", {}, check, swatch, ...name);
}

export const byId = (id) => document.getElementById(id);

export const percent = (share) =>
  share === null ? "not a number" : `${(100 * share).toFixed(share > 0.9995 || share < 0.0005 ? 2 : 1)}%`;

const ELEMENTS = new Set((
  "figure figcaption div span p ul ol li dl dt dd table caption thead tbody tfoot tr th td strong em b i code pre kbd " +
  "small br hr details summary h3 h4 h5 svg g path line rect circle ellipse polygon polyline text tspan title desc img mark"
).split(" "));
const ATTRIBUTES = new Set((
  "class id role scope colspan rowspan tabindex alt width height viewbox preserveaspectratio d x y x1 y1 x2 y2 dx dy cx cy r " +
  "rx ry points transform fill stroke stroke-width stroke-dasharray fill-opacity opacity text-anchor dominant-baseline " +
  "font-size font-weight style title focusable open data-x data-y data-at data-points data-name data-label data-percent"
).split(" "));

// A chart is HTML which the server made; what is not of a chart is left out all the same.
export function chart(html) {
  const parsed = new DOMParser().parseFromString(html, "text/html");
  for (const element of [...parsed.body.querySelectorAll("*")]) {
    if (!ELEMENTS.has(element.localName.toLowerCase())) {
      element.remove();
      continue;
    }
    for (const { name, value } of [...element.attributes]) {
      const plain = name.toLowerCase();
      const picture = plain === "src" && element.localName === "img" && value.startsWith("data:image/png;base64,");
      const styled = plain !== "style" || !/url|expression|@import/i.test(value);
      const kept = (ATTRIBUTES.has(plain) && styled) || plain.startsWith("aria-") || picture;
      if (!kept) element.removeAttribute(name);
    }
    element.removeAttribute("id"); // the same chart stands on the page twice when two models are asked
    for (const pointing of ["aria-labelledby", "aria-describedby", "aria-controls"]) element.removeAttribute(pointing);
  }
  const box = make("div", { class: "chart-box" });
  box.append(...document.adoptNode(parsed.body).childNodes);
  return box;
}
