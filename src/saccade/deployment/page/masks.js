// A mask over its image: which classes are shown, and how strongly.
import { classChoice, make } from "/page/build.js";

let serial = 0;

export function showMask(image, answer) {
  const { mask, outputs } = answer;
  const canvas = make("canvas", { width: mask.width, height: mask.height, role: "img", "aria-label": answer.text });
  const box = make("div", { class: "masked" }, image, canvas);
  const shown = new Set();
  const opacity = make("input", { type: "range", id: `opacity-${++serial}`, min: 0, max: 100, step: 5, value: 55 });
  const said = make("output", { for: opacity.id }, "55%");
  opacity.addEventListener("input", () => {
    canvas.style.opacity = opacity.value / 100;
    said.textContent = `${opacity.value}%`;
    opacity.setAttribute("aria-valuetext", said.textContent);
  });
  canvas.style.opacity = 0.55;
  const places = document.createElement("canvas");
  const source = new Image();
  const draw = () => {
    const pen = canvas.getContext("2d");
    const read = places.getContext("2d").getImageData(0, 0, mask.width, mask.height).data;
    const painted = pen.createImageData(mask.width, mask.height);
    for (let at = 0; at < read.length; at += 4) {
      const place = read[at] + 256 * read[at + 1];
      if (!shown.has(place)) continue;
      const [red, green, blue] = mask.colours[place] ?? [128, 128, 128];
      painted.data.set([red, green, blue, 255], at);
    }
    pen.putImageData(painted, 0, 0);
  };
  const filter = make("fieldset", { class: "classes" }, make("legend", {}, "Classes"));
  source.addEventListener("load", () => {
    places.width = mask.width;
    places.height = mask.height;
    const pen = places.getContext("2d", { willReadFrequently: true });
    pen.drawImage(source, 0, 0);
    const read = pen.getImageData(0, 0, mask.width, mask.height).data;
    for (let at = 0; at < read.length; at += 4) shown.add(read[at] + 256 * read[at + 1]);
    for (const place of [...shown].sort((a, b) => a - b)) filter.append(choice(place));
    draw();
  });
  const choice = (place) =>
    classChoice(place, { shown, colour: `rgb(${mask.colours[place].join(",")})`, update: draw }, outputs[place]);
  source.src = `data:image/png;base64,${mask.png}`;
  const slider = make("div", { class: "slider" }, make("label", { for: opacity.id }, "Opacity"), opacity, said);
  return make("div", {}, box, slider, filter);
}
