// Spectra, loss landscapes and ensembles, where the study has them.

const shapes = { spectra: new Set(), landscape: null, beside: null, logLoss: true, ensembleX: null, ensembleY: null };
const SPECTRA = 4; // at first
const STANDING = " Best and worst refer to the study's first target, flattest and sharpest to its first measure, among runs that count.";

// The label of a picture: its title, or its run with the run's role.
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
      redraw("spectra-chart");
    })));
    byId("spectra-caption").textContent = "Smoothed density of the Hessian's eigenvalues. The vertical axis is logarithmic, so that the few large eigenvalues are visible beside the bulk at zero." + STANDING;
  }
  if (landscapes.length) {
    const options = landscapes.map((one, k) => [String(k), label(one)]);
    const others = [["", "nothing"], ...options];
    shapes.landscape = kept(shapes.landscape, options);
    shapes.beside = kept(shapes.beside, others, options[1]?.[0] ?? "");
    const set = (key) => (v) => { shapes[key] = v; drawShapes(); };
    byId("landscapes-controls").replaceChildren(menu("Run", "landscape-run", options, shapes.landscape, set("landscape")),
      ...(options.length > 1 ? [menu("Compared with", "landscape-beside", others, shapes.beside, set("beside"))] : []),
      tick("log loss", "landscape-log", shapes.logLoss, set("logLoss")));
  }
  if (ensembles.length) {
    const names = Object.keys(ensembles[0].values).map((n) => [n, n]);
    shapes.ensembleX = kept(shapes.ensembleX, names, names.find(([n]) => n.includes("sharp"))?.[0]);
    shapes.ensembleY = kept(shapes.ensembleY, names, names.find(([n]) => n.includes("divers") || n === "disagreement")?.[0] ?? names[1]?.[0]);
    const set = (key) => (v) => { shapes[key] = v; redraw("ensembles-chart"); drawEnsembleCaption(); };
    byId("ensembles-controls").replaceChildren(menu("x axis", "ensemble-x", names, shapes.ensembleX, set("ensembleX")), menu("y axis", "ensemble-y", names, shapes.ensembleY, set("ensembleY")));
    drawEnsembleTable();
  }
}

function spectraFigure() {
  const those = state.data.spectra.map((one, k) => [one, k]).filter(([, k]) => shapes.spectra.has(k));
  const data = those.map(([one, k]) => ({ type: "scatter", mode: "lines", x: one.x, y: one.density.map((d) => (d > 0 ? d : null)), line: { color: category(k), width: 2, dash: ["solid", "dash", "dot", "dashdot"][k % 4] },
    name: plain(label(one)), hovertemplate: "eigenvalue %{x:.4g}<br>density %{y:.3g}<extra></extra>" }));
  const top = Math.max(1e-9, ...data.flatMap((d) => d.y.filter(isNumber)));
  return { data, layout: { showlegend: true, legend: { x: 1, xanchor: "right", y: 1, bgcolor: "rgba(0,0,0,0)" }, xaxis: { words: "eigenvalue" },
    yaxis: { words: "density", type: "log", exponentformat: "power", range: [Math.log10(top) - 7, Math.log10(top) + 0.3] } } };
}

// Up to two landscapes side by side, with the same colours for the same losses.
function landscapeFigure() {
  const those = [shapes.landscape, shapes.beside].filter((k, i, all) => k && all.indexOf(k) === i).map((k) => state.data.landscapes[Number(k)]).filter(Boolean);
  if (!those.length) return null;
  const few = those.length < 2;
  byId("landscapes-chart").parentElement.style.maxWidth = few ? "48rem" : "none";
  const narrow = innerWidth < 760 && !paper;
  const [low, high] = span(those.flatMap((one) => one.losses.flat().map(bent)));
  const made = { data: [], layout: { height: narrow && !few ? 900 : 560, margin: { l: 70, r: 18, t: 44, b: 56 }, annotations: [] } };
  for (const [k, one] of those.entries()) {
    const n = k ? k + 1 : "";
    const plane = one.y !== null && one.y !== undefined;
    const [x, y] = few ? [[0, 1], [0, 1]] : narrow ? [[0, 1], k ? [0, 0.43] : [0.57, 1]] : [k ? [0.54, 1] : [0, 0.46], [0, 1]];
    const names = one.names.map((name) => (narrow ? name.split(",")[0] : name));
    made.layout[`xaxis${n}`] = { words: names[0], domain: x, anchor: `y${n}` };
    made.layout[`yaxis${n}`] = { words: !plane ? "loss" : k && !narrow && one.names[1] === those[0].names[1] ? "" : names[1], domain: y, anchor: `x${n}`, ...(plane ? {} : { type: shapes.logLoss ? "log" : "linear" }) };
    made.layout.annotations.push({ text: plain(short(label(one), narrow ? 36 : 60)), x: x[0], y: y[1], xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", yshift: 6, showarrow: false, font: { color: ink("ink"), size: narrow ? 12 : 14 } });
    const place = { xaxis: `x${n}`, yaxis: `y${n}` };
    made.data.push(...(plane ? contours(one, place, low, high, k === 0, narrow) : [{ type: "scatter", mode: "lines", x: one.x, y: one.losses, ...place, line: { color: ink("accent"), width: 2.5 }, hovertemplate: "at %{x:.3g}: loss %{y:.4g}<extra></extra>" }]));
  }
  return made;
}

const bent = (v) => (!isNumber(v) ? null : shapes.logLoss ? (v > 0 ? Math.log10(v) : null) : v);

function contours(one, place, low, high, scale, flat) {
  // losses[i][j] is at x[i], y[j]; plotly wants rows by y
  const z = one.y.map((_, j) => one.x.map((__, i) => bent(one.losses[i][j])));
  const raw = one.y.map((_, j) => one.x.map((__, i) => digits(one.losses[i][j])));
  const rough = (high - low) / 18 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 4, 5, 10].find((k) => k * power >= rough) * power; // so that the levels are numbers that can be read
  const start = Math.ceil(low / step) * step;
  return [{ type: "contour", x: one.x, y: one.y, z, customdata: raw, ...place, zmin: low, zmax: high, zauto: false, autocontour: false, contours: { start, end: high, size: step }, showscale: scale,
    colorscale: CIVIDIS.map((c, k) => [k / (CIVIDIS.length - 1), c]), line: { width: 0.5, color: "rgba(255,255,255,0.55)" }, hovertemplate: "%{x:.3g}, %{y:.3g}<br>loss %{customdata}<extra></extra>",
    colorbar: { title: { text: shapes.logLoss ? "log₁₀ loss" : "loss" }, thickness: 12, outlinewidth: 0, tickfont: { color: ink("soft") }, tickformat: ".2~g", ...(flat ? { orientation: "h", y: -0.02, yanchor: "top", ypad: 48, title: { text: shapes.logLoss ? "log₁₀ loss" : "loss", side: "bottom" } } : {}) } },
  { type: "scatter", mode: "markers", x: [0], y: [0], ...place, showlegend: false, marker: { symbol: "cross", size: 12, color: "#ffffff", line: { color: "#000000", width: 1.5 } }, hovertemplate: "the trained weights<extra></extra>" }];
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
  const axis = (name, values) => ({ words: name, zeroline: false, ...(logs ? { type: "log", ...logTicks(values) } : {}) });
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
  const slopes = fitted.map(([kind, s]) => `${kind ? `${kind} ` : ""}${minus(s.slope.toFixed(2))}${isNumber(s.error) ? ` ± ${s.error.toFixed(2)}` : ""} (n = ${s.n})`);
  byId("ensembles-caption").textContent = "Each point is an ensemble of runs that differ in their seed only: the mean of each measure over its members, and the ensemble's scores on the test rows. Error bars are one standard error over members."
    + (slopes.length ? ` Dashed lines: least squares on logarithms, with slope ${slopes.join(", ")}.` : "");
}

function drawShapes() {
  const one = state.data.landscapes[Number(shapes.landscape)];
  if (one) byId("landscapes-caption").textContent = `The loss around the trained weights (the cross)${one.note ? `; ${one.note}` : ""}. Both plots use the same colour scale.${one.roles?.length ? STANDING : ""}`;
  for (const id of ["spectra-chart", "landscapes-chart", "ensembles-chart"]) redraw(id);
}

function startShapes() {
  chart("spectra-chart", spectraFigure);
  chart("landscapes-chart", landscapeFigure);
  chart("ensembles-chart", ensemblesFigure);
}
