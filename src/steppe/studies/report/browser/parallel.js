// Parallel coordinates: one line per run through its settings, measures and targets. Plain SVG: plotly draws this kind of
// chart with WebGL and generated code, which neither paper nor the page's Content-Security-Policy allows.

const parallel = { colour: null, axes: null, at: -1, points: new Map() };
const AXES_AT_FIRST = { settings: 5, measures: 4, targets: 3 };
const ORDINAL = 8; // different values up to which a setting has a mark for each of them
const GAP = 96; // pixels between axes at least
const FRAME = { top: 64, bottom: 34, height: 400 };
const MARK = 12; // letters of a mark at most
const LETTER = 7; // pixels of a letter of a mark, about

// Every column that can be an axis, as [key, column].
const axisColumns = () => ["settings", "measures", "targets"].flatMap((kind) => state.data[kind].map((c) => [`${kind}:${c.name}`, c]));
const chosenAxes = () => axisColumns().filter(([key]) => parallel.axes.has(key));

function drawParallelControls() {
  byId("parallel").hidden = state.data.runs.names.length < 2 || !quantities().length;
  if (byId("parallel").hidden) return;
  const names = state.data.settings.map((s) => s.name);
  if (parallel.axes === null) {
    parallel.colour = names.includes("method") ? "method" : names[0] ?? null;
    parallel.axes = new Set(Object.entries(AXES_AT_FIRST).flatMap(([kind, most]) => state.data[kind].filter((c) => c.name !== "seed" && c.asked !== false).slice(0, most).map((c) => `${kind}:${c.name}`)));
  }
  if (parallel.colour && !names.includes(parallel.colour)) parallel.colour = null;
  const ticks = axisColumns().map(([key, c]) => tick(wordsOf(c), `axis-${key}`, parallel.axes.has(key), (on) => {
    if (on) parallel.axes.add(key); else parallel.axes.delete(key);
    drawParallel();
  }));
  for (const box of ticks.map((label) => label.firstChild)) box.setAttribute("aria-label", `axis ${box.nextSibling.data}`); // the table's columns have the same names
  const open = byId("parallel-axes")?.open ?? false;
  byId("parallel-controls").replaceChildren(el("details", { class: "columns", id: "parallel-axes", open, onkeydown: closeOnEscape }, el("summary", {}, "Axes"), el("div", {}, ...ticks)),
    settingMenu("Colour", "parallel-colour", parallel.colour, (v) => { parallel.colour = v; drawParallel(); }));
}

// The scale of an axis: place(value) from 0 (bottom) to 1 (top), or null; marks are [place, words].
function axisScale(c) {
  const found = levels(c.values);
  if (!c.errors && (found.length <= ORDINAL || !found.some(isSize))) {
    const upwards = found.some(isSize); // up means larger, and words are read downwards
    const at = new Map(found.map((v, k) => [word(v), found.length > 1 ? (upwards ? k : found.length - 1 - k) / (found.length - 1) : 0.5]));
    return { ordinal: true, place: (v) => at.get(word(v)), marks: found.map((v) => [at.get(word(v)), word(v), `${quotedName(c.name)} = ${quotedName(word(v))}`]) };
  }
  const [low, high] = span(c.values.map((v) => (isSize(v) ? Number(v) : null)));
  const log = low > 0 && high / low >= DECADES;
  const [from, to] = log ? [Math.log(low), Math.log(high)] : [low, high];
  const place = (v) => (!isSize(v) ? null : to > from ? ((log ? Math.log(v) : v) - from) / (to - from) : 0.5);
  const value = (t) => (log ? Math.exp(from + t * (to - from)) : from + t * (to - from));
  const write = c.percent ? percent : (x) => digits(x, paper ? 2 : 3);
  return { ordinal: false, log, place, value, marks: (to > from ? [0, 1 / 3, 2 / 3, 1] : [0.5]).map((t) => [t, write(value(t))]) };
}

const quotedName = (text) => (/[\s<>=!≤≥]/.test(text) ? `"${text}"` : text);

// Runs at one mark of an ordinal axis pass a little above and below it, in the order of the table, so that all are visible.
function spreadAtMarks(rows, c, scale, room) {
  const made = new Map();
  for (const those of grouped(rows, (i) => word(c.values[i])).values()) {
    const wide = Math.min(room, 1.5 * (those.length - 1));
    those.forEach((i, k) => made.set(i, scale.place(c.values[i]) === undefined || those.length < 2 ? 0 : wide * (k / (those.length - 1) - 0.5)));
  }
  return made;
}

function drawParallel() {
  const place = byId("parallel-chart");
  if (byId("parallel").hidden || !place.offsetParent || isFolded(place)) return;
  const axes = chosenAxes().map(([key, c]) => ({ key, c, scale: axisScale(c) }));
  const rows = state.shown.filter((i) => axes.some(({ c }) => c.errors && isNumber(c.values[i])));
  const narrow = innerWidth < 640 && !paper;
  const room = paper ? 680 : place.clientWidth;
  const side = (axis) => 20 + LETTER * Math.min(MARK, Math.max(4, ...(axis?.scale.marks ?? []).map(([, text]) => text.length)));
  const [left, right] = [side(axes[0]), side(axes.at(-1))];
  const width = paper ? room : Math.max(room, left + right + (narrow ? 80 : GAP) * (axes.length - 1));
  const x = (k) => (axes.length > 1 ? left + (k * (width - left - right)) / (axes.length - 1) : width / 2);
  const y = (t) => FRAME.height - FRAME.bottom - t * (FRAME.height - FRAME.top - FRAME.bottom);
  const setting = parallel.colour ? column("settings", parallel.colour) : null;
  const colours = colouring(setting);
  const offsets = axes.map(({ c, scale }) => (scale.ordinal ? spreadAtMarks(rows, c, scale, Math.min(26, 180 / scale.marks.length)) : null));
  parallel.points = new Map(rows.map((i) => [i, axes.map(({ c, scale }, k) => { const t = scale.place(c.values[i]); return isNumber(t) ? [x(k), y(t) + (offsets[k]?.get(i) ?? 0)] : null; })]));
  const lines = rows.map((i) => runLine(i, colours.of(setting ? setting.values[i] : null)));
  const drawing = svg("svg", { width, height: FRAME.height, viewBox: `0 0 ${width} ${FRAME.height}`, "aria-hidden": "true" },
    svg("g", { class: "lines" }, ...lines), ...axes.map((axis, k) => axisPicture(axis, x(k), y, k === 0 ? "first" : k === axes.length - 1 ? "last" : "", k % 2, { left, right })));
  place.replaceChildren(drawing);
  highlightRun(state.selected);
  drawKey("parallel-key", parallel.colour, null);
  const missing = state.shown.length - rows.length;
  const logs = axes.filter(({ scale }) => scale.log).map(({ c }) => wordsOf(c));
  byId("parallel-caption").replaceChildren(`${count(rows.length, "run")}, one line each${missing ? `; ${count(missing, "run")} without numbers` : ""}. ${logs.length ? `Log scale: ${logs.join(", ")}. ` : ""}`,
    el("span", { class: "screen-only" }, "Drag along an axis, or click a mark of a setting, to filter. With the chart in focus, arrow keys move from run to run and Enter opens one."));
}

function runLine(i, colour) {
  let path = "";
  let pen = "M";
  for (const point of parallel.points.get(i)) {
    if (point) path += `${pen}${point[0].toFixed(1)},${point[1].toFixed(1)}`;
    pen = point ? "L" : "M"; // a missing value leaves a gap
  }
  const line = svg("path", { d: path, class: counts(i) ? "line" : "line out", stroke: colour, "data-run": i });
  const wide = svg("path", { d: path, class: "reach", "data-run": i }); // easier to point at
  return svg("g", {}, line, wide);
}

// Names stand on two levels in turn, and the marks of the last axis on its other side.
function axisPicture({ key, c, scale }, at, y, end, below, { left, right }) {
  const anchor = { first: "start", last: "end" }[end] ?? "middle";
  const shift = { first: 10 - left, last: right - 10 }[end] ?? 0;
  const words = short(wordsOf(c), 15);
  const made = svg("g", { class: "axis-line", "data-key": key }, svg("line", { x1: at, x2: at, y1: y(0), y2: y(1) }),
    svg("text", { x: at + shift, y: FRAME.top - 40 + (below ? 18 : 0), "text-anchor": anchor, class: "name" }, words, svg("title", {}, titled(c))));
  for (const [t, text, condition] of scale.marks) {
    const label = svg("text", { x: at + (end === "last" ? 7 : -7), y: y(t) + 4, "text-anchor": end === "last" ? "start" : "end", class: condition ? "mark pick" : "mark", ...(condition ? { "data-condition": condition } : {}) }, short(text, MARK), svg("title", {}, text));
    made.append(svg("circle", { cx: at, cy: y(t), r: 2 }), label);
  }
  if (!scale.ordinal) made.append(svg("rect", { class: "brush", x: at - 12, y: y(1), width: 24, height: y(0) - y(1), "data-key": key }));
  return made;
}

// The line of one run above the others, and its numbers in the line of text below.
function highlightRun(i) {
  const place = byId("parallel-chart");
  for (const line of place.querySelectorAll(".line.on")) line.classList.remove("on");
  const line = i === null ? null : place.querySelector(`.line[data-run="${i}"]`);
  place.classList.toggle("has-on", Boolean(line));
  if (!line) return;
  line.classList.add("on");
  line.parentNode.parentNode.append(line.parentNode);
}

function tellParallel(i) {
  highlightRun(i);
  const parts = chosenAxes().map(([, c]) => `${wordsOf(c)} ${c.errors ? inWords(c, i) : word(c.values[i])}`);
  byId("parallel-readout").textContent = [state.data.runs.names[i], ...parts].map((t) => level(short(t, 120))).join(" · ");
}

// A range dragged on an axis becomes two conditions of the filter, in place of earlier ones on the same quantity.
function filterRange(c, low, high) {
  const name = quotedName(c.name);
  const bound = (v) => (c.percent ? `${Number((100 * v).toPrecision(4))}%` : `${Number(v.toPrecision(4))}`);
  filterWith(c.name, low === null ? "" : `${name} >= ${bound(low)} ${name} <= ${bound(high)}`);
}

function filterWith(name, condition) {
  const rest = state.search.replace(new RegExp(CONDITION.source, "g"), (all, other) => (unquoted(other) === name ? "" : all)).replace(/\band\b/gi, " ").replace(/\s+/g, " ").trim();
  setSearch([rest, condition].filter(Boolean).join(" "));
}

function startBrushing(place) {
  let drag = null;
  const along = (event) => {
    const box = place.querySelector("svg").getBoundingClientRect();
    const t = (FRAME.height - FRAME.bottom - (event.clientY - box.top)) / (FRAME.height - FRAME.top - FRAME.bottom);
    return Math.min(Math.max(t, 0), 1);
  };
  place.addEventListener("pointerdown", (event) => {
    if (!event.target.matches(".brush")) return;
    event.preventDefault();
    drag = { key: event.target.dataset.key, from: along(event), mark: svg("rect", { class: "brushed", x: event.target.getAttribute("x"), width: 24 }) };
    event.target.after(drag.mark);
    place.setPointerCapture(event.pointerId);
  });
  place.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const ends = [drag.from, along(event)].sort((a, b) => a - b).map((t) => FRAME.height - FRAME.bottom - t * (FRAME.height - FRAME.top - FRAME.bottom));
    drag.mark.setAttribute("y", ends[1]);
    drag.mark.setAttribute("height", ends[0] - ends[1]);
  });
  place.addEventListener("pointerup", (event) => {
    if (!drag) return;
    const ends = [drag.from, along(event)].sort((a, b) => a - b);
    const c = quantity(drag.key);
    const { value } = axisScale(c);
    drag = null;
    if (ends[1] - ends[0] < 0.01) filterRange(c, null, null); else filterRange(c, ...ends.map(value));
  });
}

function startParallel() {
  const place = byId("parallel-chart");
  charts.set("parallel-chart", drawParallel);
  place.tabIndex = 0;
  place.setAttribute("role", "application");
  place.setAttribute("aria-label", "Parallel coordinates; arrow keys move from run to run, Enter opens one");
  place.addEventListener("pointerover", ({ target }) => { if (target.dataset.run) tellParallel(Number(target.dataset.run)); });
  place.addEventListener("pointerleave", () => highlightRun(state.selected));
  place.addEventListener("click", ({ target }) => {
    if (target.dataset.run) showRun(Number(target.dataset.run));
    const picked = target.closest("[data-condition]");
    if (picked) filterWith(unquoted(picked.parentNode.dataset.key.slice("settings:".length)), state.search.includes(picked.dataset.condition) ? "" : picked.dataset.condition);
  });
  place.addEventListener("keydown", (event) => {
    const runs = [...parallel.points.keys()];
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step && runs.length) {
      event.preventDefault();
      parallel.at = parallel.at < 0 ? (step > 0 ? 0 : runs.length - 1) : (parallel.at + step + runs.length) % runs.length;
      tellParallel(runs[parallel.at]);
    } else if (event.key === "Enter" && runs[parallel.at] !== undefined) {
      event.preventDefault(); // or the same key would press the dialog's first button
      showRun(runs[parallel.at]);
    } else if (event.key === "Escape") { parallel.at = -1; highlightRun(state.selected); }
  });
  startBrushing(place);
  new ResizeObserver(() => { if (!paper && place.firstChild && place.clientWidth !== Number(place.dataset.width)) { place.dataset.width = place.clientWidth; drawParallel(); } }).observe(place);
}
