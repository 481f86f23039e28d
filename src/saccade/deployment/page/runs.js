// Runs and comparisons: a list, and the report of one of them in a frame that can run and load nothing.
import { ask, askJson } from "/page/ask.js";
import { byId, make, percent } from "/page/build.js";

export async function showRuns(complain) {
  const place = byId("run-list");
  const { runs } = await askJson("/runs");
  if (!runs.length) {
    place.replaceChildren(make("p", { class: "note" }, "There are none; start the server with --browse FOLDER."));
    return;
  }
  const head = ["Name", "Kind", "What it is", "Result", "Report"];
  const rows = [...runs].sort(better).map((run) => make(
    "tr", {},
    make("th", { scope: "row" }, run.name),
    make("td", {}, run.kind),
    make("td", {}, what(run)),
    make("td", { class: "num" }, result(run.facts.score)),
    make("td", {}, run.has_report ? button(run, complain) : "none yet"),
  ));
  const caption = "Runs and comparisons on this server";
  place.replaceChildren(make(
    "div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    make(
      "table", {},
      make("caption", {}, caption),
      make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...rows),
    ),
  ));
}

// Comparisons first, then finished runs, the best of a kind of result first; the rest by name.
function better(a, b) {
  const rank = (run) => (run.kind === "comparison" ? 0 : run.finished ? 1 : 2);
  const [one, two] = [a.facts.score, b.facts.score];
  const score = one && two && one.name === two.name ? (two.value - one.value) * (one.larger === false ? -1 : 1) : 0;
  return rank(a) - rank(b) || score || a.name.localeCompare(b.name, undefined, { numeric: true });
}

// What a run reached in the metric it is judged by, with the metric's words.
function result(score) {
  return score ? `${score.words} ${score.share && score.value !== null ? percent(score.value) : score.text}` : "";
}

function what(run) {
  if (run.kind === "comparison") return `arms: ${(run.facts.arms ?? []).join(", ")}${run.finished ? "" : " (unfinished)"}`;
  if (!run.finished) return "unfinished";
  return `${run.facts.data ?? "trained"}, ${run.facts.epochs} epoch${run.facts.epochs === 1 ? "" : "s"}`;
}

function button(run, complain) {
  const open = make("button", { type: "button", "aria-label": `Show the report of ${run.name}` }, "Show");
  open.addEventListener("click", async () => {
    try {
      showReport(run, await (await ask(`/reports/${run.id}`)).text(), open);
    } catch (error) {
      complain(error.message);
    }
  });
  return open;
}

function showReport(run, html, opener) {
  const place = byId("report");
  const close = make("button", { type: "button" }, "Close the report");
  close.addEventListener("click", () => {
    place.hidden = true;
    place.replaceChildren();
    opener.focus();
  });
  const frame = make("iframe", { sandbox: true, title: `Report of ${run.name}` });
  frame.srcdoc = html;
  place.replaceChildren(make("div", { class: "buttons" }, make("h3", {}, run.name), close), frame);
  place.hidden = false;
  place.focus();
}
