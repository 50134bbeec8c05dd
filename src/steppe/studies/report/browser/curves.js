// Training curves: one line per run, or the mean of the runs of each colour.

const curves = { metric: null, colour: null, means: null, log: false };
const LINES = 60; // runs up to which each has its line at first

function drawCurvesControls() {
  const { metrics, runs } = state.data.curves;
  byId("curves").hidden = !metrics.length;
  if (!metrics.length) return;
  const names = state.data.settings.map((s) => s.name);
  if (curves.metric === null) curves.colour = names.includes("method") ? "method" : names[0] ?? null;
  if (curves.colour && !names.includes(curves.colour)) curves.colour = null;
  const drawn = (m) => runs.some((run) => run?.[m]?.filter(isNumber).length > 1); // a curve has two points or more
  curves.metric = kept(curves.metric, metrics.map((m) => [m, m]), ["test_error", "test_loss", "test_accuracy", ...metrics].find((m) => metrics.includes(m) && drawn(m)));
  curves.means ??= runs.filter(Boolean).length > LINES;
  const set = (key) => (v) => { curves[key] = v; drawCurves(); };
  byId("curves-controls").replaceChildren(
    menu("Quantity", "curves-metric", metrics.map((m) => [m, m]), curves.metric, set("metric")), settingMenu("Colour", "curves-colour", curves.colour, set("colour")),
    tick("means", "curves-means", curves.means, set("means")), tick("log y", "curves-log", curves.log, set("log")));
}

function curvesFigure() {
  if (!curves.metric) return null;
  const setting = curves.colour ? column("settings", curves.colour) : null;
  const colours = colouring(setting);
  const of = (i) => (setting ? setting.values[i] : null);
  const shown = state.shown.filter((i) => state.data.curves.runs[i]?.[curves.metric]);
  const line = (x, y, v, extra) => ({ type: "scatter", mode: y.filter(isNumber).length > 1 ? "lines" : "markers", x, y, connectgaps: true, line: { color: colours.of(v), width: 2 }, marker: { color: colours.of(v) }, ...extra });
  let data;
  if (curves.means) {
    data = [...grouped(shown, (i) => word(of(i)))].map(([name, rows]) => {
      const byEpoch = new Map();
      for (const i of rows) {
        const run = state.data.curves.runs[i];
        run.epoch.forEach((e, k) => {
          const v = run[curves.metric][k];
          if (isNumber(v)) { if (byEpoch.has(e)) byEpoch.get(e).push(v); else byEpoch.set(e, [v]); }
        });
      }
      const epochs = [...byEpoch.keys()].sort((a, b) => a - b);
      return line(epochs, epochs.map((e) => mean(byEpoch.get(e))), of(rows[0]), { hovertemplate: `<b>${plain(name)}</b>, mean of ${rows.length}<br>epoch %{x}: %{y:.4g}<extra></extra>` });
    });
  } else {
    data = shown.map((i) => {
      const run = state.data.curves.runs[i];
      const on = i === state.selected;
      return line(run.epoch, run[curves.metric], of(i), { customdata: run.epoch.map(() => i), opacity: on ? 1 : 0.7, line: { color: colours.of(of(i)), width: on ? 4 : 1.6 },
        text: run.epoch.map(() => plain(state.data.runs.names[i])), hovertemplate: "<b>%{text}</b><br>epoch %{x}: %{y:.4g}<extra></extra>" });
    });
  }
  return { data, layout: { xaxis: { words: "epoch", zeroline: false }, yaxis: { words: curves.metric, type: curves.log ? "log" : "linear", zeroline: false } } };
}

function drawCurves() {
  if (byId("curves").hidden) return;
  redraw("curves-chart");
  drawKey("curves-key", curves.colour, null);
  const n = state.shown.filter((i) => state.data.curves.runs[i]?.[curves.metric]).length;
  byId("curves-caption").textContent = curves.means ? `Means over ${count(n, "run")}, one line per colour.` : `${count(n, "run")}, one line per run.`;
}

function startCurves() {
  chart("curves-chart", curvesFigure, (place) => place.on("plotly_click", (event) => { if (event.points[0].customdata !== undefined) showRun(event.points[0].customdata); }));
}
