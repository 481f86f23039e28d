// The page: takes an image, asks one or two models, shows what they say.
import { askJson } from "/page/ask.js";
import { byId, make, percent } from "/page/build.js";
import { showMask } from "/page/masks.js";
import { showObjects } from "/page/objects.js";
import { listen } from "/page/picker.js";
import { showRuns } from "/page/runs.js";
import { showViews } from "/page/views.js";

let models = [];
let image = null;
let text = null; // of models that read texts: the one or two that were written
let asked = null; // aborts what an earlier image asked

const say = (text) => (byId("status").textContent = text);
const complain = (text) => (byId("alarm").textContent = text);

function chosen() {
  const second = byId("second").value;
  return [byId("first").value, second].filter((value) => value !== "").map((value) => models[Number(value)]);
}

function form(model) {
  const data = new FormData();
  if (model.reads !== "image") data.append("text", text[0]);
  if (model.texts > 1) data.append("pair", text[1]);
  if (model.reads !== "text") data.append("file", image, image.name || "image");
  data.append("model", model.index);
  return { method: "POST", body: data, signal: asked.signal };
}

// What is asked about is what the first model reads; another model that reads something else is not asked.
function reading() {
  const kind = models[Number(byId("first").value)]?.reads ?? "image";
  const second = models[Number(byId("first").value)]?.texts > 1;
  byId("drop").hidden = kind === "text";
  byId("text-form").hidden = kind === "image";
  byId("text-label").textContent = kind === "question" ? "Ask about it" : "Write a text";
  byId("pair-way").hidden = !second;
  byId("pair").required = second;
  return kind;
}

async function answer() {
  const kind = reading();
  if ((kind !== "text" && !image) || (kind !== "image" && !text)) return;
  asked?.abort();
  asked = new AbortController();
  const { signal } = asked;
  complain("");
  say("Asking.");
  byId("views").replaceChildren();
  try {
    const asking = chosen().filter((model) => model.reads === kind);
    const answers = await Promise.all(asking.map((model) => askJson("/predict", form(model))));
    showAnswers(answers);
    say(answers.map((one) => `${one.model}: ${inWords(one)}`).join("; ") + ".");
    if (byId("with-views").checked) await explain(asking, answers);
  } catch (error) {
    if (signal.aborted) return;
    say("");
    complain(error.message);
  }
}

async function explain(asking, answers) {
  const able = asking.filter((model) => model.explain);
  if (!able.length) return;
  const status = byId("status").textContent;
  say(`${status} Reading what the model did with it.`);
  const explained = await Promise.all(able.map((model) => askJson("/explain", form(model))));
  showAnswers(answers, explained);
  showViews(byId("views"), explained);
  say(`${status} The views are below.`);
}

let address = null;

function showAnswers(answers, explained = []) {
  if (address) URL.revokeObjectURL(address);
  const written = reading() === "text";
  address = written ? null : URL.createObjectURL(image);
  const place = byId("answers");
  place.classList.toggle("two", answers.length > 1);
  place.replaceChildren(...answers.map((one) => {
    const seen = explained.find((other) => other.model === one.model);
    const placed = one.mask || one.objects; // what lies on the image is of its own pixels
    const framed = placed ? undefined : seen?.picture;
    const alt = framed ? "The image as the model saw it" : "The image";
    const words = reading() === "image" ? null : text.filter(Boolean).join(" / ");
    const asked = written ? make("blockquote", {}, words) : make("img", { src: framed ?? address, alt });
    asked.addEventListener("error", () => asked.remove()); // the browser may not know a format the server does
    return make("article", { class: one.objects ? "answer large" : "answer", "aria-label": `Answer of ${one.model}` },
      make("h3", {}, words && !written ? `${one.model}: ${words}` : one.model), drawn(asked, one), parts(one));
  }));
}

// What lies on the image itself, where an answer says something of its places.
function drawn(asked, answer) {
  if (answer.mask) return showMask(asked, answer);
  return answer.objects ? showObjects(asked, answer) : asked;
}

// An answer in a line: the parts that are said, each with its share; of an answer without such parts, its text.
function inWords(answer) {
  const said = answer.rows.filter((row) => row.said);
  return said.length && !answer.objects ? said.map((row) => `${row.name}, ${worth(row)}`).join("; ") : answer.text;
}

const worth = (row) => (row.share === null ? row.text : percent(row.share));

// Any task's answer: a row a part, with a bar where the part has a share; what is said of any number is marked.
function parts(answer) {
  const several = Array.isArray(answer.answer);
  const list = make("ol", { class: "shares" }, ...answer.rows.map((row) => part(row, several)));
  if (!several || answer.answer.length) return list;
  return make("div", {}, make("p", { class: "note" }, answer.text), list);
}

function part(row, several) {
  const name = make(row.said ? "strong" : "span", { class: "name" }, row.name);
  if (row.said && several) name.append(make("span", { class: "mark" }, " ✓", make("span", { class: "spoken" }, " said")));
  const item = make("li", { class: row.said ? "said" : null }, name, make("span", { class: "share" }, worth(row)));
  if (row.share !== null) {
    const bar = make("i");
    bar.style.width = `${100 * row.share}%`;
    item.append(make("span", { class: "track", "aria-hidden": "true" }, bar));
  }
  return item;
}

function offer(select, entries) {
  select.replaceChildren(...entries.map(([value, text]) => make("option", { value }, text)));
  select.addEventListener("change", answer);
}

async function begin() {
  listen((file) => {
    image = file;
    byId("answers").replaceChildren();
    answer();
  }, complain);
  byId("with-views").addEventListener("change", answer);
  byId("text-form").addEventListener("submit", (event) => {
    event.preventDefault();
    text = [byId("text").value, byId("pair").value];
    answer();
  });
  try {
    const about = await askJson("/model");
    models = about.models;
    const entries = models.map((model) => [model.index, model.name]);
    offer(byId("first"), entries);
    offer(byId("second"), [["", "no other"], ...entries]);
    byId("second-way").hidden = models.length < 2;
    const kind = (model) => `${model.task} of ${model.texts}`;
    const alike = models.length === 2 && kind(models[0]) === kind(models[1]);
    if (alike) byId("second").value = models[1].index; // two of one kind are served to be compared
    reading();
    const { max_bytes: bytes, max_pixels: pixels } = about.limits;
    byId("limits").textContent =
      `At most ${Math.round(bytes / 1048576)} MiB and ${Math.round(pixels / 1e6)} million pixels.`;
    await showRuns(complain);
  } catch (error) {
    complain(error.message);
  }
}

begin();
