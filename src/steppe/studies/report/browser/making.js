// Measures with their kinds and costs, targets, the study's configuration, shared settings, versions.

function drawMaking() {
  const { measures, targets, making, common } = state.data;
  const parts = [];
  const scrolled = (label, table) => el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, table);
  const heads = (...names) => el("thead", {}, el("tr", {}, ...names.map(([n, number]) => el("th", { scope: "col", class: number ? "number" : null }, n))));
  if (measures.length) {
    parts.push(el("h3", {}, "Measures"), scrolled("Measures", el("table", { id: "making-measures" },
      heads(["measure"], ["kind"], ["draws", 1], ["cost per run"], ["seconds", 1], ["values", 1], ["definition"]),
      el("tbody", {}, ...measures.map((m) => el("tr", {}, el("th", { scope: "row" }, wordsOf(m), el("div", { class: "error id" }, ...breakable(m.name))), el("td", {}, m.kinds.join(", ") || "–"), el("td", { class: "number" }, m.n), el("td", {}, m.cost || "–"),
        el("td", { class: "number" }, digits(m.seconds, 3)), el("td", { class: "number" }, m.values.filter(isNumber).length), el("td", { class: "words" }, m.about)))))));
  }
  if (targets.length) {
    parts.push(el("h3", {}, "Targets"), scrolled("Targets", el("table", {}, heads(["target"], ["values", 1], ["lowest", 1], ["highest", 1], ["definition"]),
      el("tbody", {}, ...targets.map((t) => el("tr", {}, el("th", { scope: "row" }, wordsOf(t), el("div", { class: "error id" }, ...breakable(t.name))), el("td", { class: "number" }, t.values.filter(isNumber).length), ...span(t.values).map((v) => el("td", { class: "number" }, t.percent ? percent(v) : digits(v))), el("td", { class: "words" }, t.about)))))));
  }
  const pairs = (label, table) => { const made = scrolled(label, table); made.classList.add("pairs"); return made; };
  for (const { title, rows } of making) {
    if (!rows.length) continue;
    parts.push(el("h3", {}, title), pairs(title, el("table", {}, el("tbody", {}, ...rows.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", { class: "words" }, word(value))))))));
  }
  if (common.length) {
    parts.push(el("h3", {}, "Settings that all runs share"), el("dl", { class: "shared" }, ...common.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, word(value))))));
  }
  byId("making-body").className = "making";
  byId("making-body").replaceChildren(...parts);
}
