// Which settings matter: how well the values of each setting separate the runs by each target and each measure.

// The effects of one quantity by setting: shares and tau as parts of what a perfect separation reaches in this design.
function effectsOf(kind, name) {
  const all = kind === "targets" ? state.data.target_effects : state.data.effects;
  const there = all.filter((e) => e.measure === name && isNumber(e.share) && e.ceiling > 0);
  return new Map(there.map((e) => [e.setting, { ...e, part: Math.min(e.share / e.ceiling, 1), order: isNumber(e.tau) && e.tau_ceiling > 0 ? e.tau / e.tau_ceiling : NaN }]));
}

function drawSettings() {
  const groups = ["targets", "measures"].map((kind) => ({ kind, rows: state.data[kind].map((c) => ({ ...c, effects: effectsOf(kind, c.name) })).filter((c) => c.effects.size) })).filter((g) => g.rows.length);
  const names = state.data.settings.map((s) => s.name).filter((name) => groups.some((g) => g.rows.some((c) => c.effects.has(name))));
  byId("settings").hidden = !names.length;
  if (!names.length) return;
  byId("settings-sentence").replaceChildren(...inPlainWords(state.data.followed));
  const heads = [...names, "runs"];
  const values = (name) => groups.flatMap((g) => g.rows).map((c) => c.effects.get(name)?.values ?? 0).reduce((a, b) => Math.max(a, b));
  const head = (name) => (name === "runs" ? name : [...breakable(name), " ", el("span", { class: "error" }, count(values(name), "value"))]);
  byId("settings-table").replaceChildren(forestTable("settings-matrix", "Settings that targets and measures follow", ["target or measure", ...heads.map(head)],
    groups.map(({ kind, rows }) => el("tbody", {}, el("tr", { class: "group" }, el("th", { scope: "rowgroup", colspan: heads.length + 1 }, kind)), ...rows.map((c) => settingsRow(c, names, heads)))), 1));
}

function settingsRow(c, names, heads) {
  const runs = [...c.effects.values()].map((e) => e.n).reduce((a, b) => Math.max(a, b));
  const most = [...c.effects.values()].reduce((a, b) => (b.part > a.part ? b : a));
  const cell = (e) => (!e ? "–" : [el(e === most ? "b" : "span", { "data-value": e.part }, `${fixed(100 * e.part, 0)}\u00a0%`),
    el("span", { class: "bar", "aria-hidden": "true" }, el("i", { style: `width: ${100 * e.part}%` })),
    el("div", { class: "error" }, [isNumber(e.order) ? `τ\u00a0${tauWords(e.order)}` : "", e.n < runs ? `${count(e.n, "run")}` : ""].filter(Boolean).join(", "))]);
  return el("tr", { "data-name": c.name }, el("th", { scope: "row" }, ...namedRow(c)), ...numbered(heads, [...names.map((name) => cell(c.effects.get(name))), runs]));
}
