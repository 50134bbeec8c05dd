// Importance of hyper-parameters: how well the values of each setting separate the runs by a target or a measure.

const importance = { of: null };

const allEffects = () => [...state.data.target_effects.map((e) => ({ ...e, key: `targets:${e.measure}` })), ...state.data.effects.map((e) => ({ ...e, key: `measures:${e.measure}` }))].filter((e) => isNumber(e.share) && e.ceiling > 0);

function drawImportance() {
  const there = new Set(allEffects().map((e) => e.key));
  const options = quantities().filter(([key]) => there.has(key));
  byId("importance").hidden = !options.length;
  if (!options.length) return;
  importance.of = kept(importance.of, options);
  byId("importance-controls").replaceChildren(menu("Of", "importance-of", options, importance.of, (v) => { importance.of = v; drawImportance(); byId("importance-of").focus(); }));
  const rows = allEffects().filter((e) => e.key === importance.of).map((e) => ({ ...e, part: Math.min(e.share / e.ceiling, 1) })).sort((a, b) => b.part - a.part);
  const heads = ["setting", "share of a perfect separation", "", "τ", "values", "runs"];
  byId("importance-table").replaceChildren(el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Importance of settings" }, el("table", { id: "importances" },
    el("thead", {}, el("tr", {}, ...heads.map((h, k) => el("th", { scope: "col", class: k > 1 ? "number" : null, colspan: k === 1 ? 2 : null }, h)).filter((_, k) => k !== 2))),
    el("tbody", {}, ...rows.map((e) => el("tr", { "data-setting": e.setting }, el("th", { scope: "row" }, e.setting),
      el("td", { class: "long-bar" }, el("span", { class: "bar", "aria-hidden": "true" }, el("i", { style: `width: ${100 * e.part}%` }))),
      el("td", { class: "number", "data-value": e.part }, `${fixed(100 * e.part, 0)}\u00a0%`),
      el("td", { class: "number" }, isNumber(e.tau) && e.tau_ceiling > 0 ? signed(e.tau / e.tau_ceiling) : "–"),
      el("td", { class: "number" }, e.values), el("td", { class: "number" }, e.n)))))));
}
