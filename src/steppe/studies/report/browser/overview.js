// The answers in words, and how well each measure ranks the runs.

let overviewTarget = null;

function drawTitle() {
  const { runs, settings, measures, targets, title } = state.data;
  byId("title").textContent = title;
  const methods = settings.find((s) => s.name === "method");
  const done = runs.states.filter((s) => s === "done").length;
  const facts = [done === runs.names.length ? count(done, "run") : `${done} of ${count(runs.names.length, "run")} done`];
  if (methods) facts.push(count(levels(methods.values).length, "method"));
  facts.push(count(measures.length, "measure"), count(targets.filter((t) => t.asked).length, "target"));
  const left = runs.admitted.filter((a) => a === false).length;
  if (left) facts.push(`${left} excluded by the admission rule`);
  byId("facts").textContent = facts.join(" · ");
}

function drawAnswers() {
  const cards = state.data.answers.map((answer) =>
    el("article", { class: answer.wide ? "answer wide" : "answer" }, el("h3", {}, answer.question), el("p", { class: "verdict" }, answer.verdict),
      ...answer.words.map((words) => el("p", {}, words))));
  byId("answers").replaceChildren(...cards);
}

function drawCorrelations() {
  const place = byId("correlations");
  const options = named("targets").filter(([name]) => state.data.correlations.some((c) => c.target === name));
  if (!options.length) return place.replaceChildren();
  overviewTarget = kept(overviewTarget, options);
  const rows = state.data.correlations.filter((c) => c.target === overviewTarget && isNumber(c.pooled.tau));
  rows.sort((a, b) => b.pooled.tau - a.pooled.tau);
  const within = rows.some((r) => r.within);
  const level = `${Math.round(100 * (rows[0]?.pooled.level ?? 0.95))} %`;
  const one = state.data.robust.filter((r) => r.target === overviewTarget && isNumber(r.psi));
  const head = ["measure", "τ", `${level} interval, from −1 to 1`, ...(within ? ["τ within groups"] : []), ...(one.length ? ["Ψ"] : []), "n", "p, corrected"];
  const table = el("table", { id: "tau-table" },
    el("thead", {}, el("tr", {}, ...head.map((h, k) => el("th", { scope: "col", class: k === 0 || k === 2 ? null : "number" }, h)))),
    el("tbody", {}, ...rows.map((row) => correlationRow(row, within, one))));
  const marked = rows.some((r) => r.pooled.ignores_errors);
  place.replaceChildren(
    el("h3", {}, "How well does each measure rank the runs?"),
    el("p", { class: "quiet" }, "Kendall's τ over all pairs of runs: +1 if the flatter run of a pair always has the lower target, 0 if flatness is uninformative, −1 if the flatter run always has the higher target.", one.length ? " Ψ is the granulated coefficient: the mean over settings of τ between runs that differ in that setting only." : ""),
    el("div", { class: "controls" }, menu("Target", "overview-target", options, overviewTarget, (v) => { overviewTarget = v; drawCorrelations(); byId("overview-target").focus(); })),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Rank correlations" }, table),
    ...(marked ? [el("p", { class: "quiet" }, "* The interval ignores the errors of some or all measured values.")] : []),
    ...robustTable(), ...effectsTable());
  return undefined;
}

// Sign errors per change of one setting, if the study has enough such pairs.
function robustTable() {
  const rows = state.data.robust.filter((r) => r.target === overviewTarget && isNumber(r.worst)).sort((a, b) => a.worst - b.worst);
  if (!rows.length) return [];
  const heads = ["measure", "mean sign error", "worst sign error", "where"];
  const cells = (r) => [el("th", { scope: "row" }, r.measure), ...[r.mean, r.worst].map((v) => el("td", { class: "number" }, v.toFixed(2))),
    el("td", {}, `${spoken(r.where)}, ${count(r.pairs, "pair")}`)];
  return [el("h3", { class: "next" }, "Where do measures fail?"),
    el("p", { class: "quiet" }, "The sign error is how often a measure ranks two runs wrongly that differ in one setting only: 0 means never, 0.5 is chance. The worst is over changes of a setting with five pairs or more."),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Sign errors" }, el("table", {},
      el("thead", {}, el("tr", {}, ...heads.map((h, k) => el("th", { scope: "col", class: k % 3 ? "number" : null }, h)))),
      el("tbody", {}, ...rows.map((r) => el("tr", {}, ...cells(r))))))];
}

// Effects of settings on measures: tau for numeric settings, the share of rank variance for all.
function effectsTable() {
  const { effects } = state.data;
  if (!effects.length) return [];
  const settings = [...new Set(effects.map((e) => e.setting))];
  const measures = [...new Set(effects.map((e) => e.measure))];
  const cell = (m, s) => {
    const e = effects.find((one) => one.measure === m && one.setting === s);
    if (!e || !isNumber(e.share)) return el("td", { class: "number" }, "–");
    const part = Math.round(100 * e.share / e.ceiling);
    const bar = el("span", { class: "bar", "aria-hidden": "true" }, el("i", { style: `width: ${part}%` }));
    return el("td", { class: "number", title: `n = ${e.n}` }, `${part} %`, isNumber(e.tau) ? el("span", { class: "error" }, ` τ ${signed(e.tau / e.tau_ceiling)}`) : "", bar);
  };
  return [el("h3", { class: "next" }, "Which settings do measures follow?"),
    el("p", { class: "quiet" }, "How far the values of a setting separate the runs by a measure: 100 % is perfect separation (share of the variance of ranks). τ is over pairs with different values of a numeric setting. A measure that follows the learning rate may carry no more information than the learning rate itself."),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Settings that measures follow" }, el("table", { id: "effects" },
      el("thead", {}, el("tr", {}, ...["measure", ...settings].map((h, k) => el("th", { scope: "col", class: k ? "number" : null }, h)))),
      el("tbody", {}, ...measures.map((m) => el("tr", {}, el("th", { scope: "row" }, m), ...settings.map((s) => cell(m, s)))))))];
}

function correlationRow(row, within, one) {
  const t = row.pooled;
  const words = isNumber(t.low) ? `${signed(t.low)} to ${signed(t.high)}` : t.interval;
  return el("tr", { "data-measure": row.measure },
    el("th", { scope: "row" }, row.measure),
    el("td", { class: "number", "data-value": t.tau }, signed(t.tau), t.ignores_errors ? "*" : ""),
    el("td", { class: "interval-cell", title: words }, intervalPicture(t), el("span", { class: "visually-hidden" }, words)),
    ...(within ? [el("td", { class: "number" }, row.within ? signed(row.within.tau) : "–")] : []),
    ...(one.length ? [el("td", { class: "number" }, signed(one.find((r) => r.measure === row.measure)?.psi))] : []),
    el("td", { class: "number" }, t.n, t.missing ? el("span", { class: "error" }, ` of ${t.n + t.missing}`) : ""),
    el("td", { class: "number" }, chanceWords(t.adjusted)));
}

function intervalPicture(t) {
  const x = (v) => `${50 + 50 * v}%`;
  const made = svg("svg", { class: "interval", "aria-hidden": "true" }, svg("line", { class: "zero", x1: "50%", x2: "50%", y1: 0, y2: "100%" }));
  if (isNumber(t.low)) made.append(svg("line", { class: "span", x1: x(t.low), x2: x(t.high), y1: "50%", y2: "50%" }));
  made.append(svg("circle", { class: "dot", cx: x(t.tau), cy: "50%", r: 5 }));
  return made;
}
