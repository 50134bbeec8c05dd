// Heat maps over two settings, a panel for each value of a third: tables, so that they are read and printed as such.

const heat = { across: null, up: null, panel: null, value: null, log: null };
const ENOUGH = 0.4; // of the cells filled, for panels to be worth their room

function drawHeatControls() {
  const options = named("settings").filter(([name]) => levels(column("settings", name).values).length <= 24);
  byId("heat").hidden = options.length < 2 || !quantities().length;
  if (byId("heat").hidden) return;
  const numeric = (name) => column("settings", name).values.some(isNumber);
  const many = (name) => levels(column("settings", name).values).length;
  // numbers that are swept make the axes, words such as the method the panels; seeds are averaged over
  const ranked = options.map(([name]) => name).filter((name) => name !== "seed").sort((a, b) => numeric(b) - numeric(a) || many(b) - many(a));
  const first = heat.across === null;
  const chosen = bestMap(ranked);
  heat.across = kept(heat.across, options, chosen.across);
  heat.up = kept(heat.up, options, chosen.up);
  if (first) heat.panel = chosen.panel;
  if (heat.panel && !options.some(([n]) => n === heat.panel)) heat.panel = null;
  heat.value = kept(heat.value, quantities());
  if (heat.log === null) heat.log = spreads(heat.value);
  const set = (key) => (v) => { heat[key] = v; if (key === "value") { heat.log = spreads(v); byId("heat-log").checked = heat.log; } drawHeat(); };
  byId("heat-controls").replaceChildren(
    menu("Value", "heat-value", quantities(), heat.value, set("value")), menu("x axis", "heat-across", options, heat.across, set("across")),
    menu("y axis", "heat-up", options, heat.up, set("up")),
    menu("Panels", "heat-panel", [["", "nothing"], ...options.map(([n]) => [`=${n}`, n])], heat.panel ? `=${heat.panel}` : "", (v) => set("panel")(v ? v.slice(1) : null)),
    tick("log colours", "heat-log", heat.log, set("log")));
}

// The map that shows most at first: two settings with a panel for each method if that fills enough of the cells, and
// otherwise one setting against another.
function bestMap(ranked) {
  const others = ranked.filter((name) => name !== "method");
  const pairs = others.flatMap((a, k) => others.slice(k + 1).map((b) => ({ across: a, up: b, panel: ranked.includes("method") ? "method" : null })));
  const rated = pairs.map((map) => ({ map, ...fullness(map) })).filter(({ share }) => share >= ENOUGH).sort((a, b) => b.cells - a.cells);
  if (rated.length) return rated[0].map;
  const flat = ranked.flatMap((a, k) => ranked.slice(k + 1).map((b) => ({ across: a, up: b, panel: null })));
  return flat.map((map) => ({ map, ...fullness(map) })).sort((a, b) => b.share * Math.sqrt(b.cells) - a.share * Math.sqrt(a.cells))[0]?.map ?? { across: ranked[0], up: ranked[0], panel: null };
}

// How many cells of a map have a run, and which share of all that is.
function fullness({ across, up, panel }) {
  const parts = [across, up, ...(panel ? [panel] : [])].map((name) => column("settings", name).values);
  const cells = new Set(state.data.runs.names.map((_, i) => JSON.stringify(parts.map((values) => word(values[i]))))).size;
  return { cells, share: cells / parts.reduce((product, values) => product * levels(values).length, 1) };
}

// The mean over runs with its standard error; a single run has its own error.
function cellMean(value, rows) {
  const numbers = rows.map((i) => value.values[i]);
  const middle = mean(numbers);
  const n = rows.length;
  const error = n > 1 ? Math.sqrt(numbers.reduce((sum, v) => sum + (v - middle) ** 2, 0) / (n - 1) / n) : value.errors[rows[0]];
  return { mean: middle, n, error };
}

const errorWords = (m) => (m.n > 1 ? `mean of ${m.n} runs and its standard error` : `one run${m.error > 0 ? " and its own error" : ""}`);

function drawHeat() {
  if (byId("heat").hidden) return;
  const value = quantity(heat.value);
  const [across, up, panel] = [heat.across, heat.up, heat.panel].map((n) => (n ? column("settings", n) : null));
  const there = state.shown.filter((i) => isNumber(value.values[i]));
  const cells = grouped(there, (i) => JSON.stringify([panel ? word(panel.values[i]) : "", word(across.values[i]), word(up.values[i])]));
  const means = new Map([...cells].map(([key, rows]) => [key, cellMean(value, rows)]));
  const numbers = [...means.values()].map((m) => m.mean).filter((m) => !heat.log || m > 0);
  const scale = heat.log ? Math.log : (v) => v;
  const [low, high] = span(numbers);
  const place = (v) => (heat.log && v <= 0 ? 0 : high > low ? (scale(v) - scale(low)) / (scale(high) - scale(low)) : 0.5);
  const write = value.percent ? percent : (x) => digits(x, 3);
  const columns = levels(pick(across.values));
  const found = levels(pick(up.values));
  const upwards = found.some(isSize); // up means larger, and words are read downwards
  const rows = upwards ? found.reverse() : found;
  const label = Math.min(Math.max(...rows.map((y) => word(y).length), 4), 22);
  const panels = panel ? levels(pick(panel.values)) : [""];
  byId("heat-panels").style.setProperty("--panel", `calc(${label}ch + 1.2rem + ${4.4 * columns.length}rem)`); // columns are whole where there is room
  byId("heat-panels").replaceChildren(...panels.map((p) => {
    const of = (x, y) => means.get(JSON.stringify([panel ? word(p) : "", word(x), word(y)]));
    const cell = (x, y) => {
      const m = of(x, y);
      if (!m) return el("td", { class: "none", title: "no run" }, el("span", { class: "visually-hidden" }, "no run"));
      const colour = ramp(place(m.mean));
      const words = withError(m.mean, m.error, write);
      return el("td", { style: `background: ${colour}; color: ${readableOn(colour)}`, title: `${errorWords(m)}, ${up.name} ${word(y)}, ${across.name} ${word(x)}`, "data-value": m.mean, "data-error": isNumber(m.error) ? m.error : null, "data-n": m.n },
        ...words, el("small", {}, `n = ${m.n}`));
    };
    const body = rows.filter((y) => columns.some((x) => of(x, y)) || !panel).map((y) => el("tr", {}, el("th", { scope: "row", title: word(y) }, word(y)), ...columns.map((x) => cell(x, y))));
    if (!body.length) return null;
    return el("div", { class: "panel" }, panel ? el("h3", {}, word(p)) : null,
      el("table", { style: `--label: ${label}ch; --columns: ${columns.length}` }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, el("span", { class: "visually-hidden" }, `${up.name} by ${across.name}`)), ...columns.map((x) => el("th", { scope: "col", title: word(x) }, word(x))))), el("tbody", {}, ...body)),
      el("p", { class: "axis" }, `${across.name} across, ${up.name} ${upwards ? "up" : "down"}`));
  }).filter(Boolean));
  byId("heat-scale").replaceChildren(
    el("p", { class: "quiet" }, `${wordsOf(value)}: mean ± standard error over the n runs of a cell; where n = 1, the run's own error${filtered() ? "; over the runs shown" : ""}.`),
    el("div", { class: "ramp", style: `background: linear-gradient(to right, ${CIVIDIS.join(", ")})` }),
    el("p", { class: "ramp-ends" }, el("span", {}, writer(value)(low)), el("span", {}, writer(value)(high))));
}
