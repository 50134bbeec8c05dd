// The overview quotes the study's findings: verdicts, intervals and p-values come from Python and are not computed here.

const overview = { hypothesis: "strong", target: null };

const HYPOTHESES = {
  strong: ["over all pairs of runs (strong)", "τ over all pairs of runs: +1 if the flatter run of a pair always has the lower target, 0 if flatness is uninformative, −1 if the flatter run always has the higher target."],
  "within groups": ["over pairs in the same group", "τ over pairs of runs in the same group, so that differences between groups do not count."],
  weak: ["the flattest tenth against the rest (weak)", "τ over pairs of one of the flattest tenth of the runs and one other run: +1 if the flat run always has the lower target, −1 if it always has the higher one."],
};
const VERDICTS = { predicts: "good", better: "good", "predicts the opposite": "bad", worse: "bad", "weaker than 0.5": "none", "no relevant difference": "none", "cannot tell": "open" };
const SIGNS = { good: "✓", bad: "✕", none: "=", open: "?" };

function drawTitle() {
  const { runs, settings, measures, targets, title, question, notes } = state.data;
  const headline = question || (state.data.titled ? title : defaultQuestion() || title);
  byId("title").textContent = headline;
  byId("study").textContent = title;
  byId("study").hidden = headline === title;
  const told = notes.split(/\n\s*\n/).filter((part) => part.trim());
  byId("notes").replaceChildren(...(told.length ? [el("details", { class: "explained", open: paper }, el("summary", {}, "About this study"), ...told.map((part) => el("p", {}, part.trim())))] : []));
  const methods = settings.find((s) => s.name === "method");
  const done = runs.states.filter((s) => s === "done").length;
  const facts = [done === runs.names.length ? count(done, "run") : `${done} of ${count(runs.names.length, "run")} done`];
  if (methods) facts.push(count(levels(methods.values).length, "method"));
  facts.push(count(measures.length, "measure"), count(targets.filter((t) => t.asked).length, "target"));
  const left = runs.admitted.filter((a) => a === false).length;
  if (left) facts.push(`${left} not counted`);
  byId("facts").textContent = facts.join(" · ");
  drawAnswers();
}

// What a study asks that has neither a question nor a title.
function defaultQuestion() {
  const { findings, compare } = state.data.findings;
  const [compared] = comparedRows();
  if (compared) return `Which ${compare} has the lowest ${wordsOf(targetOf(compared.target))}?`;
  return findings.length ? `Do flatter runs have a lower ${wordsOf(targetOf(findings[0].target))}?` : "";
}

// The answers, the picture that shows the first of them, and what could be wrong. Methods come first where they are compared.
function drawAnswers() {
  const { sentence, method_sentence: methods, findings } = state.data.findings;
  const compares = comparedRows().length > 0;
  const answers = [...(compares ? [["method-sentence", methods]] : []), ...(sentence && (findings.length || !compares) ? [["sentence", sentence]] : [])];
  byId("answers").replaceChildren(...answers.map(([id, text]) => el("p", { class: "sentence", id }, ...inPlainWords(text))));
  byId("picture").replaceChildren(...(compares ? methodPicture() : measurePicture()));
  const warnings = warningsOf();
  byId("warnings").replaceChildren(...(warnings.length ? [el("h2", { class: "small" }, "What could be wrong with it"), el("ul", { class: "warnings" }, ...warnings.map((parts) => el("li", {}, ...parts)))] : []));
}

// A sentence with the words of its targets and measures in place of their identifiers, which stand in titles.
function inPlainWords(text) {
  const known = new Map(["targets", "measures"].flatMap((kind) => state.data[kind].map((c) => [c.name, c])));
  const names = [...known.keys()].sort((a, b) => b.length - a.length).map((name) => name.replace(/[^\w]/g, "\\$&"));
  if (!names.length) return [text];
  // “the training loss” is no measure called loss
  const parts = text.replace(/(?<=[\s(])-(?=\d)/g, "−").split(new RegExp(`(?<![\\w@.-]|training )(${names.join("|")})(?![\\w@-])`));
  const first = parts.findIndex((part) => part);
  const capital = (words, k) => (k === first ? words.charAt(0).toUpperCase() + words.slice(1) : words);
  return parts.map((part, k) => (k % 2 ? el("span", { class: "term", title: part }, capital(wordsOf(known.get(part)), k)) : capital(part, k)));
}

const comparedRows = () => state.data.findings.comparisons.filter((c) => c.pairs);
const PICTURED = 12; // rows of the picture; its table has the others
const morePictured = (n) => (n > PICTURED ? ` ${n - PICTURED} more rows are in the ` : " All numbers are in the ");
const pictureNote = (text, n, id) => el("p", { class: "quiet note" }, text, morePictured(n), el("a", { href: `#${id}` }, "table"), ".");

function methodPicture() {
  const { reference } = state.data.findings;
  const rows = comparedRows();
  const mine = rows.filter((c) => c.target === rows[0].target);
  const target = targetOf(rows[0].target);
  const reach = contestReach(mine, target.percent ? 100 : 1);
  const scale = digits(reach * (target.percent ? 100 : 1));
  const heads = ["difference, 95 % interval"];
  const line = (c) => el("tr", {}, el("th", { scope: "row" }, c.contender),
    el("td", { class: "interval-cell" }, intervalPicture({ tau: c.difference, low: c.low, high: c.high }, { verdict: c.verdict, reach })),
    ...numbered(heads, [`${difference(target, c.difference)}${isNumber(c.low) ? ` (${difference(target, c.low)} to ${difference(target, c.high)})` : ""}${target.percent ? " points" : ""}`]),
    el("td", { class: "verdict-cell" }, verdictMark(c.verdict)));
  const others = new Set(rows.map((c) => c.target)).size - 1;
  return [el("h2", { class: "small" }, `Difference in ${wordsOf(target)} to ${referenceWords(reference)}`),
    forestTable("picture-methods", "The methods in a picture", [state.data.findings.compare === "method" ? "method" : state.data.findings.compare, axisEnds(`−${scale} better`, "0", `+${scale} worse`), ...heads, "verdict"], [el("tbody", {}, ...mine.slice(0, PICTURED).map(line))], 2),
    pictureNote(`Mean differences with 95 % intervals, paired by seed and every other setting; left is better.${others ? ` ${count(others, "other target is", "other targets are")} compared too.` : ""}`, mine.length, "contest")];
}

function measurePicture() {
  const { findings, relevant_tau: relevant } = state.data.findings;
  const strong = findings.filter((f) => f.hypothesis === "strong");
  if (!strong.length) return [];
  const target = targetOf(strong[0].target);
  const mine = strong.filter((f) => f.target === target.name);
  const heads = ["τ, 95 % interval"];
  const line = (f) => el("tr", {}, el("th", { scope: "row" }, ...namedRow(column("measures", f.measure) ?? { name: f.measure })),
    el("td", { class: "interval-cell" }, intervalPicture(f, { verdict: f.verdict, marks: [-relevant, relevant] })),
    ...numbered(heads, [`${tauWords(f.tau)}${isNumber(f.low) ? ` (${intervalWords(f)})` : ""}`]), el("td", { class: "verdict-cell" }, verdictMark(f.verdict)));
  const others = new Set(strong.map((f) => f.target)).size - 1;
  return [el("h2", { class: "small" }, `Does each measure predict the ${wordsOf(target)}?`),
    forestTable("picture-measures", "The measures in a picture", ["measure", axisEnds("−1 flatter is worse", "0", "+1 flatter is better"), ...heads, "verdict"], [el("tbody", {}, ...mine.slice(0, PICTURED).map(line))], 2),
    pictureNote(`${HYPOTHESES.strong[1]}${others ? ` ${count(others, "other target is", "other targets are")} tested too.` : ""}`, mine.length, "forest")];
}

const referenceWords = (reference) => (reference === "none" ? "the plain optimizer" : reference);

// What could be wrong with the answers, as the findings have it: each is words, the strongest first.
function warningsOf() {
  const { findings, comparisons, row_sentence: rows, reference } = state.data.findings;
  const told = [];
  const add = (text) => told.push([`${WARNING} `, ...inPlainWords(`${text}.`)]);
  const paired = comparisons.filter((c) => c.pairs);
  for (const text of new Set(paired.filter((c) => c.warning).map((c) => c.warning))) add(text);
  const dearer = paired.filter((c) => isNumber(c.passes) && c.reference_passes > 0 && Math.abs(c.passes / c.reference_passes - 1) > 0.1);
  const times = [...new Set(dearer.map((c) => `${c.contender} ${digits(c.passes / c.reference_passes, 3)} times`))];
  if (times.length) add(`cost is not equal. In passes, against ${referenceWords(reference)}: ${times.join(", ")}`);
  const predicted = findings.filter((f) => f.hypothesis === "strong" && f.verdict.startsWith("predicts"));
  for (const f of predicted) {
    const { within, given_loss: loss } = f.confounding;
    const gone = [...within.map((w) => [`within ${w.setting}`, w]), ...(loss ? [["given the training loss", loss]] : [])].filter(([, w]) => isNumber(w.low) && w.low <= 0 && w.high >= 0);
    if (gone.length) add(`${f.measure} and ${f.target}: ${gone.map(([where, w]) => `${where}, τ is ${tauWords(w.tau)} (${intervalWords(w)})`).join("; ")}, and zero is not excluded`);
  }
  const few = predicted.filter((f) => f.sample && f.levels && f.levels < FEW).sort((a, b) => a.levels - b.levels)[0];
  if (few) add(`predictions rest on ${count(few.levels, few.sample)} only`);
  if (/do not/.test(rows)) add(rows.replace(/\.$/, ""));
  return told;
}
const FEW = 6; // levels of a factor, below which a verdict says little of other levels

const intervalWords = (t) => (isNumber(t.low) ? `${tauWords(t.low)} to ${tauWords(t.high)}` : "none");
const verdictMark = (verdict) => el("span", { class: `verdict-word ${VERDICTS[verdict]}` }, el("span", { class: "sign", "aria-hidden": "true" }, SIGNS[VERDICTS[verdict]]), ` ${verdict}`);
// Names with words that are longer than a column break after these signs.
const breakable = (name) => (/\S{25}/.test(name) ? name.split(/(?<=[_@=])/).flatMap((part, k) => (k ? [el("wbr"), part] : [part])) : [name]);
// A row's name in words; the identifier is its title.
const spanned = (c) => el("span", { class: "term", title: c.name }, ...breakable(wordsOf(c)));
const namedRow = (c) => [spanned(c)];
const targetOf = (name) => column("targets", name) ?? { name, percent: false, about: "" };

// A line of numbers of a forest plot. Heads are repeated in the cells, for narrow screens on which rows are stacked.
const numbered = (heads, cells) => cells.map((cell, k) => el("td", { class: "number", "data-head": heads[k] }, ...[cell].flat()));
const forestTable = (id, label, heads, bodies, numbersFrom = 3) => el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, el("table", { class: "forest", id },
  el("thead", {}, el("tr", {}, ...heads.map((h, k) => el("th", { scope: "col", class: k >= numbersFrom ? "number" : null }, ...[h].flat())))), ...bodies));
const groupHead = (target, columns, unit = "") => el("tr", { class: "group" }, el("th", { scope: "rowgroup", colspan: columns, title: target.name }, wordsOf(target), " ", el("span", { class: "error" }, target.about === wordsOf(target) ? unit.replace("; ", "") : `${target.about}${unit}`)));
// What stands below a row of numbers: why its verdict is as it is, and what else is known.
const reasonRow = (columns, parts) => el("tr", { class: "reason" }, el("td", { colspan: columns }, ...parts));

// Every measure by every target, for the chosen hypothesis; on paper for all of them.
function drawForest() {
  const { findings } = state.data.findings;
  byId("forest").hidden = !findings.length;
  if (!findings.length) return;
  const options = Object.entries(HYPOTHESES).filter(([name]) => findings.some((f) => f.hypothesis === name)).map(([name, [words]]) => [name, words]);
  overview.hypothesis = kept(overview.hypothesis, options);
  const shown = paper ? options.map(([name]) => name) : [overview.hypothesis];
  byId("forest-body").replaceChildren(
    el("div", { class: "head-row" }, ...(options.length > 1 ? [el("div", { class: "controls" }, menu("Pairs of runs", "forest-hypothesis", options, overview.hypothesis, (v) => { overview.hypothesis = v; drawForest(); byId("forest-hypothesis").focus(); }))] : [])),
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
  const row = (f) => [el("tr", { "data-measure": f.measure, "data-target": f.target, "data-hypothesis": f.hypothesis },
    el("th", { scope: "row", title: sentences[f.measure] }, ...namedRow(measureOf(f.measure))),
    el("td", { class: "verdict-cell", title: f.why }, verdictMark(f.verdict)),
    el("td", { class: "interval-cell" }, intervalPicture(f, { verdict: f.verdict, marks: [-relevant, relevant] })),
    ...numbered(heads, [tauWords(f.tau), intervalWords(f), chance(f.p_corrected), `${f.n}${f.missing ? ` of ${f.n + f.missing}` : ""} / ${f.configurations}`,
      isNumber(f.smallest_detectable_tau) ? fixed(f.smallest_detectable_tau, 2) : "none"])), reasonRow(8, [`${f.why}${meansOf(f)}${apart(f)}`])];
  const rows = findings.filter((f) => f.hypothesis === hypothesis);
  const targets = [...new Set(rows.map((f) => f.target))];
  return forestTable(`forest-${hypothesis.replace(" ", "-")}`, `Measures and targets, ${HYPOTHESES[hypothesis][0]}`, ["measure", "verdict", axisEnds("−1", "0", "+1"), ...heads],
    targets.map((name) => el("tbody", {}, groupHead(targetOf(name), 8), ...rows.filter((f) => f.target === name).flatMap(row))));
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
  const { comparisons, reference, reference_note: note } = state.data.findings;
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
    return el("tbody", {}, groupHead(target, 9, `; from −${scale} to +${scale}${target.percent ? " points" : ""}`), ...mine.flatMap((c) => contestRow(c, target, heads, reach, pool)));
  });
  const alone = [...new Set(comparisons.map((c) => c.contender))].filter((name) => !rows.some((c) => c.contender === name));
  byId("contest-body").replaceChildren(
    el("p", { class: "quiet" }, `Differences to ${reference === "none" ? "the plain optimizer (“none”)" : `“${reference}”`}, paired by seed and every other setting; negative (left) is better.${pool && ` Every row has ${pool}.`} ${note && `${note[0].toUpperCase()}${note.slice(1)}.`}`),
    forestTable("contest-table", "Methods compared", ["method", "verdict", axisEnds("better", "0", "worse"), ...heads], bodies),
    ...(alone.length ? [el("p", { class: "quiet note" }, `Without a run of ${reference} with the same seed and settings: ${alone.join(", ")}.`)] : []),
    explained("How verdicts are decided", methodRule()));
}

function methodRule() {
  const { level, tests } = state.data.findings;
  return `Points are mean differences, lines 95 % intervals over configurations, shared seeds and stored test samples. ${correction(tests)} “better” and “worse” need a corrected p of at most ${digits(level)} and an interval without zero.`
    + ` “no relevant difference” needs the same of a test that the difference is ${digits(100 * state.data.findings.relevant_difference)} % of the reference or more, and an interval with zero; everything else`
    + " is “cannot tell”. The detectable difference is the smallest that these pairs show with 80 % power.";
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
  const shown = el("tr", { "data-contender": c.contender, "data-target": c.target }, el("th", { scope: "row" }, c.contender),
    el("td", { class: "verdict-cell", title: [c.why, c.warning].filter(Boolean).join("; ") }, verdictMark(c.verdict), c.warning ? el("span", { class: "warned" }, ` ${WARNING}`) : ""),
    el("td", { class: "interval-cell" }, intervalPicture({ tau: c.difference, low: c.low, high: c.high }, { verdict: c.verdict, reach })), ...numbered(heads, cells));
  return [shown, reasonRow(9, comparisonReason(c))];
}

// Where measures fail on a target.
function drawDetails() {
  const options = named("targets").filter(([name]) => failuresOf(name).length);
  byId("details").hidden = !options.length;
  overview.target = kept(overview.target, options);
  byId("details-controls").replaceChildren(menu("Target", "details-target", options, overview.target, (v) => { overview.target = v; drawDetails(); byId("details-target").focus(); }));
  byId("by-setting").replaceChildren(...robustTable());
}

const failuresOf = (target) => state.data.robust.filter((r) => r.target === target && (isNumber(r.psi) || isNumber(r.worst)));

// What is left of a relation within the levels of a factor, and given the training loss.
function apart(f) {
  const { within, given_loss: loss } = f.confounding;
  const parts = [...within.map((w) => [`within ${w.setting}`, w]), ...(loss ? [["given the training loss", loss]] : [])].filter(([, w]) => isNumber(w.low));
  return parts.map(([where, w]) => `; ${where} ${tauWords(w.tau)} (${intervalWords(w)})`).join("");
}
const meansOf = (f) => (f.flattest && isNumber(f.mean_rest) ? `; ${amount(targetOf(f.target), f.mean_flattest)} in the flattest ${f.flattest}, ${amount(targetOf(f.target), f.mean_rest)} in the rest` : "");
const percentOf = (share) => `${Math.round(100 * share)}\u00a0%`;
function comparisonReason(c) {
  const share = isNumber(c.improvement_low) ? `; better in ${percentOf(c.improvement)} of the pairs (${percentOf(c.improvement_low)} to ${percentOf(c.improvement_high)})` : "";
  return [`${c.why}${share}${c.unpaired ? `; unpaired: ${c.unpaired}` : ""}`];
}

// Psi per setting, with its interval.
function psiLines() {
  const told = state.data.findings.findings.filter((f) => f.target === overview.target && f.hypothesis === "strong" && f.confounding.psi.length);
  const words = (w) => `${w.setting} ${tauWords(w.tau)} (${intervalWords(w)}, ${count(w.pairs, "pair")})`;
  return told.map((f) => el("p", { class: "quiet" }, el("b", {}, ...namedRow(column("measures", f.measure) ?? { name: f.measure })), `: Ψ of ${f.confounding.psi.map(words).join(", ")}`));
}

// The granulated coefficient, and sign errors per change of one setting, if the study has enough such pairs.
function robustTable() {
  const rows = failuresOf(overview.target);
  if (!rows.length) return [];
  const heads = ["measure", "Ψ", "mean sign error", "worst sign error", "where"];
  const two = (v) => (isNumber(v) ? fixed(v, 2) : "–");
  const cells = (r) => [el("th", { scope: "row" }, ...namedRow(column("measures", r.measure) ?? { name: r.measure })), ...[tauWords(r.psi), two(r.mean), two(r.worst)].map((text) => el("td", { class: "number" }, text)),
    el("td", { class: "where" }, r.where ? `${spoken(r.where)}, ${count(r.pairs, "pair")}` : "–")];
  return [
    el("p", { class: "quiet" }, "Ψ is the granulated coefficient: the mean over settings of τ between runs that differ in that setting only. The sign error is how often a measure ranks two such runs wrongly: 0 means never, 0.5 is chance. The worst is over changes of a setting with five pairs or more. Sign errors have no intervals."),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Sign errors" }, el("table", { id: "robust" },
      el("thead", {}, el("tr", {}, ...heads.map((h, k) => el("th", { scope: "col", class: k % 4 ? "number" : null }, h)))),
      el("tbody", {}, ...rows.map((r) => el("tr", {}, ...cells(r)))))),
    ...psiLines()];
}
