// Objects over their image: boxes, names and masks; how sure they have to be, and which classes are shown.
import { classChoice, make } from "/page/build.js";

let serial = 0;
const LARGEST = 1024; // pixels of the canvas's longer side
const LEAST = 480; // pixels that a small image's longer side is shown in

export function showObjects(image, answer) {
  const { objects, outputs, colours, size: [height, width] } = answer;
  const scale = LARGEST / Math.max(height, width);
  const canvas = make("canvas", { width: Math.round(width * scale), height: Math.round(height * scale), role: "img" });
  const places = [...new Set(objects.map((one) => one.index))].sort((a, b) => a - b);
  const shown = new Set(places);
  const least = make("input", {
    type: "range", id: `least-${++serial}`, min: 5, max: 100, step: 1, value: Math.round(100 * answer.sure),
  });
  const said = make("output", { for: least.id });
  const counts = new Map(places.map((place) => [place, make("span", { class: "count" })]));
  const update = () => {
    const kept = objects.filter((one) => 100 * one.score >= Number(least.value));
    for (const [place, count] of counts) count.textContent = ` ${kept.filter((one) => one.index === place).length}`;
    const drawn = kept.filter((one) => shown.has(one.index));
    paint(canvas, drawn, { scale, colours });
    said.textContent = `${least.value}%`;
    const text = `${drawn.length} ${drawn.length === 1 ? "object" : "objects"} shown, at least ${least.value}% sure`;
    least.setAttribute("aria-valuetext", text);
    canvas.setAttribute("aria-label", text);
  };
  const choice = (place) => {
    const name = make("span", {}, outputs[place], counts.get(place));
    return classChoice(place, { shown, colour: colours[place], update }, name);
  };
  least.addEventListener("input", update);
  update();
  if (Math.max(height, width) < LEAST) image.style.width = `${Math.round((LEAST * width) / Math.max(height, width))}px`;
  return make("div", {},
    make("div", { class: "masked objects" }, image, canvas),
    make("div", { class: "slider" }, make("label", { for: least.id }, "At least"), least, said),
    places.length ? make("fieldset", { class: "classes" }, make("legend", {}, "Classes"), ...places.map(choice)) : null);
}

// The surest come first and are drawn last, so that they lie on top.
function paint(canvas, objects, { scale, colours }) {
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const line = Math.max(2, Math.max(canvas.width, canvas.height) / 300);
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.lineWidth = line;
  const letters = matchMedia("(max-width: 720px)").matches ? 10 * line : 6 * line;
  pen.font = `600 ${letters}px system-ui, sans-serif`;
  pen.textBaseline = "top";
  for (const one of [...objects].reverse()) {
    pen.fillStyle = pen.strokeStyle = colours[one.index];
    if (one.segmentation) fill(pen, one.segmentation, scale);
    const [left, top, right, bottom] = one.box.map((side) => side * scale);
    pen.strokeRect(left, top, right - left, bottom - top);
    const text = `${one.class.slice(0, 24)} ${Math.round(100 * one.score)}%`;
    const [high, wide] = [letters + 1.5 * line, pen.measureText(text).width + 2 * line];
    const above = top >= high ? top - high : top;
    const begin = Math.max(0, Math.min(left, canvas.width - wide));
    pen.fillRect(begin, above, wide, high);
    pen.fillStyle = legible(colours[one.index]);
    pen.fillText(text, begin + line, above + line);
  }
}

function legible(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return 0.3 * red + 0.59 * green + 0.11 * blue > 128 ? "#000" : "#fff";
}

function fill(pen, { size: [height], counts }, scale) {
  pen.globalAlpha = 0.45;
  let at = 0;
  unpack(counts).forEach((count, place) => {
    for (let left = count; place % 2 && left > 0;) {
      const [x, y] = [Math.floor(at / height), at % height];
      const run = Math.min(left, height - y);
      pen.fillRect(x * scale, y * scale, Math.max(scale, 1), run * scale);
      at += run;
      left -= run;
    }
    if (place % 2 === 0) at += count;
  });
  pen.globalAlpha = 1;
}

// Lengths of runs down the columns, as COCO packs them: five bits a letter, differences to the last but one.
function unpack(letters) {
  const counts = [];
  for (let at = 0; at < letters.length;) {
    let [value, shift, bits] = [0, 0, 32];
    while (bits & 32) {
      bits = letters.charCodeAt(at++) - 48;
      value += (bits & 31) * 2 ** shift;
      shift += 5;
    }
    if (bits & 16) value -= 2 ** shift;
    counts.push(value + (counts.length > 2 ? counts[counts.length - 2] : 0));
  }
  return counts;
}
