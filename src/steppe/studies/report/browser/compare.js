// Two runs side by side: the settings that differ, targets and measures with their errors.

const compared = { a: null, b: null, all: false }; // keys of runs

function drawCompareControls() {
  const { runs } = state.data;
  const options = runs.names.map((name, i) => [runs.keys[i], name]);
  byId("compare").hidden = options.length < 2;
  if (byId("compare").hidden) return;
  const [low, high] = extremes();
  compared.a = kept(compared.a, options, runs.keys[low]);
  compared.b = kept(compared.b, options, runs.keys[high]);
  const set = (key) => (v) => { compared[key] = v; drawCompare(); };
  byId("compare-controls").replaceChildren(menu("Run A", "compare-a", options, compared.a, set("a")), menu("Run B", "compare-b", options, compared.b, set("b")),
    el("button", { type: "button", onclick: () => { compareRuns(runOf(compared.b), runOf(compared.a)); } }, "Swap"), tick("settings that agree", "compare-all", compared.all, set("all")));
}

// The runs with the lowest and the highest first target among those that count; the first and the last without any.
function extremes() {
  const target = state.data.targets[0];
  const rows = target ? state.data.runs.names.map((_, i) => i).filter((i) => counts(i) && isNumber(target.values[i])).sort((i, j) => target.values[i] - target.values[j]) : [];
  return rows.length > 1 ? [rows[0], rows.at(-1)] : [0, state.data.runs.names.length - 1];
}

function compareRuns(a, b) {
  const { keys } = state.data.runs;
  Object.assign(compared, { a: keys[a], b: keys[b] });
  remember("compare-a", compared.a);
  remember("compare-b", compared.b);
  drawCompareControls();
  unfold("compare");
  drawCompare();
}

function drawCompare() {
  if (byId("compare").hidden) return;
  const { settings, targets, measures, common, runs } = state.data;
  const [a, b] = [runOf(compared.a), runOf(compared.b)];
  const differ = settings.filter((s) => word(s.values[a]) !== word(s.values[b]));
  const agree = compared.all ? [...settings.filter((s) => !differ.includes(s)).map((s) => [s.name, s.values[a]]), ...common] : [];
  const row = (name, one, other, last = "") => el("tr", { "data-name": name }, el("th", { scope: "row" }, name), el("td", {}, ...one), el("td", {}, ...other), el("td", { class: "number" }, last));
  const numbers = (c) => el("tr", { "data-name": c.name }, el("th", { scope: "row", title: titled(c) }, wordsOf(c)),
    ...[a, b].map((i) => el("td", { "data-value": c.values[i] }, ...withError(c.values[i], c.errors[i], writer(c)))), el("td", { class: "number" }, ...changeOf(c, a, b)));
  const part = (title, rows) => (rows.length ? [el("tbody", {}, el("tr", { class: "group" }, el("th", { scope: "rowgroup", colspan: 4 }, title)), ...rows)] : []);
  const heads = ["", runs.names[a], runs.names[b], "B minus A"].map((text, k) => el("th", { scope: "col", class: k === 3 ? "number" : null }, k === 1 ? el("b", {}, "A ") : k === 2 ? el("b", {}, "B ") : "", ...breakable(text)));
  byId("compare-table").replaceChildren(
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Two runs" }, el("table", { id: "compared", class: "compared" }, el("thead", {}, el("tr", {}, ...heads)),
      ...part(differ.length ? "Settings that differ" : "No setting differs", differ.length ? differ.map((s) => row(s.name, [word(s.values[a])], [word(s.values[b])])) : [row("", [a === b ? "this is one run" : "these runs have the same settings"], [])]),
      ...part("Settings that agree", agree.map(([name, value]) => row(name, [word(value)], [word(value)]))),
      ...part("Targets", targets.map(numbers)), ...part("Measures", measures.map(numbers)))),
    ...[a, b].filter((i, k, all) => !counts(i) && all.indexOf(i) === k).map((i) => el("p", { class: "quiet" }, `${runs.names[i]} does not count: excluded by the admission rule, or not finished.`)));
}

// Differences of shares are in percentage points.
const points = Object.assign((x) => minus(`${fixed(100 * x, 2)}\u00a0points`), { scale: 100, unit: "\u00a0points" });

// The difference with the error of both values together, if both have one; and the ratio of positive numbers.
function changeOf(c, a, b) {
  const [from, to] = [c.values[a], c.values[b]];
  if (!isNumber(from) || !isNumber(to)) return ["–"];
  const errors = [c.errors[a], c.errors[b]];
  const difference = withError(to - from, errors.every((e) => e > 0) ? Math.hypot(...errors) : null, c.percent ? points : digits);
  if (to > from) difference[0] = `+${difference[0]}`;
  return c.percent || from <= 0 || to <= 0 ? difference : [...difference, el("div", { class: "error" }, `× ${digits(to / from, 3)}`)];
}
