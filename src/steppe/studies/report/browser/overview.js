// The overview quotes the study's findings: verdicts, intervals and p-values come from Python and are not computed here.

const overview = { hypothesis: "strong", target: null };

const HYPOTHESES = {
  strong: ["over all pairs of runs (strong)", "τ over all pairs of runs: +1 if the flatter run of a pair always has the lower target, 0 if flatness is uninformative, −1 if the flatter run always has the higher target."],
  "within groups": ["over pairs in the same group", "τ over pairs of runs in the same group, so that differences between groups do not count."],
  weak: ["the flattest tenth against the rest (weak)", "τ over pairs of one of the flattest tenth of the runs and one other run: +1 if the flat run always has the lower target, −1 if it always has the higher one."],
};
const VERDICTS = { predicts: "good", better: "good", "predicts the opposite": "bad", worse: "bad", "weaker than 0.5": "none", "no relevant difference": "none", "cannot tell": "open" };
const ORDER = Object.keys(VERDICTS);
const SIGNS = { good: "✓", bad: "✕", none: "=", open: "?" };

function drawTitle() {
  const { runs, settings, measures, targets, title, question, notes } = state.data;
  byId("title").textContent = title;
  byId("question").textContent = question;
  byId("question").hidden = !question;
  byId("notes").replaceChildren(...notes.split(/\n\s*\n/).filter((part) => part.trim()).map((part) => el("p", {}, part.trim())));
  const methods = settings.find((s) => s.name === "method");
  const done = runs.states.filter((s) => s === "done").length;
  const facts = [done === runs.names.length ? count(done, "run") : `${done} of ${count(runs.names.length, "run")} done`];
  if (methods) facts.push(count(levels(methods.values).length, "method"));
  facts.push(count(measures.length, "measure"), count(targets.filter((t) => t.asked).length, "target"));
  const left = runs.admitted.filter((a) => a === false).length;
  if (left) facts.push(`${left} not counted`);
  byId("facts").textContent = facts.join(" · ");
  byId("sentence").textContent = state.data.findings.sentence;
}

const intervalWords = (t) => (isNumber(t.low) ? `${tauWords(t.low)} to ${tauWords(t.high)}` : "none");
const verdictMark = (verdict) => el("span", { class: `verdict-word ${VERDICTS[verdict]}` }, el("span", { class: "sign", "aria-hidden": "true" }, SIGNS[VERDICTS[verdict]]), ` ${verdict}`);
const breakable = (name) => name.split(/(?<=[_@])/).flatMap((part, k) => (k ? [el("wbr"), part] : [part])); // long names break after these
// A row's name: the identifier, and below it what it is in words.
const namedRow = (c) => [...breakable(c.name), ...(hasLabel(c) ? [el("div", { class: "error" }, c.label)] : [])];
const targetOf = (name) => column("targets", name) ?? { name, percent: false, about: "" };

// A line of numbers of a forest plot. Heads are repeated in the cells, for narrow screens on which rows are stacked.
const numbered = (heads, cells) => cells.map((cell, k) => el("td", { class: "number", "data-head": heads[k] }, ...[cell].flat()));
const forestTable = (id, label, heads, bodies, numbersFrom = 3) => el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, el("table", { class: "forest", id },
  el("thead", {}, el("tr", {}, ...heads.map((h, k) => el("th", { scope: "col", class: k >= numbersFrom ? "number" : null }, ...[h].flat())))), ...bodies));
const groupHead = (target, columns, unit = "") => el("tr", { class: "group" }, el("th", { scope: "rowgroup", colspan: columns }, target.name, " ", el("span", { class: "error" }, target.about, unit)));

// Every measure by every target, for the chosen hypothesis; on paper for all of them.
function drawForest() {
  const { findings } = state.data.findings;
  byId("forest").hidden = !findings.length;
  if (!findings.length) return;
  const options = Object.entries(HYPOTHESES).filter(([name]) => findings.some((f) => f.hypothesis === name)).map(([name, [words]]) => [name, words]);
  overview.hypothesis = kept(overview.hypothesis, options);
  const shown = paper ? options.map(([name]) => name) : [overview.hypothesis];
  byId("forest").replaceChildren(
    el("div", { class: "head-row" }, el("h2", { id: "forest-title" }, "Does each measure predict each target?"),
      ...(options.length > 1 ? [el("div", { class: "controls" }, menu("Pairs of runs", "forest-hypothesis", options, overview.hypothesis, (v) => { overview.hypothesis = v; drawForest(); byId("forest-hypothesis").focus(); }))] : [])),
    ...shown.flatMap((name) => [el("p", { class: "quiet" }, HYPOTHESES[name][1]), forestOf(name)]),
    explained("How verdicts are decided", verdictRule()));
}

// Text that a reader opens; on paper it is open.
const explained = (title, text) => el("details", { class: "explained", open: paper }, el("summary", {}, title), el("p", { class: "quiet note" }, text));

const correction = (tests) => (tests ? `p is corrected for all ${count(tests, "test")} of this study (Holm).` : "These runs are too few for any test.");

// How verdicts are decided, with the study's own levels.
function verdictRule() {
  const { level, relevant_tau: relevant, tests } = state.data.findings;
  return `Points are τ, lines 95 % intervals over configurations (runs that differ in their seed alone are one) and what they share, dashed lines ±${digits(relevant)}. ${correction(tests)}`
    + ` “predicts” needs a corrected p of at most ${digits(level)} and an interval without zero; “weaker than ${digits(relevant)}” needs the same of a test that τ is as large as that (or half of what ties allow), and an interval with zero; everything else is “cannot tell”.`
    + " Levels of methods, learning rates and shared seeds are left out and permuted as a whole. The detectable τ is the smallest that these runs show with 80 % power.";
}

function forestOf(hypothesis) {
  const { findings, relevant_tau: relevant, measure_sentences: sentences } = state.data.findings;
  const measureOf = (name) => column("measures", name) ?? { name };
  const heads = ["τ", "95 % interval", "corrected p", "runs / configurations", "detectable τ"];
  const row = (f) => el("tr", { "data-measure": f.measure, "data-target": f.target, "data-hypothesis": f.hypothesis },
    el("th", { scope: "row", title: sentences[f.measure] }, ...namedRow(measureOf(f.measure))),
    el("td", { class: "verdict-cell", title: f.why }, verdictMark(f.verdict)),
    el("td", { class: "interval-cell" }, intervalPicture(f, { verdict: f.verdict, marks: [-relevant, relevant] })),
    ...numbered(heads, [tauWords(f.tau), intervalWords(f), chance(f.p_corrected), `${f.n}${f.missing ? ` of ${f.n + f.missing}` : ""} / ${f.configurations}`,
      isNumber(f.smallest_detectable_tau) ? fixed(f.smallest_detectable_tau, 2) : "none"]));
  const rows = findings.filter((f) => f.hypothesis === hypothesis);
  const targets = [...new Set(rows.map((f) => f.target))];
  return forestTable(`forest-${hypothesis.replace(" ", "-")}`, `Measures and targets, ${HYPOTHESES[hypothesis][0]}`, ["measure", "verdict", axisEnds("flatter is worse", "0", "flatter is better"), ...heads],
    targets.map((name) => el("tbody", {}, groupHead(targetOf(name), 8), ...rows.filter((f) => f.target === name).map(row))));
}

const axisEnds = (...texts) => el("span", { class: "axis-ends" }, ...texts.map((text) => el("span", {}, text)));

// A point with its interval on a scale from -reach to reach, with lines at zero and at `marks`; arrows where it goes on.
function intervalPicture(t, { verdict = "", marks = [], reach = 1 } = {}) {
  const x = (v) => `${50 + (50 * Math.min(Math.max(v, -reach), reach)) / reach}%`;
  const line = (name, from, to, y1 = 0, y2 = "100%") => svg("line", { class: name, x1: x(from), x2: x(to), y1, y2 });
  const arrow = (side) => svg("svg", { x: x(side * reach), y: "50%", overflow: "visible" }, svg("path", { class: "dot", d: side < 0 ? "M-3,0L5,-5V5Z" : "M3,0L-5,-5V5Z" }));
  const made = svg("svg", { class: `interval ${VERDICTS[verdict] ?? ""}`, "aria-hidden": "true" }, line("zero", 0, 0), ...marks.map((v) => line("mark", v, v)));
  if (isNumber(t.low)) made.append(line("span", t.low, t.high, "50%", "50%"), ...(t.low < -reach ? [arrow(-1)] : []), ...(t.high > reach ? [arrow(1)] : []));
  if (isNumber(t.tau)) made.append(svg("circle", { class: "dot", cx: x(t.tau), cy: "50%", r: 5 }));
  return made;
}

// Which method won: every contender against the reference, paired by seed and every other setting.
function drawContest() {
  const { comparisons, reference, method_sentence: sentence, reference_note: note, tests } = state.data.findings;
  const rows = comparisons.filter((c) => c.pairs);
  byId("contest").hidden = !rows.length;
  if (!rows.length) return;
  const heads = ["difference", "95 % interval", "won / lost / tied", "corrected p", "detectable", "cost per run"];
  const pools = new Set(rows.map(poolWords));
  const pool = pools.size === 1 ? [...pools][0] : ""; // of every row: it is written once
  const bodies = [...new Set(rows.map((c) => c.target))].map((name) => {
    const target = targetOf(name);
    const mine = rows.filter((c) => c.target === name);
    const reach = contestReach(mine, target.percent ? 100 : 1);
    const scale = digits(reach * (target.percent ? 100 : 1));
    return el("tbody", {}, groupHead(target, 9, `; from −${scale} to +${scale}${target.percent ? " points" : ""}`), ...mine.map((c) => contestRow(c, target, heads, reach, pool)));
  });
  const alone = [...new Set(comparisons.map((c) => c.contender))].filter((name) => !rows.some((c) => c.contender === name));
  const warnings = [...new Set(rows.filter((c) => c.warning).map((c) => `${c.warning[0].toUpperCase()}${c.warning.slice(1)}.`))];
  byId("contest-body").replaceChildren(
    el("p", { class: "sentence" }, sentence),
    el("p", { class: "quiet" }, `Differences to ${reference === "none" ? "the plain optimizer (“none”)" : `“${reference}”`}, paired by seed and every other setting; negative (left) is better.${pool && ` Every row has ${pool}.`} ${note && `${note[0].toUpperCase()}${note.slice(1)}.`}`),
    forestTable("contest-table", "Methods compared", ["method", "verdict", axisEnds("better", "0", "worse"), ...heads], bodies),
    ...(alone.length ? [el("p", { class: "quiet note" }, `Without a run of ${reference} with the same seed and settings: ${alone.join(", ")}.`)] : []),
    ...(warnings.length ? [el("ul", { class: "warnings" }, ...warnings.map((text) => el("li", {}, `${WARNING} ${text}`)))] : []),
    explained("How verdicts are decided", methodRule()));
}

function methodRule() {
  const { level, tests } = state.data.findings;
  return `Points are mean differences, lines 95 % intervals over configurations, shared seeds and stored test rows. ${correction(tests)} “better” and “worse” need a corrected p of at most ${digits(level)} and an interval without zero.`
    + ` “no relevant difference” needs the same of a test that the difference is ${digits(100 * state.data.findings.relevant_difference)} % of the reference or more, and an interval with zero; everything else`
    + " is “cannot tell”. “One target in detail” gives the reasons. The detectable difference is the smallest that these pairs show with 80 % power.";
}

const WARNING = "⚠\ufe0e";

// The end of the axis: a round number that shows all differences and most intervals. One interval of two pairs may be
// a hundred times as long as the others.
function contestReach(rows, scale) {
  const ends = rows.filter((c) => isNumber(c.low)).map((c) => Math.max(-c.low, c.high)).sort((a, b) => a - b);
  const [middle, widest] = [ends[Math.floor((ends.length - 1) / 2)] ?? 0, ends.at(-1) ?? 0];
  const fitted = widest <= 3 * middle ? widest : 1.5 * middle; // an interval far wider than most goes on as an arrow
  const wanted = 1.02 * scale * Math.max(fitted, ...rows.map((c) => Math.abs(c.difference))) || 1;
  const power = 10 ** Math.floor(Math.log10(wanted));
  return ([1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((k) => k * power >= wanted) * power) / scale;
}

const poolWords = (c) => `${count(c.pairs, "pair")} of ${count(c.configurations, "configuration")}`;

function contestRow(c, target, heads, reach, pool) {
  const times = (a, b) => (isNumber(a) && b > 0 ? ` (${digits(a / b, 3)}x)` : "");
  const unit = target.percent ? " points" : "";
  const small = (text) => el("div", { class: "error" }, text);
  const cost = [isNumber(c.passes) ? `${digits(c.passes)} passes${times(c.passes, c.reference_passes)}` : "–",
    ...(isNumber(c.seconds) ? [small(`${digits(c.seconds, 3)} s${times(c.seconds, c.reference_seconds)}`)] : [])];
  const cells = [[`${difference(target, c.difference)}${unit}`, small(`${amount(target, c.mean)} against ${amount(target, c.reference_mean)}`)],
    isNumber(c.low) ? `${difference(target, c.low)} to ${difference(target, c.high)}` : "none", [`${c.wins} / ${c.losses} / ${c.ties}`, ...(pool ? [] : [small(poolWords(c))])],
    chance(c.p_corrected), isNumber(c.smallest_detectable_difference) ? `${digits((target.percent ? 100 : 1) * c.smallest_detectable_difference, 3)}` : "none", cost];
  return el("tr", { "data-contender": c.contender, "data-target": c.target }, el("th", { scope: "row" }, c.contender),
    el("td", { class: "verdict-cell", title: [c.why, c.warning].filter(Boolean).join("; ") }, verdictMark(c.verdict), c.warning ? el("span", { class: "warned" }, ` ${WARNING}`) : ""),
    el("td", { class: "interval-cell" }, intervalPicture({ tau: c.difference, low: c.low, high: c.high }, { verdict: c.verdict, reach })), ...numbered(heads, cells));
}

// One target in words, and where measures fail on it.
function drawDetails() {
  const { findings } = state.data.findings;
  const options = named("targets").filter(([name]) => findings.some((f) => f.target === name));
  byId("details").hidden = !options.length;
  overview.target = kept(overview.target, options);
  byId("details-controls").replaceChildren(menu("Target", "details-target", options, overview.target, (v) => { overview.target = v; drawDetails(); byId("details-target").focus(); }));
  byId("answers").replaceChildren(...answers(overview.target));
  byId("by-setting").replaceChildren(...robustTable());
}

const QUESTIONS = {
  strong: (target) => `Do flatter runs have a lower ${target}?`,
  "within groups": (target) => `Do flatter runs of the same group have a lower ${target}?`,
  weak: (target) => `Do the flattest tenth of the runs have a lower ${target}?`,
};

// One card per hypothesis and one for the methods: verdicts with the names they apply to, their reasons and numbers.
function answers(target) {
  const { findings, comparisons } = state.data.findings;
  const cards = Object.entries(QUESTIONS).map(([hypothesis, ask]) => [ask(target), findings.filter((f) => f.target === target && f.hypothesis === hypothesis), findingLine]);
  cards.push([`Which method has a lower ${target}?`, comparisons.filter((c) => c.target === target && c.pairs), comparisonLine]);
  return cards.filter(([, rows]) => rows.length).map(([question, rows, line]) => el("article", { class: "answer" }, el("h3", {}, question),
    ...[...grouped([...rows].sort((a, b) => ORDER.indexOf(a.verdict) - ORDER.indexOf(b.verdict)), (r) => JSON.stringify([r.verdict, r.why]))].flatMap(([key, those]) => {
      const [verdict, why] = JSON.parse(key);
      return [el("p", { class: "verdict" }, verdictMark(verdict), el("span", { class: "error" }, ` ${why}`)), el("ul", {}, ...those.map((r) => el("li", {}, ...line(r))))];
    })));
}

const findingLine = (f) => [el("b", {}, ...breakable(f.measure)), isNumber(f.tau) ? `: tau ${tauWords(f.tau)}, interval ${intervalWords(f)}, corrected p ${chance(f.p_corrected)}, ${count(f.n, "run")} of ${count(f.configurations, "configuration")}${meansOf(f)}${apart(f)}` : ""];
// What is left of a relation within the levels of a factor, and given the training loss.
function apart(f) {
  const { within, given_loss: loss } = f.confounding;
  const parts = [...within.map((w) => [`within ${w.setting}`, w]), ...(loss ? [["given the training loss", loss]] : [])].filter(([, w]) => isNumber(w.low));
  return parts.map(([where, w]) => `; ${where} ${tauWords(w.tau)} (${intervalWords(w)})`).join("");
}
const meansOf = (f) => (f.flattest && isNumber(f.mean_rest) ? `; ${amount(targetOf(f.target), f.mean_flattest)} in the flattest ${f.flattest}, ${amount(targetOf(f.target), f.mean_rest)} in the rest` : "");
const percentOf = (share) => `${Math.round(100 * share)}\u00a0%`;
function comparisonLine(c) {
  const target = targetOf(c.target);
  return [el("b", {}, c.contender), `: ${amount(target, c.mean)} against ${amount(target, c.reference_mean)}; difference ${difference(target, c.difference)}, interval ${isNumber(c.low) ? `${difference(target, c.low)} to ${difference(target, c.high)}` : "none"}${target.percent ? " points" : ""}, corrected p ${chance(c.p_corrected)}, ${c.wins} of ${count(c.pairs, "pair")} won${isNumber(c.improvement_low) ? `, better in ${percentOf(c.improvement)} (${percentOf(c.improvement_low)} to ${percentOf(c.improvement_high)})` : ""}${c.unpaired ? `; unpaired: ${c.unpaired}` : ""}`,
    ...(c.warning ? [el("span", { class: "warned" }, `; ${WARNING} ${c.warning}`)] : [])];
}

// Psi per setting, with its interval.
function psiLines() {
  const told = state.data.findings.findings.filter((f) => f.target === overview.target && f.hypothesis === "strong" && f.confounding.psi.length);
  const words = (w) => `${w.setting} ${tauWords(w.tau)} (${intervalWords(w)}, ${count(w.pairs, "pair")})`;
  return told.map((f) => el("p", { class: "quiet" }, el("b", {}, ...breakable(f.measure)), `: Ψ of ${f.confounding.psi.map(words).join(", ")}`));
}

// The granulated coefficient, and sign errors per change of one setting, if the study has enough such pairs.
function robustTable() {
  const rows = state.data.robust.filter((r) => r.target === overview.target && (isNumber(r.psi) || isNumber(r.worst)));
  if (!rows.length) return [];
  const heads = ["measure", "Ψ", "mean sign error", "worst sign error", "where"];
  const two = (v) => (isNumber(v) ? fixed(v, 2) : "–");
  const cells = (r) => [el("th", { scope: "row" }, ...breakable(r.measure)), ...[tauWords(r.psi), two(r.mean), two(r.worst)].map((text) => el("td", { class: "number" }, text)),
    el("td", { class: "where" }, r.where ? `${spoken(r.where)}, ${count(r.pairs, "pair")}` : "–")];
  return [el("h3", { class: "next" }, `Where do measures fail to rank runs by ${overview.target}?`),
    el("p", { class: "quiet" }, "Ψ is the granulated coefficient: the mean over settings of τ between runs that differ in that setting only. The sign error is how often a measure ranks two such runs wrongly: 0 means never, 0.5 is chance. The worst is over changes of a setting with five pairs or more. Sign errors have no intervals."),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Sign errors" }, el("table", { id: "robust" },
      el("thead", {}, el("tr", {}, ...heads.map((h, k) => el("th", { scope: "col", class: k % 4 ? "number" : null }, h)))),
      el("tbody", {}, ...rows.map((r) => el("tr", {}, ...cells(r)))))),
    ...psiLines()];
}
