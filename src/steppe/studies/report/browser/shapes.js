// Spectra, loss landscapes and ensembles, where the study has them.

const shapes = { spectra: new Set(), landscape: null, logLoss: true, ensembleX: null, ensembleY: null };
const SPECTRA = 4; // at first

function drawShapesControls() {
  const { spectra, landscapes, ensembles, runs } = state.data;
  byId("spectra").hidden = !spectra.length;
  byId("landscapes").hidden = !landscapes.length;
  byId("ensembles").hidden = !ensembles.length;
  const label = (one) => one.title || runs.names[one.run];
  if (spectra.length) {
    if (!shapes.spectra.size) for (const k of spectra.keys()) if (k < SPECTRA) shapes.spectra.add(k);
    byId("spectra-controls").replaceChildren(...spectra.map((one, k) => tick(short(label(one), 40), `spectrum-${k}`, shapes.spectra.has(k), (on) => {
      if (on) shapes.spectra.add(k); else shapes.spectra.delete(k);
      redraw("spectra-chart");
    })));
    byId("spectra-caption").textContent = "Density of the Hessian's eigenvalues, smoothed; the vertical axis is logarithmic so that the few large ones show beside the crowd at zero.";
  }
  if (landscapes.length) {
    const options = landscapes.map((one, k) => [String(k), label(one)]);
    shapes.landscape = kept(shapes.landscape, options);
    byId("landscapes-controls").replaceChildren(menu("Of", "landscape-run", options, shapes.landscape, (v) => { shapes.landscape = v; drawShapes(); }),
      tick("log loss", "landscape-log", shapes.logLoss, (on) => { shapes.logLoss = on; drawShapes(); }));
  }
  if (ensembles.length) {
    const names = Object.keys(ensembles[0].values).map((n) => [n, n]);
    shapes.ensembleX = kept(shapes.ensembleX, names, names.find(([n]) => n.includes("sharp"))?.[0]);
    shapes.ensembleY = kept(shapes.ensembleY, names, names.find(([n]) => n.includes("divers") || n.includes("DER"))?.[0] ?? names[1]?.[0]);
    byId("ensembles-controls").replaceChildren(menu("Across", "ensemble-x", names, shapes.ensembleX, (v) => { shapes.ensembleX = v; redraw("ensembles-chart"); }),
      menu("Up", "ensemble-y", names, shapes.ensembleY, (v) => { shapes.ensembleY = v; redraw("ensembles-chart"); }));
    drawEnsembleTable();
  }
}

function spectraFigure() {
  const those = state.data.spectra.map((one, k) => [one, k]).filter(([, k]) => shapes.spectra.has(k));
  const data = those.map(([one, k]) => ({ type: "scatter", mode: "lines", x: one.x, y: one.density.map((d) => (d > 0 ? d : null)), line: { color: category(k), width: 2, dash: ["solid", "dash", "dot", "dashdot"][k % 4] },
    name: plain(one.title || state.data.runs.names[one.run]), hovertemplate: "eigenvalue %{x:.4g}<br>density %{y:.3g}<extra></extra>" }));
  const top = Math.max(1e-9, ...data.flatMap((d) => d.y.filter(isNumber)));
  return { data, layout: { showlegend: true, legend: { x: 1, xanchor: "right", y: 1, bgcolor: "rgba(0,0,0,0)" }, xaxis: { words: "eigenvalue" },
    yaxis: { words: "density", type: "log", exponentformat: "power", range: [Math.log10(top) - 7, Math.log10(top) + 0.3] } } };
}

function landscapeFigure() {
  const one = state.data.landscapes[Number(shapes.landscape)];
  if (!one) return null;
  const bend = (v) => (!isNumber(v) ? null : shapes.logLoss ? (v > 0 ? Math.log10(v) : null) : v);
  if (!one.y) {
    return { data: [{ type: "scatter", mode: "lines", x: one.x, y: one.losses, line: { color: ink("accent"), width: 2.5 }, hovertemplate: "at %{x:.3g}: loss %{y:.4g}<extra></extra>" }],
      layout: { xaxis: { words: one.names[0] }, yaxis: { words: "loss", type: shapes.logLoss ? "log" : "linear" } } };
  }
  // losses[i][j] is at x[i], y[j]; plotly wants rows by y
  const z = one.y.map((_, j) => one.x.map((__, i) => bend(one.losses[i][j])));
  const raw = one.y.map((_, j) => one.x.map((__, i) => digits(one.losses[i][j])));
  return { data: [{ type: "contour", x: one.x, y: one.y, z, customdata: raw, colorscale: CIVIDIS.map((c, k) => [k / (CIVIDIS.length - 1), c]), ncontours: 18, line: { width: 0.5, color: "rgba(255,255,255,0.55)" },
    hovertemplate: "%{x:.3g}, %{y:.3g}<br>loss %{customdata}<extra></extra>", colorbar: { title: { text: shapes.logLoss ? "log₁₀ loss" : "loss" }, thickness: 12, outlinewidth: 0, tickfont: { color: ink("soft") } } },
  { type: "scatter", mode: "markers", x: [0], y: [0], marker: { symbol: "cross", size: 12, color: "#ffffff", line: { color: "#000000", width: 1.5 } }, hovertemplate: "the trained weights<extra></extra>" }],
  layout: { height: 600, xaxis: { words: one.names[0] }, yaxis: { words: one.names[1] } } };
}

function ensemblesFigure() {
  const those = state.data.ensembles;
  const sets = [...new Set(those.map((e) => e.kind ?? ""))];
  const data = sets.map((kind, k) => {
    const mine = those.filter((e) => (e.kind ?? "") === kind);
    const of = (name) => mine.map((e) => e.values[name] ?? null);
    return { type: "scatter", mode: "markers", name: plain(kind), x: of(shapes.ensembleX), y: of(shapes.ensembleY), text: mine.map((e) => plain(e.name)), hovertemplate: "<b>%{text}</b><br>%{x:.4g}, %{y:.4g}<extra></extra>",
      marker: { color: category(k), symbol: SHAPES[k % SHAPES.length][0], size: 12, line: { color: ink("card"), width: 1 } } };
  });
  return { data, layout: { showlegend: sets.length > 1, xaxis: { words: shapes.ensembleX, zeroline: false }, yaxis: { words: shapes.ensembleY, zeroline: false } } };
}

function drawEnsembleTable() {
  const names = Object.keys(state.data.ensembles[0].values);
  byId("ensembles-table").replaceChildren(el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Ensembles" }, el("table", {},
    el("thead", {}, el("tr", {}, ...["ensemble", "members", ...names].map((n, k) => el("th", { scope: "col", class: k ? "number" : null }, n)))),
    el("tbody", {}, ...state.data.ensembles.map((e) => el("tr", {}, el("th", { scope: "row" }, e.name), el("td", { class: "number" }, e.members ?? "–"), ...names.map((n) => el("td", { class: "number" }, digits(e.values[n])))))))));
  byId("ensembles-caption").textContent = "Lower sharpness makes members alike; what an ensemble gains is a trade-off between the two.";
}

function drawShapes() {
  const one = state.data.landscapes[Number(shapes.landscape)];
  if (one) byId("landscapes-caption").textContent = `The loss around the trained weights (the cross)${one.note ? `; ${one.note}` : ""}.`;
  for (const id of ["spectra-chart", "landscapes-chart", "ensembles-chart"]) redraw(id);
}

function startShapes() {
  chart("spectra-chart", spectraFigure);
  chart("landscapes-chart", landscapeFigure);
  chart("ensembles-chart", ensemblesFigure);
}
