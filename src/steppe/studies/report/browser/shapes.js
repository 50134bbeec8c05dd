// Spectra, loss landscapes and ensembles, where the study has them.

const shapes = { spectra: new Set(), directions: null, landscape: null, beside: null, logRise: false, ensembleX: null, ensembleY: null };
const SPECTRA = 4; // at first
const RISE_DECADES = 4; // of the logarithmic scale of landscapes, below the largest rise
const DIRECTIONS = { eigenvectors: "top eigenvectors", random: "random", stored: "as stored" };
const STANDING = " Best and worst refer to the study's first target, flattest and sharpest to its first measure, among runs that count.";

// The label of a picture: its title, or its run with the run's role.
const called = (one) => one.title || state.data.runs.names[one.run];
const label = (one) => one.title || [one.roles?.join(", "), state.data.runs.names[one.run]].filter(Boolean).join(": ");

function drawShapesControls() {
  const { spectra, landscapes, ensembles } = state.data;
  byId("spectra").hidden = !spectra.length;
  byId("landscapes").hidden = !landscapes.length;
  byId("ensembles").hidden = !ensembles.length;
  if (spectra.length) {
    if (!shapes.spectra.size) for (const k of spectra.keys()) if (k < SPECTRA) shapes.spectra.add(k);
    byId("spectra-controls").replaceChildren(...spectra.map((one, k) => tick(short(label(one), 56), `spectrum-${k}`, shapes.spectra.has(k), (on) => {
      if (on) shapes.spectra.add(k); else shapes.spectra.delete(k);
      drawSpectraCaption();
      redraw("spectra-chart");
    })));
  }
  if (landscapes.length) {
    const kinds = landscapes.map((one) => [one.directions, DIRECTIONS[one.directions] ?? one.directions]);
    shapes.directions = kept(shapes.directions, kinds);
    const runs = landscapeSet().runs;
    const options = runs.map((one, k) => [String(k), label(one)]);
    const others = [["", "nothing"], ...options];
    const withRole = (role, otherwise) => options[runs.findIndex((one) => one.roles.includes(role))]?.[0] ?? otherwise;
    shapes.landscape = kept(shapes.landscape, options, withRole("flattest", "0"));
    const second = options.find(([k]) => k !== shapes.landscape)?.[0] ?? "";
    shapes.beside = kept(shapes.beside, others, withRole("sharpest", second));
    if (shapes.beside === shapes.landscape) shapes.beside = second;
    const set = (key) => (v) => { shapes[key] = v; drawShapes(); };
    const turn = (v) => { const old = [shapes.landscape, shapes.beside].map((k) => landscapeSet().runs[Number(k)]?.run); shapes.directions = v; // the same runs, if they are there
      [shapes.landscape, shapes.beside] = old.map((run) => { const k = landscapeSet().runs.findIndex((one) => one.run === run); return k < 0 ? null : String(k); });
      drawShapesControls(); drawShapes(); };
    byId("landscapes-controls").replaceChildren(...(kinds.length > 1 ? [menu("Directions", "landscape-directions", kinds, shapes.directions, turn)] : []),
      menu("Run", "landscape-run", options, shapes.landscape, set("landscape")),
      ...(options.length > 1 ? [menu("Compared with", "landscape-beside", others, shapes.beside, set("beside"))] : []),
      tick("log scale", "landscape-log", shapes.logRise, set("logRise")));
  }
  if (ensembles.length) {
    const names = Object.keys(ensembles[0].values).map((n) => [n, n]);
    shapes.ensembleX = kept(shapes.ensembleX, names, names.find(([n]) => n.includes("sharp") || n === "member_accuracy")?.[0]);
    shapes.ensembleY = kept(shapes.ensembleY, names, names.find(([n]) => n.includes("divers") || n === "disagreement")?.[0] ?? names[1]?.[0]);
    const set = (key) => (v) => { shapes[key] = v; redraw("ensembles-chart"); drawEnsembleCaption(); };
    byId("ensembles-controls").replaceChildren(menu("x axis", "ensemble-x", names, shapes.ensembleX, set("ensembleX")), menu("y axis", "ensemble-y", names, shapes.ensembleY, set("ensembleY")));
    drawEnsembleTable();
  }
}

// The landscapes with the chosen directions.
const landscapeSet = () => state.data.landscapes.find((one) => one.directions === shapes.directions);

// Densities with a band of one standard error, and the largest eigenvalue of each run.
function spectraFigure() {
  const those = state.data.spectra.map((one, k) => [one, k]).filter(([, k]) => shapes.spectra.has(k));
  const narrow = innerWidth < 760 && !paper;
  const top = Math.max(1e-9, ...those.flatMap(([one]) => one.density.filter(isNumber)));
  // a single eigenvalue is a Gaussian of this height; what is lower is the tail of one
  const alone = those.filter(([one]) => one.width).map(([one]) => 0.1 / (one.dimension * one.width * Math.sqrt(2 * Math.PI)));
  const floor = alone.length ? Math.min(...alone) : top * 1e-7;
  const data = [];
  for (const [one, k] of those) {
    const name = label(one);
    const style = { color: category(k), width: 2, dash: ["solid", "dash", "dot", "dashdot"][k % 4] };
    const at = (f) => one.density.map((d, i) => Math.max(f(d ?? 0, one.error?.[i] ?? 0), floor / 2)); // below the axis
    const group = { type: "scatter", legendgroup: name, x: one.x };
    const edge = { ...group, mode: "lines", line: { width: 0, color: category(k) }, hoverinfo: "skip", showlegend: false };
    if (one.error?.some((e) => e > 0)) data.push({ ...edge, y: at((d, e) => d - e) }, { ...edge, y: at((d, e) => d + e), fill: "tonexty", fillcolor: `${category(k)}38` });
    data.push({ ...group, mode: "lines", y: at((d) => d), line: style, name: plain(short(name, narrow ? 40 : 60)), customdata: one.density, hovertemplate: "eigenvalue %{x:.4g}<br>density %{customdata:.3g}<extra></extra>" });
    if (isNumber(one.lambda_max)) data.push({ ...group, mode: "lines+markers", x: [one.lambda_max, one.lambda_max], y: [floor / 2, floor * (top / floor) ** (0.36 + 0.04 * (k % 4))], line: { ...style, width: 1.5 }, showlegend: false,
      marker: { symbol: "triangle-down", size: [0, 11], color: category(k), line: { width: 0 } }, hovertemplate: `largest eigenvalue ${digits(one.lambda_max)}<extra></extra>` });
  }
  return { data, layout: { showlegend: true, legend: narrow ? { x: 0, y: 1.02, yanchor: "bottom", orientation: "h" } : { x: 1, xanchor: "right", y: 1, bgcolor: "rgba(0,0,0,0)" }, ...(narrow ? { height: 460 } : {}), xaxis: { words: "eigenvalue" },
    yaxis: { words: "density", type: "log", dtick: 1, exponentformat: "power", range: [Math.log10(floor), Math.log10(top) + 0.3] } } };
}

function drawSpectraCaption() {
  const those = state.data.spectra.filter((_, k) => shapes.spectra.has(k));
  const width = those.find((one) => one.width)?.width;
  const tops = those.filter((one) => isNumber(one.lambda_max)).map((one) => `${digits(one.lambda_max, 3)} (${label(one)})`);
  byId("spectra-caption").textContent = "Density of the Hessian's eigenvalues on a logarithmic axis, so that single large eigenvalues show beside the bulk at zero."
    + (width ? ` All curves are smoothed by Gaussians of one width, ${digits(width, 2)}; bands are one standard error over random starts. The axis ends at a tenth of the height of a single eigenvalue.` : "")
    + (tops.length ? ` Triangles mark the largest eigenvalues: ${tops.join(", ")}.` : "")
    + (those.some((one) => !one.width) ? " Stored by an earlier version: each curve is smoothed by 1 % of its own range, so widths cannot be compared. `steppe study run` computes them again." : "") + STANDING;
}

// Up to two landscapes side by side with one scale, and the loss along the first direction of both below.
function landscapeFigure() {
  const runs = landscapeSet()?.runs ?? [];
  const those = [shapes.landscape, shapes.beside].filter((k, i, all) => k && all.indexOf(k) === i).map((k) => runs[Number(k)]).filter(Boolean);
  if (!those.length) return null;
  const narrow = innerWidth < 760 && !paper;
  const planes = those.filter((one) => one.y !== null && one.y !== undefined);
  const few = planes.length < 2;
  byId("landscapes-chart").parentElement.style.maxWidth = few ? "48rem" : "none";
  const [low, high] = span(those.flatMap((one) => one.rises.flat()));
  const scale = { log: shapes.logRise && high > 0, low: shapes.logRise && high > 0 ? high * 10 ** -RISE_DECADES : low, high };
  // rows of the figure from the top, in pixels: planes, stacked on a narrow screen, and the profile
  const rows = [...(planes.length ? (narrow ? planes.map(() => 300) : [400]) : []), narrow ? 220 : 230];
  const gap = narrow ? 120 : 104;
  const height = rows.reduce((a, b) => a + b, 0) + gap * (rows.length - 1);
  const place = (r) => { const above = rows.slice(0, r).reduce((a, b) => a + b + gap, 0); return [1 - (above + rows[r]) / height, 1 - above / height]; };
  const margin = { l: 70, r: 18, t: 44 + (narrow && planes.length ? 56 : 0), b: 60 };
  const made = { data: [], layout: { height: height + margin.t + margin.b, margin, annotations: [], showlegend: true } };
  const title = (text, x, y) => made.layout.annotations.push({ text: plain(text), x, y, xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", yshift: 6, showarrow: false, font: { color: ink("ink"), size: narrow ? 12 : 14 } });
  for (const [k, one] of planes.entries()) {
    const n = k ? k + 1 : "";
    const x = few || narrow ? [0, 1] : k ? [0.54, 1] : [0, 0.46];
    const y = place(narrow ? k : 0);
    const names = one.names.map((name) => (narrow ? name.split(",")[0] : name));
    made.layout[`xaxis${n}`] = { words: names[0], domain: x, anchor: `y${n}`, zeroline: false, constrain: "domain", constraintoward: "left" };
    made.layout[`yaxis${n}`] = { words: k && !narrow && one.names[1] === planes[0].names[1] ? "" : names[1], domain: y, anchor: `x${n}`, zeroline: false,
      scaleanchor: `x${n}`, constrain: "domain", constraintoward: "top" }; // distances in the plane are as they are in the picture
    title(short(label(one), narrow ? 40 : 60), x[0], y[1]);
    made.data.push(...contours(one, { xaxis: `x${n}`, yaxis: `y${n}` }, scale, k === 0, narrow));
  }
  const n = planes.length ? planes.length + 1 : "";
  const y = place(rows.length - 1);
  made.layout[`xaxis${n}`] = { words: "distance along the first direction", domain: [0, 1], anchor: `y${n}`, zeroline: false };
  made.layout[`yaxis${n}`] = { words: "rise", domain: y, anchor: `x${n}`, ...(scale.log ? { type: "log", dtick: 1, exponentformat: "power", range: [Math.log10(scale.low), Math.log10(high) + 0.1] } : {}) };
  for (const one of those) made.data.push(...profile(one, { xaxis: `x${n}`, yaxis: `y${n}` }, scale, those.indexOf(one)));
  made.layout.legend = { orientation: "h", x: 0, y: y[1], yanchor: "bottom", font: { size: narrow ? 12 : 14 } };
  return made;
}

const bent = (v, scale) => (!isNumber(v) ? null : scale.log ? Math.log10(Math.max(v, scale.low)) : v);

// The loss along the first direction, through the weights.
function profile(one, place, scale, k) {
  const middle = one.y ? one.y.indexOf(0) : null;
  if (middle === -1) return [];
  const rises = middle === null ? one.rises : one.rises.map((row) => row[middle]);
  return [{ type: "scatter", mode: "lines", x: one.x, y: rises.map((v) => (isNumber(v) && scale.log ? Math.max(v, scale.low) : v)), ...place, name: plain(label(one)), line: { color: category(k), width: 2.5, dash: k ? "dash" : "solid" },
    customdata: rises.map((v) => digits(v + one.loss)), hovertemplate: `${plain(short(label(one), 40))}<br>at %{x:.3g}: rise %{y:.4g}, loss %{customdata}<extra></extra>` }];
}

function contours(one, place, scale, bar, flat) {
  // rises[i][j] is at x[i], y[j]; plotly wants rows by y
  const z = one.y.map((_, j) => one.x.map((__, i) => bent(one.rises[i][j], scale)));
  const raw = one.y.map((_, j) => one.x.map((__, i) => `rise ${digits(one.rises[i][j])}, loss ${digits(one.rises[i][j] + one.loss)}`));
  const [low, high] = [bent(scale.low, scale), bent(scale.high, scale)];
  const rough = (high - low) / 18 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 4, 5, 10].find((k) => k * power >= rough) * power; // so that the levels are numbers that can be read
  const words = scale.log ? "rise of the loss, log₁₀" : "rise of the loss";
  return [{ type: "contour", x: one.x, y: one.y, z, customdata: raw, ...place, zmin: low, zmax: high, zauto: false, autocontour: false, contours: { coloring: "heatmap", start: scale.log ? Math.ceil(low / step) * step : step, end: high, size: step }, showscale: bar,
    colorscale: CIVIDIS.map((c, k) => [k / (CIVIDIS.length - 1), c]), line: { width: 0.5, color: "rgba(255,255,255,0.55)" }, hovertemplate: "%{x:.3g}, %{y:.3g}<br>%{customdata}<extra></extra>",
    colorbar: { thickness: 12, outlinewidth: 0, tickfont: { color: ink("soft") }, tickformat: ".2~g", ...(flat ? { orientation: "h", y: 1, yref: "container", yanchor: "top", ypad: 8, title: { text: words, side: "top" } } : { title: { text: words.replace("rise of the", "rise of<br>the") }, y: 1, yanchor: "top", len: 0.6 }) } },
  { type: "scatter", mode: "markers", x: [0], y: [0], ...place, showlegend: false, marker: { symbol: "cross", size: 12, color: "#ffffff", line: { color: "#000000", width: 1.5 } }, hovertemplate: "the trained weights<extra></extra>" }];
}

// The radius and the rise that it was chosen for, and what the directions are.
function drawLandscapesCaption() {
  const { runs, radius, rise, directions } = landscapeSet();
  const parts = ["Rise of the loss above the loss at the trained weights (the cross), with one scale."];
  const note = runs[Number(shapes.landscape)]?.note;
  if (note) parts.push(`${note[0].toUpperCase()}${note.slice(1)}.`);
  if (isNumber(radius)) {
    const sharpest = runs.reduce((a, b) => ((b.own_radius ?? Infinity) < (a.own_radius ?? Infinity) ? b : a));
    const all = runs.length > 1 ? `, the sharpest of ${runs.length} runs,` : "";
    const chosen = [shapes.landscape, shapes.beside].map((k) => (k ? runs[Number(k)] : null)).filter((one) => one && one !== sharpest);
    const others = [...new Set(chosen)].map((one) => `; ${called(one)} ${isNumber(one.own_radius) ? `does so at ${digits(one.own_radius, 3)}` : "never does"}`);
    parts.push(`Radius ${digits(radius, 3)}: ${called(sharpest)}${all} rises by ${rise.toFixed(1)} at the end of an axis${others.join("")}.`);
  }
  parts.push({ eigenvectors: "Directions are unit eigenvectors of the largest eigenvalues λ: to second order the loss rises by λ r² / 2.",
    random: "Directions are random and filter-normalised (Li et al. 2018): at distance 1 every filter has moved by its own norm.",
    stored: "Each landscape is as it was stored, with its own directions and radius: use them to compare shapes, not sizes." }[directions] ?? "");
  byId("landscapes-caption").textContent = parts.join(" ") + (runs.some((one) => one.roles?.length) ? STANDING : "");
}

const kinds = () => [...new Set(state.data.ensembles.map((e) => e.kind ?? ""))];
const slopeOf = (kind) => state.data.slopes.find((s) => s.kind === kind && s.x === shapes.ensembleX && s.y === shapes.ensembleY && isNumber(s.slope));

function ensemblesFigure() {
  const data = [];
  const all = [shapes.ensembleX, shapes.ensembleY].map((name) => state.data.ensembles.map((e) => e.values[name]).filter(isNumber));
  const logs = all.every((values) => values.length && values.every((v) => v > 0));
  for (const [k, kind] of kinds().entries()) {
    const mine = state.data.ensembles.filter((e) => (e.kind ?? "") === kind);
    const of = (name) => mine.map((e) => e.values[name] ?? null);
    const bars = (name) => ({ type: "data", array: mine.map((e) => e.errors?.[name] ?? 0), color: category(k), thickness: 1, width: 0, visible: mine.some((e) => isNumber(e.errors?.[name])) });
    const [x, y] = [of(shapes.ensembleX), of(shapes.ensembleY)];
    data.push({ type: "scatter", mode: "markers", name: plain(kind), x, y, error_x: bars(shapes.ensembleX), error_y: bars(shapes.ensembleY), text: mine.map((e) => plain(e.name)), hovertemplate: "<b>%{text}</b><br>%{x:.4g}, %{y:.4g}<extra></extra>",
      marker: { color: category(k), symbol: SHAPES[k % SHAPES.length][0], size: 12, line: { color: edge(category(k)), width: 1 } } });
    const fitted = slopeOf(kind);
    if (fitted && logs) data.push({ type: "scatter", mode: "lines", ...fittedLine(x, y, fitted.slope), line: { color: category(k), dash: "dash", width: 1.5 }, hoverinfo: "skip", showlegend: false });
  }
  const axis = (name, values) => ({ words: wordsOf(column("measures", name) ?? { name }), zeroline: false, ...(logs ? { type: "log", ...logTicks(values) } : {}) });
  return { data, layout: { showlegend: kinds().length > 1, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, margin: { l: 70, r: 18, t: 60, b: 56 }, xaxis: axis(shapes.ensembleX, all[0]), yaxis: axis(shapes.ensembleY, all[1]) } };
}

// Tick values of a logarithmic axis, written out.
function logTicks(values) {
  const [low, high] = span(values);
  const steps = high / low < 8 ? [1, 1.5, 2, 3, 4, 5, 6, 8] : high / low < 1e3 ? [1, 2, 5] : [1];
  const found = [];
  for (let power = Math.floor(Math.log10(low)) - 1; power <= Math.log10(high) + 1; power++) for (const step of steps) found.push(Number(`${step}e${power}`));
  return { tickvals: found, ticktext: found.map((v) => minus(String(Number(v.toPrecision(3))))) };
}

// The ends of a line through the middle of the points, on logarithms.
function fittedLine(x, y, slope) {
  const there = x.map((v, i) => [v, y[i]]).filter(([a, b]) => isNumber(a) && isNumber(b));
  const [a, b] = [0, 1].map((side) => mean(there.map((point) => Math.log(point[side]))));
  const ends = span(there.map(([v]) => v));
  return { x: ends, y: ends.map((v) => Math.exp(b + slope * (Math.log(v) - a))) };
}

function drawEnsembleTable() {
  const names = Object.keys(state.data.ensembles[0].values);
  byId("ensembles-table").replaceChildren(el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Ensembles" }, el("table", {},
    el("thead", {}, el("tr", {}, ...["ensemble", "members", ...names].map((n, k) => el("th", { scope: "col", class: k ? "number" : null }, n)))),
    el("tbody", {}, ...state.data.ensembles.map((e) => el("tr", {}, el("th", { scope: "row" }, e.name), el("td", { class: "number" }, e.members ?? "–"), ...names.map((n) => el("td", { class: "number" }, ...withError(e.values[n], e.errors?.[n])))))))));
  drawEnsembleCaption();
}

// What the points are, and what was fitted to them.
function drawEnsembleCaption() {
  const fitted = kinds().map((kind) => [kind, slopeOf(kind)]).filter(([, s]) => s);
  const slopes = fitted.map(([kind, s]) => `${kind ? `${kind} ` : ""}${minus(s.slope.toFixed(2))}${isNumber(s.low) ? ` (${minus(s.low.toFixed(2))} to ${minus(s.high.toFixed(2))}, n = ${s.n})` : ` (n = ${s.n})`}`);
  byId("ensembles-caption").textContent = "Each point is an ensemble of runs that differ in their seed only: the mean of each measure over its members, and the ensemble's scores on the test samples. Error bars are one standard error over members."
    + (slopes.length ? ` Dashed lines: least squares on logarithms, with slope ${slopes.join(", ")}; in brackets the 95 % interval.` : "");
}

function drawShapes() {
  if (state.data.spectra.length) drawSpectraCaption();
  if (state.data.landscapes.length) drawLandscapesCaption();
  for (const id of ["spectra-chart", "landscapes-chart", "ensembles-chart"]) redraw(id);
}

function startShapes() {
  chart("spectra-chart", spectraFigure);
  chart("landscapes-chart", landscapeFigure);
  chart("ensembles-chart", ensemblesFigure);
}
