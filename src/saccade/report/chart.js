// Charts that can be read and zoomed: the values under the pointer, a part chosen by dragging, all by a double click.
(() => {
  const NS = "http://www.w3.org/2000/svg";
  const states = new WeakMap();
  const numbers = (text) => text.split(/[ ,]/).map(Number);
  const place = (scale, value) => scale[2] + ((value - scale[0]) / (scale[1] - scale[0])) * (scale[3] - scale[2]);
  const value = (scale, at) => scale[0] + ((at - scale[2]) / (scale[3] - scale[2])) * (scale[1] - scale[0]);
  const inside = (scale, one) => one >= scale[0] && one <= scale[1];

  function stateOf(svg) {
    if (states.has(svg)) return states.get(svg);
    const [x, y] = [numbers(svg.dataset.x), numbers(svg.dataset.y)];
    const state = { svg, x, y, all: { x, y }, lines: [], marks: [], drag: null };
    for (const path of svg.querySelectorAll(".line")) {
      const points = path.dataset.points ? path.dataset.points.split(" ").map(numbers) : [];
      state.lines.push({ name: path.dataset.name, path, points });
    }
    for (const element of svg.querySelectorAll("[data-at]")) state.marks.push([element, numbers(element.dataset.at)]);
    state.shapes = [...svg.querySelectorAll(".band, .guide")].map((element) => {
      const name = element.hasAttribute("d") ? "d" : "points";
      return [element, name, element.getAttribute(name)];
    });
    const [clip, box] = [document.createElementNS(NS, "clipPath"), document.createElementNS(NS, "rect")];
    clip.id = `clip-${Math.random().toString(36).slice(2)}`;
    set(box, { x: x[2] - 6, y: y[3] - 6, width: x[3] - x[2] + 12, height: y[2] - y[3] + 12 });
    clip.append(box);
    svg.prepend(clip);
    svg.querySelector(".plot").setAttribute("clip-path", `url(#${clip.id})`);
    state.rule = draw(svg, "line", { class: "reading", y1: y[3], y2: y[2], visibility: "hidden" });
    state.frame = draw(svg, "rect", { class: "choosing", y: y[3], height: y[2] - y[3], visibility: "hidden" });
    const figure = svg.closest("figure");
    figure.classList.add("live");
    state.tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
    state.tip.setAttribute("role", "status");
    state.whole = Object.assign(document.createElement("button"), { className: "whole", textContent: "Show all", hidden: true, type: "button" });
    state.whole.addEventListener("click", () => zoom(state, null));
    figure.append(state.tip, state.whole);
    states.set(svg, state);
    return state;
  }

  const set = (element, values) => Object.entries(values).forEach(([name, one]) => element.setAttribute(name, one));

  function draw(parent, name, values) {
    const element = document.createElementNS(NS, name);
    set(element, values);
    parent.append(element);
    return element;
  }

  // Round values within a range, and as many digits as they need to differ.
  function ticksOf(low, high, most, whole = false) {
    const raw = (high - low) / (most - 1);
    const power = 10 ** Math.floor(Math.log10(raw));
    const round = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw * (1 - 1e-9));
    const step = whole && high - low >= 2 ? Math.max(1, Math.round(round)) : round;
    const found = [];
    for (let one = Math.ceil(low / step - 1e-9); one * step <= high + step * 1e-9; one++) found.push(one * step);
    return [found, step];
  }

  function written(one, step, percent) {
    const [scaled, size] = percent ? [100 * one, 100 * step] : [one, step];
    const digits = Math.max(0, Math.min(12, -Math.floor(Math.log10(size) + 1e-9)));
    const text = size < 1e-6 || Math.abs(scaled) >= 1e6 ? scaled.toExponential(2) : scaled.toFixed(digits);
    return `${text.replace("-", "\u2212")}${percent ? "%" : ""}`;
  }

  const percents = (svg) => [svg.dataset.percent.includes("x"), svg.dataset.percent.includes("y")];

  function redraw(state) {
    const { svg, x, y, all } = state;
    const [xPercent, yPercent] = percents(svg);
    const move = (px, py) => [place(x, value(all.x, px)), place(y, value(all.y, py))];
    for (const { path, points } of state.lines) {
      let pen = "M";
      path.setAttribute("d", points.map(([a, b]) => {
        const word = Number.isFinite(b) ? `${pen}${place(x, a).toFixed(1)} ${place(y, b).toFixed(1)}` : "";
        pen = word ? "L" : "M";
        return word;
      }).join(""));
    }
    for (const [element, [a, b]] of state.marks) {
      const [px, py] = move(a, b);
      element.setAttribute("transform", `translate(${(px - a).toFixed(1)} ${(py - b).toFixed(1)})`);
    }
    for (const [element, name, text] of state.shapes) {
      element.setAttribute(name, text.replace(/(-?[\d.]+)([ ,])(-?[\d.]+)/g, (_, a, between, b) => move(+a, +b).map((one) => one.toFixed(1)).join(between)));
    }
    const axes = svg.querySelector(".ticks");
    state.ticks ??= [...axes.children];
    state.whole.hidden = x === all.x;
    axes.replaceChildren(...(x === all.x ? state.ticks : []));
    if (x === all.x) return;
    const [ys, yStep] = ticksOf(y[0], y[1], 6);
    for (const one of ys) {
      draw(axes, "line", { class: "rule", x1: x[2], x2: x[3], y1: place(y, one), y2: place(y, one) });
      draw(axes, "text", { x: x[2] - 7, y: place(y, one) + 4, "text-anchor": "end" }).textContent = written(one, yStep, yPercent);
    }
    const [xs, xStep] = ticksOf(x[0], x[1], 7, state.lines.every((line) => line.points.every(([a]) => Number.isInteger(a))));
    for (const one of xs) {
      draw(axes, "line", { class: "axis", x1: place(x, one), x2: place(x, one), y1: y[2], y2: y[2] + 5 });
      draw(axes, "text", { x: place(x, one), y: y[2] + 19, "text-anchor": "middle" }).textContent = written(one, xStep, xPercent);
    }
  }

  // Show a part of the x-axis, with as much of the y-axis as it fills; null for all.
  function zoom(state, range) {
    const { all, lines, marks } = state;
    state.x = range ? [...range, all.x[2], all.x[3]] : all.x;
    const found = lines.length ? lines.flatMap((line) => line.points)
      : marks.filter(([element]) => element.matches(".mark")).map(([, [a, b]]) => [value(all.x, a), value(all.y, b)]);
    const seen = found.filter(([a, b]) => inside(state.x, a) && Number.isFinite(b)).map(([, b]) => b);
    state.y = all.y;
    if (range && seen.length > 1 && Math.max(...seen) > Math.min(...seen)) {
      const room = 0.06 * (Math.max(...seen) - Math.min(...seen));
      state.y = [Math.min(...seen) - room, Math.max(...seen) + room, all.y[2], all.y[3]];
    }
    read(state, null);
    redraw(state);
    remember(state, range);
  }

  // A page that is loaded again, as that of a running training, keeps what was chosen.
  const keyOf = ({ svg }) => `${location.pathname} ${svg.closest("figure").querySelector("figcaption")?.textContent}`;

  function remember(state, range) {
    try {
      if (range) sessionStorage.setItem(keyOf(state), range.join(" "));
      else sessionStorage.removeItem(keyOf(state));
    } catch { /* a page from the disk may have no storage */ }
  }

  // Say the values at a place on the x-axis, or of the nearest mark; null for none.
  function read(state, at, up = 0) {
    const { svg, x, y, lines, marks, rule, tip } = state;
    let [px, words] = [at, []];
    if (at !== null && lines.length) {
      const xs = lines.flatMap((line) => line.points.filter(([a, b]) => inside(x, a) && Number.isFinite(b)).map(([a]) => a));
      const nearest = xs.reduce((best, one) => (Math.abs(place(x, one) - at) < Math.abs(place(x, best) - at) ? one : best), xs[0]);
      px = nearest === undefined ? null : place(x, nearest);
      const [xPercent, yPercent] = percents(svg);
      const say = (one, percent) => (percent ? `${(100 * one).toFixed(1)}%` : `${Number(one.toPrecision(4))}`).replace("-", "\u2212");
      const rows = lines.flatMap(({ name, points }) => points.filter(([a, b]) => a === nearest && Number.isFinite(b)).map(([, b]) => `${name}: ${say(b, yPercent)}`));
      words = rows.length ? [`${svg.dataset.label} ${say(nearest, xPercent)}`, ...rows] : [];
      state.nearest = nearest;
    } else if (at !== null) {
      const far = ([, [a, b]]) => Math.hypot(place(x, value(state.all.x, a)) - at, place(y, value(state.all.y, b)) - up);
      const near = marks.filter(([element]) => element.querySelector("title")).sort((a, b) => far(a) - far(b))[0];
      if (near && far(near) < 24) words = [near[0].querySelector("title").textContent];
      px = words.length ? place(x, value(state.all.x, near[1][0])) : null;
    }
    const shown = words.length > 0 && px !== null;
    rule.setAttribute("visibility", shown && lines.length ? "visible" : "hidden");
    tip.hidden = !shown;
    if (!shown) return;
    set(rule, { x1: px, x2: px });
    tip.replaceChildren(...words.map((word) => Object.assign(document.createElement("p"), { textContent: word })));
    const size = svg.getBoundingClientRect();
    const left = size.left - svg.closest("figure").getBoundingClientRect().left + (px / svg.viewBox.baseVal.width) * size.width;
    tip.style.left = px > (x[2] + x[3]) / 2 ? "" : `${left + 10}px`;
    tip.style.right = px > (x[2] + x[3]) / 2 ? `calc(100% - ${left - 10}px)` : "";
    tip.style.top = `${size.top - svg.closest("figure").getBoundingClientRect().top + 24}px`;
  }

  const chartAt = (event) => event.target.closest?.("svg.chart[data-x]");

  function position(state, event) {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(state.svg.getScreenCTM().inverse());
    return [Math.min(Math.max(point.x, state.all.x[2]), state.all.x[3]), point.y];
  }

  document.addEventListener("pointermove", (event) => {
    const svg = chartAt(event);
    for (const live of document.querySelectorAll("svg.chart")) if (live !== svg && states.has(live) && !states.get(live).drag) read(states.get(live), null);
    if (!svg) return;
    const state = stateOf(svg);
    const [at, up] = position(state, event);
    if (state.drag !== null) {
      const [from, to] = [Math.min(state.drag, at), Math.max(state.drag, at)];
      set(state.frame, { x: from, width: to - from, visibility: to - from > 6 ? "visible" : "hidden" });
    }
    read(state, at, up);
  });
  document.addEventListener("pointerdown", (event) => {
    const svg = chartAt(event);
    if (!svg || event.button) return;
    const state = stateOf(svg);
    state.drag = position(state, event)[0];
    svg.setPointerCapture?.(event.pointerId);
  });
  const release = (event) => {
    const svg = chartAt(event);
    const state = svg && states.get(svg);
    if (!state || state.drag === null) return;
    const [from, to] = [state.drag, position(state, event)[0]].sort((a, b) => a - b);
    state.drag = null;
    state.frame.setAttribute("visibility", "hidden");
    if (event.type === "pointerup" && to - from > 6) zoom(state, [value(state.x, from), value(state.x, to)]);
  };
  document.addEventListener("pointerup", release);
  document.addEventListener("pointercancel", release);
  document.addEventListener("dblclick", (event) => {
    const svg = chartAt(event);
    if (svg) zoom(stateOf(svg), null);
  });
  // The same by keys: arrows read point by point, + shows the half around the point, 0 all of it.
  document.addEventListener("keydown", (event) => {
    const svg = chartAt(event);
    if (!svg || event.ctrlKey || event.metaKey || event.altKey) return;
    const state = stateOf(svg);
    const xs = [...new Set(state.lines.flatMap((line) => line.points.map(([a]) => a)))].filter((a) => inside(state.x, a)).sort((a, b) => a - b);
    const now = xs.indexOf(state.nearest);
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && xs.length) read(state, place(state.x, xs[now < 0 ? xs.length - 1 : Math.min(Math.max(now + step, 0), xs.length - 1)]));
    else if (event.key === "+" && now >= 0) {
      const half = (state.x[1] - state.x[0]) / 4;
      zoom(state, [Math.max(state.all.x[0], xs[now] - half), Math.min(state.all.x[1], xs[now] + half)]);
    } else if (event.key === "0" || event.key === "Escape") zoom(state, null);
    else return;
    event.preventDefault();
  });
  for (const svg of document.querySelectorAll("svg.chart[data-x]")) {
    svg.setAttribute("tabindex", "0");
    try {
      const state = { svg };
      const range = sessionStorage.getItem(keyOf(state));
      if (range) zoom(stateOf(svg), numbers(range));
    } catch { /* a page from the disk may have no storage */ }
  }
})();
