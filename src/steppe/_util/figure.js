// Draws the figure of a page: panels side by side on a wide screen and stacked on a narrow one, in the page's colours.
(() => {
"use strict";

const NARROW = 700; // pixels
const PANEL = 340; // pixels of a stacked panel
const place = document.getElementById("figure");
const figure = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const printing = matchMedia("print");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const keys = (layout, pattern) => Object.keys(layout).filter((key) => pattern.test(key)).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
const panels = () => Math.max(1, keys(figure.layout, /^xaxis\d*$/).filter((key) => figure.layout[key].domain).length, keys(figure.layout, /^scene\d*$/).length);

async function unpackPlotly() {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
  const script = document.createElement("script"); // its hash is in the page's Content-Security-Policy
  script.textContent = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  document.head.append(script);
}

function arranged() {
  const layout = structuredClone(figure.layout);
  const width = place.clientWidth;
  const narrow = width < NARROW;
  const n = panels();
  const size = narrow ? 12 : 14;
  const axis = { gridcolor: colour("line"), zerolinecolor: colour("line"), linecolor: colour("line"), tickcolor: colour("soft"), color: colour("ink") };
  // the k-th of n rows, from the top, in parts of the height
  const gap = n > 1 ? 90 / (n * PANEL + (n - 1) * 90) : 0;
  const share = (1 - gap * (n - 1)) / n;
  const row = (k) => [1 - k * (share + gap) - share, 1 - k * (share + gap)];
  for (const letter of ["x", "y"]) {
    for (const [k, key] of keys(layout, new RegExp(`^${letter}axis\\d*$`)).entries()) {
      const given = layout[key];
      layout[key] = { automargin: true, ...axis, ...given, title: { ...given.title, text: wrapped(given.title?.text ?? "", narrow ? 44 : Math.max(40, 110 / n)), standoff: 8, font: { size } } };
      if (narrow && n > 1) layout[key].domain = letter === "x" ? [0, 1] : row(k);
    }
  }
  for (const [k, key] of keys(layout, /^scene\d*$/).entries()) {
    for (const letter of ["xaxis", "yaxis", "zaxis"]) layout[key][letter] = { ...axis, ...layout[key][letter] };
    if (narrow && n > 1) layout[key].domain = { x: [0, 1], y: row(k) };
  }
  for (const note of layout.annotations ?? []) {
    note.font = { ...note.font, color: colour(note.font?.color ? "soft" : "ink"), size: Math.min(note.font?.size ?? size, size) };
    if (narrow) note.text = wrapped(note.text, 48);
    const scene = /^scene (\d+)$/.exec(note.name ?? ""); // the title of a scene, which has no coordinates of its own
    if (narrow && n > 1 && scene) [note.x, note.y] = [0, row(Number(scene[1]))[1]];
  }
  const bar = layout.coloraxis?.colorbar;
  if (bar) {
    bar.outlinewidth = 0;
    if (narrow) Object.assign(bar, { orientation: "h", x: 0.5, xanchor: "center", y: 1, yref: "container", yanchor: "top", ypad: 16, len: 1, title: { text: bar.title.text.replace("<br>", " "), side: "bottom" }, tickangle: 0 });
    const every = narrow ? Math.ceil((bar.tickvals?.length ?? 0) / 6) : 1; // labels of more would overlap
    for (const key of ["tickvals", "ticktext"]) if (bar[key]) bar[key] = Array.from(bar[key]).filter((_, k) => k % every === 0);
  }
  const legend = { bgcolor: "rgba(0,0,0,0)", font: { size }, ...layout.legend };
  if (narrow) Object.assign(legend, { orientation: "h", x: 0, y: bar ? 0 : 1, yanchor: bar ? "bottom" : "top", yref: "container" });
  const rows = 24 * legendRows(width - 40); // a legend or a colour bar at the edge of the figure does not move the panels
  const [top, bottom] = bar ? [122, 64 + rows] : [48 + rows, 64];
  const height = narrow ? n * PANEL + (n - 1) * 90 + top + bottom : layout.height ?? Math.min(760, Math.max(460, width * (n > 1 ? 0.95 / n : 0.62)) + 120);
  return { ...layout, legend, width, height, autosize: false, template: undefined, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: narrow ? { l: 48, r: 14, t: top, b: bottom } : { l: 70, r: 24, t: 60, b: 64 },
    font: { ...layout.font, size, color: colour("ink"), family: "system-ui, sans-serif" }, dragmode: narrow ? false : "zoom",
    hoverlabel: { bgcolor: colour("card"), font: { color: colour("ink") } }, modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("soft"), activecolor: colour("ink") } };
}

// How many rows the legend takes, by the length of its names.
function legendRows(width) {
  const names = figure.data.filter((trace) => trace.name && trace.showlegend !== false).map((trace) => trace.name);
  if (!names.length || (names.length === 1 && figure.layout.showlegend !== true && !figure.layout.coloraxis)) return 0;
  let [rows, used] = [1, 0];
  for (const name of names) {
    const needs = 48 + 6.6 * name.length;
    if (used && used + needs > width) [rows, used] = [rows + 1, 0];
    used += needs;
  }
  return rows;
}

// Lines of at most so many characters, broken at spaces.
function wrapped(text, most) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
    if (longer.length <= most || !lines.at(-1)) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines.join("<br>");
}

function draw() {
  const config = { displaylogo: false, displayModeBar: place.clientWidth < NARROW ? false : "hover", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"], toImageButtonOptions: { format: "svg", filename: "figure" } };
  return window.Plotly.react(place, figure.data, arranged(), config);
}

unpackPlotly().then(draw).then(() => {
  let width = place.clientWidth;
  new ResizeObserver(() => { if (place.clientWidth !== width) { width = place.clientWidth; draw(); } }).observe(place);
  for (const query of [dark, printing]) query.addEventListener("change", draw);
  document.documentElement.dataset.ready = "yes";
}).catch((error) => { place.textContent = `No figure: ${error.message}.`; });
})();
