// Any measure against any target, coloured and shaped by any setting, with the study's taus and their intervals.

const scatter = { x: null, y: null, colour: null, shape: null, logX: null, logY: null, errors: null, at: -1, points: [] };
const DECADES = 100; // from this ratio of positive values on, an axis is logarithmic at first
const BARS = 300; // runs up to which error bars are shown at first

function settingMenu(label, id, chosen, changedTo) {
  return menu(label, id, [["", "nothing"], ...named("settings").map(([n]) => [`=${n}`, n])], chosen ? `=${chosen}` : "", (v) => changedTo(v ? v.slice(1) : null));
}

function drawScatterControls() {
  const { settings, runs } = state.data;
  const names = settings.map((s) => s.name);
  const axes = [...quantities(), ...settings.filter((s) => s.values.some(isNumber)).map((s) => [`settings:${s.name}`, s.name])];
  const measures = axes.filter(([v]) => v.startsWith("measures:"));
  const targets = axes.filter(([v]) => v.startsWith("targets:"));
  const first = scatter.x === null;
  scatter.x = kept(scatter.x, axes, (measures[0] ?? axes[0])?.[0]);
  scatter.y = kept(scatter.y, axes, (targets[0] ?? axes[0])?.[0]);
  if (first || (scatter.colour && !names.includes(scatter.colour))) scatter.colour = names.includes("method") ? "method" : names[0] ?? null;
  if (first || (scatter.shape && !names.includes(scatter.shape))) scatter.shape = names.find((n) => n !== scatter.colour && n !== "seed" && levels(column("settings", n).values).length <= SHAPES.length) ?? null;
  scatter.errors ??= runs.names.length <= BARS;
  scatter.logX ??= spreads(scatter.x);
  scatter.logY ??= spreads(scatter.y);
  const set = (key) => (value) => { scatter[key] = value; drawScatter(); };
  // a new quantity has its own scale
  const setAxis = (key, log, tickId) => (value) => { scatter[log] = spreads(value); byId(tickId).checked = scatter[log]; set(key)(value); };
  byId("scatter-controls").replaceChildren(
    menu("x axis", "scatter-x", axes, scatter.x, setAxis("x", "logX", "scatter-log-x")), menu("y axis", "scatter-y", axes, scatter.y, setAxis("y", "logY", "scatter-log-y")),
    settingMenu("Colour", "scatter-colour", scatter.colour, set("colour")), settingMenu("Shape", "scatter-shape", scatter.shape, set("shape")),
    tick("log x", "scatter-log-x", scatter.logX, set("logX")), tick("log y", "scatter-log-y", scatter.logY, set("logY")), tick("error bars", "scatter-errors", scatter.errors, set("errors")));
}

// Whether values are positive and span decades, so that a linear axis would crowd them at one end.
function spreads(key) {
  const [low, high] = span(key ? quantity(key).values : []);
  return low > 0 && high / low >= DECADES;
}

function runLines(i, x, y) {
  const settings = state.data.settings.slice(0, 8).map((s) => `${s.name} ${word(s.values[i])}`);
  const value = (c) => `${wordsOf(c)} ${withError(c.values[i], c.errors?.[i], c.percent ? percent : digits).map((part) => part.textContent ?? part).join("")}`;
  return [state.data.runs.names[i], value(x), value(y), ...settings];
}

// The runs that have a place on the axes, from left to right.
function placed(x, y) {
  const fits = (v, log) => isNumber(v) && (!log || v > 0);
  return state.shown.filter((i) => fits(x.values[i], scatter.logX) && fits(y.values[i], scatter.logY)).sort((i, j) => x.values[i] - x.values[j]);
}

function scatterFigure() {
  const x = quantity(scatter.x);
  const y = quantity(scatter.y);
  if (!x || !y) return null;
  const colours = colouring(scatter.colour ? column("settings", scatter.colour) : null);
  const shapes = shaping(scatter.shape ? column("settings", scatter.shape) : null);
  const colourOf = (i) => colours.of(scatter.colour ? column("settings", scatter.colour).values[i] : null);
  const shapeOf = (i) => shapes.of(scatter.shape ? column("settings", scatter.shape).values[i] : null)[0];
  const byColour = grouped(scatter.points, colourOf);
  // error bars have one colour per trace, so there is one trace per colour
  const data = [...byColour].map(([colour, those]) => ({
    type: "scatter", mode: "markers", x: those.map((i) => x.values[i]), y: those.map((i) => y.values[i]), customdata: those,
    text: those.map((i) => runLines(i, x, y).map(plain).map((t, k) => (k ? t : `<b>${t}</b>`)).join("<br>")), hovertemplate: "%{text}<extra></extra>",
    error_x: bars(x, those, colour), error_y: bars(y, those, colour),
    marker: { color: colour, symbol: those.map((i) => shapeOf(i) + (counts(i) ? "" : "-open")), size: those.map((i) => (i === state.selected ? 16 : 10)), opacity: those.map((i) => (counts(i) ? 0.9 : 0.45)),
      line: { color: those.map((i) => (i === state.selected ? ink("ink") : counts(i) ? edge(colour) : colour)), width: those.map((i) => (i === state.selected ? 2.5 : 1)) } },
  }));
  return { data, layout: { xaxis: quantityAxis(x, scatter.logX), yaxis: quantityAxis(y, scatter.logY), uirevision: `${scatter.x} ${scatter.y} ${scatter.logX} ${scatter.logY}` } };
}

function bars(c, rows, colour) {
  const visible = scatter.errors && c.errors?.some((e) => e > 0);
  return { type: "data", array: visible ? rows.map((i) => c.errors[i] ?? 0) : [], visible: Boolean(visible), color: `${colour}70`, thickness: 1.2, width: 0 };
}

function grouped(items, key) {
  const made = new Map();
  for (const item of items) {
    const k = key(item);
    if (made.has(k)) made.get(k).push(item); else made.set(k, [item]);
  }
  return made;
}

function drawScatter() {
  const x = quantity(scatter.x);
  const y = quantity(scatter.y);
  scatter.points = placed(x, y);
  redraw("scatter-chart");
  drawKey("scatter-key", scatter.colour, scatter.shape, groupTaus());
  drawTaus();
  const there = state.shown.filter((i) => isNumber(x?.values[i]) && isNumber(y?.values[i])).length;
  const marks = [`${count(there, "run")} with both values.`];
  if (scatter.points.length && scatter.points.length < there) marks.push(`${there - scatter.points.length} not above zero cannot be drawn on a log axis.`);
  const out = scatter.points.filter((i) => !counts(i)).length;
  if (out) marks.push(`${out === 1 ? "The hollow mark does" : `The ${out} hollow marks do`} not count: excluded by the admission rule, or not finished.`);
  if (scatter.errors && [x, y].some((c) => c?.errors?.some((e) => e > 0))) marks.push("Error bars are one standard error.");
  const keys = "With the chart in focus, arrow keys move from run to run and Enter opens one.";
  byId("scatter-caption").replaceChildren(`${marks.join(" ")} `, el("span", { class: "screen-only" }, keys));
}

// The study's findings on the two axes, by hypothesis; none while a filter is on, because they are over all runs.
const findingsShown = () => (filtered() ? [] : state.data.findings.findings.filter((f) => scatter.x === `measures:${f.measure}` && scatter.y === `targets:${f.target}`));
const groupTaus = () => {
  const { by_group: taus = [] } = findingsShown().find((f) => f.hypothesis === "within groups") ?? {};
  return levels(state.data.runs.groups).map((group) => taus.find((g) => g.group === group)).filter((g) => isNumber(g?.low)); // in the study's order
};

// The legend: colours and shapes with the number of runs that count, and tau with its interval where the study has it.
function drawKey(id, colourName, shapeName, taus = []) {
  const parts = [];
  const listed = (setting, found, mark) => el("ul", {}, ...found.map((v) => {
    const n = state.shown.filter((i) => counts(i) && word(setting.values[i]) === word(v)).length;
    const t = taus.find((g) => spoken(g.group) === `${setting.name}=${word(v)}`);
    return el("li", {}, mark(v), el("span", { title: word(v) }, word(v)), el("span", { class: "quiet", title: `${count(n, "run")} of this kind ${n === 1 ? "counts" : "count"}` }, n),
      t ? el("span", { class: "tau" }, `τ ${tauWords(t.tau)} (${intervalWords(t)}), n = ${t.n}`) : null);
  }));
  if (colourName) {
    const setting = column("settings", colourName);
    const colours = colouring(setting);
    parts.push(el("div", {}, el("h3", {}, colourName), colours.scale
      ? el("div", {}, el("div", { class: "ramp", style: `background: linear-gradient(to right, ${[0, 0.25, 0.5, 0.75, 1].map((t) => ramp(t, true)).join(", ")})` }),
        el("p", { class: "ramp-ends" }, el("span", {}, word(colours.scale[0])), el("span", {}, word(colours.scale[1]))))
      : listed(setting, colours.levels, (v) => glyph(SHAPES[0][1], colours.of(v)))));
  }
  if (shapeName) {
    const setting = column("settings", shapeName);
    const shapes = shaping(setting);
    parts.push(el("div", {}, el("h3", {}, shapeName), listed(setting, shapes.levels, (v) => glyph(shapes.of(v)[1], ink("soft")))));
  }
  byId(id).replaceChildren(...parts);
}

function drawTaus() {
  const place = byId("scatter-taus");
  const x = quantity(scatter.x);
  const y = quantity(scatter.y);
  if (!x || !y) return place.replaceChildren();
  const { groups } = state.data.runs;
  const counted = state.shown.filter(counts);
  const of = (within) => tau(counted.map((i) => x.values[i]), counted.map((i) => y.values[i]), within && counted.map((i) => within[i]));
  const finding = (hypothesis) => findingsShown().find((f) => f.hypothesis === hypothesis);
  const within = finding("within groups");
  const rows = [["all pairs", finding("strong") ?? of(null)]];
  if (new Set(groups).size > 1) rows.push(["pairs within a group", within ?? of(groups)]);
  for (const g of groupTaus()) rows.push([g.group, { ...g, pairs: (g.n * (g.n - 1)) / 2 }]);
  const left = (within?.by_group.length ?? 0) - groupTaus().length;
  const notes = [...(rows.some(([, t]) => t.low === undefined) ? [`τ without an interval describes the runs shown and decides nothing${filtered() ? ": clear the filters to see intervals" : ""}.`] : []),
    ...(left ? [`${count(left, "group")} with too few configurations for an interval ${left === 1 ? "is" : "are"} left out.`] : [])];
  place.replaceChildren(
    el("h3", {}, `τ of ${wordsOf(x)} and ${wordsOf(y)}, ${filtered() ? "over the runs shown" : "over all runs that count"}`),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "τ by group" }, el("table", { id: "group-taus" },
      el("thead", {}, el("tr", {}, ...["", "τ", "from −1 to 1", "95 % interval", "pairs", "n"].map((h, k) => el("th", { scope: "col", class: k === 0 || k === 2 ? null : "number" }, h)))),
      el("tbody", {}, ...rows.map(([name, t]) => el("tr", {}, el("th", { scope: "row" }, spoken(name)),
        el("td", { class: "number", "data-value": t.tau }, tauWords(t.tau)),
        el("td", { class: "interval-cell" }, isNumber(t.tau) ? intervalPicture(t) : ""),
        el("td", { class: "number" }, intervalWords(t)), el("td", { class: "number" }, t.pairs.toLocaleString("en")), el("td", { class: "number" }, t.n)))))),
    ...notes.map((text) => el("p", { class: "quiet" }, text)));
  return undefined;
}

// The chart by keyboard and pointer: the line below it describes the current run.
function scatterListeners(place) {
  const tell = (i) => { byId("scatter-readout").textContent = runLines(i, quantity(scatter.x), quantity(scatter.y)).map((t) => level(short(t, 120))).join(" · "); };
  place.on("plotly_hover", (event) => tell(event.points[0].customdata));
  place.on("plotly_click", (event) => showRun(event.points[0].customdata));
}

function startScatter() {
  const place = byId("scatter-chart");
  Object.assign(place, { tabIndex: 0 });
  place.setAttribute("role", "application");
  place.setAttribute("aria-label", "Scatter plot; arrow keys move from run to run, Enter opens one");
  place.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (step && scatter.points.length && plotly) {
      event.preventDefault();
      if (place.dataset.stale) redraw(place.id);
      const n = scatter.points.length;
      scatter.at = scatter.at < 0 ? (step > 0 ? 0 : n - 1) : (scatter.at + step + n) % n;
      const run = scatter.points[scatter.at];
      const curve = place.data.findIndex((t) => t.customdata.includes(run));
      plotly.Fx.hover(place, [{ curveNumber: curve, pointNumber: place.data[curve].customdata.indexOf(run) }]);
      byId("scatter-readout").textContent = runLines(run, quantity(scatter.x), quantity(scatter.y)).map((t) => level(short(t, 120))).join(" · ");
    } else if (event.key === "Enter" && scatter.points[scatter.at] !== undefined) {
      event.preventDefault(); // or the same key would press the dialog's first button
      showRun(scatter.points[scatter.at]);
    } else if (event.key === "Escape" && plotly) { plotly.Fx.unhover(place); scatter.at = -1; }
  });
  chart("scatter-chart", scatterFigure, scatterListeners);
}
