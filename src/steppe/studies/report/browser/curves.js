// Training curves: the mean per colour with a band over seeds, or one line per run.

const curves = { metric: null, colour: null, single: false, band: true, log: false };

function drawCurvesControls() {
  const { metrics, runs } = state.data.curves;
  byId("curves").hidden = !metrics.length;
  if (!metrics.length) return;
  const names = state.data.settings.map((s) => s.name);
  if (curves.metric === null) curves.colour = names.includes("method") ? "method" : names[0] ?? null;
  if (curves.colour && !names.includes(curves.colour)) curves.colour = null;
  const drawn = (m) => runs.some((run) => run?.[m]?.filter(isNumber).length > 1); // a curve has two points or more
  curves.metric = kept(curves.metric, metrics.map((m) => [m, m]), ["test_error", "test_loss", "test_accuracy", "train_loss", ...metrics].find((m) => metrics.includes(m) && drawn(m)));
  const set = (key) => (v) => { curves[key] = v; drawCurves(); };
  byId("curves-controls").replaceChildren(
    menu("Quantity", "curves-metric", metrics.map((m) => [m, m]), curves.metric, set("metric")), settingMenu("Colour", "curves-colour", curves.colour, set("colour")),
    tick("single runs", "curves-single", curves.single, set("single")), tick("band over seeds", "curves-band", curves.band, set("band")), tick("log y", "curves-log", curves.log, set("log")));
}

const shownCurves = () => state.shown.filter((i) => state.data.curves.runs[i]?.[curves.metric]);
const curveColumn = () => ({ name: curves.metric, percent: state.data.curves.percent[state.data.curves.metrics.indexOf(curves.metric)] });

// A run's settings without its seed, in one text.
const configuration = (i) => JSON.stringify(state.data.settings.filter((s) => s.name !== "seed").map((s) => word(s.values[i])));

// The mean over runs per epoch, and the standard deviation between seeds: pooled over configurations, around each
// configuration's own mean, so that differences between learning rates are not part of it. NaN without repeated seeds.
function meanCurve(rows) {
  const byEpoch = new Map();
  for (const i of rows) {
    const run = state.data.curves.runs[i];
    const settings = configuration(i);
    run.epoch.forEach((epoch, k) => {
      const value = run[curves.metric][k];
      if (!isNumber(value)) return;
      if (!byEpoch.has(epoch)) byEpoch.set(epoch, []);
      byEpoch.get(epoch).push({ value, settings });
    });
  }
  const epochs = [...byEpoch.keys()].sort((a, b) => a - b);
  return epochs.map((epoch) => {
    const points = byEpoch.get(epoch);
    const seeds = [...grouped(points, (p) => p.settings).values()].map((those) => those.map((p) => p.value));
    const squares = seeds.flatMap((values) => values.map((v) => (v - mean(values)) ** 2)).reduce((a, b) => a + b, 0);
    const freedom = points.length - seeds.length;
    return { epoch, mean: mean(points.map((p) => p.value)), n: points.length, spread: freedom ? Math.sqrt(squares / freedom) : NaN };
  });
}

function curveLine(x, y, colour, extra) {
  return { type: "scatter", mode: y.filter(isNumber).length > 1 ? "lines" : "markers", x, y, connectgaps: true, line: { color: colour, width: 2.5 }, marker: { color: colour, size: 8 }, ...extra };
}

// The band is one closed shape; on a log axis it ends at the lowest positive value.
function bandOf(points, colour) {
  const there = points.filter((p) => isNumber(p.spread));
  const lowest = Math.min(...there.map((p) => p.mean).filter((v) => v > 0)) / 10;
  const low = there.map((p) => (curves.log ? Math.max(p.mean - p.spread, lowest) : p.mean - p.spread));
  return { type: "scatter", mode: "lines", fill: "toself", fillcolor: `${colour}2e`, line: { width: 0, color: colour }, hoverinfo: "skip", name: "band",
    x: [...there.map((p) => p.epoch), ...there.map((p) => p.epoch).reverse()], y: [...there.map((p) => p.mean + p.spread), ...low.reverse()] };
}

function meanTraces(shown, of, colours) {
  const write = writer(curveColumn());
  const groups = [...grouped(shown, (i) => word(of(i)))].map(([name, rows]) => ({ name, points: meanCurve(rows), colour: colours.of(of(rows[0])) }));
  const bands = curves.band ? groups.filter((g) => g.points.some((p) => isNumber(p.spread))).map((g) => bandOf(g.points, g.colour)) : [];
  return [...bands, ...groups.map((g) => curveLine(g.points.map((p) => p.epoch), g.points.map((p) => p.mean), g.colour, {
    text: g.points.map((p) => plain(`epoch ${p.epoch}: ${write(p.mean)}${isNumber(p.spread) ? ` ± ${write(p.spread)}` : ""}, mean of ${p.n}`)), hovertemplate: `<b>${plain(g.name)}</b><br>%{text}<extra></extra>` }))];
}

function runTraces(shown, of, colours) {
  const write = writer(curveColumn());
  return shown.map((i) => {
    const run = state.data.curves.runs[i];
    const on = i === state.selected;
    const colour = colours.of(of(i));
    return curveLine(run.epoch, run[curves.metric], colour, { customdata: run.epoch.map(() => i), opacity: on ? 1 : 0.7, line: { color: colour, width: on ? 4 : 1.6 },
      text: run.epoch.map((epoch, k) => plain(`epoch ${epoch}: ${write(run[curves.metric][k])}`)), hovertemplate: `<b>${plain(state.data.runs.names[i])}</b><br>%{text}<extra></extra>` });
  });
}

function curvesFigure() {
  if (!curves.metric) return null;
  const setting = curves.colour ? column("settings", curves.colour) : null;
  const of = (i) => (setting ? setting.values[i] : null);
  const data = (curves.single ? runTraces : meanTraces)(shownCurves(), of, colouring(setting));
  return { data, layout: { xaxis: { words: "epoch", zeroline: false, ...(Math.max(...data.flatMap((t) => t.x)) <= 6 ? { dtick: 1 } : {}) }, yaxis: quantityAxis(curveColumn(), curves.log) } };
}

function drawCurves() {
  if (byId("curves").hidden) return;
  redraw("curves-chart");
  drawKey("curves-key", curves.colour, null);
  byId("curves-band").disabled = curves.single;
  const shown = shownCurves();
  const repeated = new Set(shown.map(configuration)).size < shown.length;
  const band = repeated ? "bands are one standard deviation between seeds of the same settings" : "no settings are repeated with another seed, so there are no bands";
  byId("curves-caption").textContent = curves.single ? `${count(shown.length, "run")}, one line per run.` : `Means over ${count(shown.length, "run")}, one line per colour${curves.band ? `; ${band}` : ""}.`;
}

function startCurves() {
  chart("curves-chart", curvesFigure, (place) => place.on("plotly_click", (event) => { if (event.points[0].customdata !== undefined) showRun(event.points[0].customdata); }));
}
