// Charts: plotly's JavaScript is in the page compressed, and is unpacked after the text is shown.

const charts = new Map(); // id -> function that draws it
let plotly = null;

async function unpackPlotly() {
  const packed = Uint8Array.from(atob(byId("plotly").textContent), (c) => c.charCodeAt(0));
  const text = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  const script = document.createElement("script"); // its hash is in the page's Content-Security-Policy
  script.textContent = text;
  document.head.append(script);
  plotly = window.Plotly;
  if (!plotly) throw new Error("the page's charts could not be unpacked");
  byId("plotly").textContent = "";
}

// A chart more than a screen away keeps its place, is marked as stale, and is drawn when it comes near. Paper has all of them.
const near = (place) => { const { top, bottom } = place.getBoundingClientRect(); return paper || (bottom > -innerHeight && top < 2 * innerHeight); };
const approaching = new IntersectionObserver((seen) => { for (const { isIntersecting, target } of seen) if (isIntersecting) redraw(target.id); }, { rootMargin: "90%" });

// Registers a chart: make() returns { data, layout }, or null if there is nothing to draw.
function chart(id, make, after = null) {
  charts.set(id, () => {
    const place = byId(id);
    if (!plotly || !place.offsetParent || isFolded(place)) return;
    const made = make();
    delete place.dataset.stale;
    approaching.unobserve(place);
    if (!made) { plotly.purge(place); place.style.height = ""; return; }
    const config = { displaylogo: false, responsive: true, showTips: false,
      modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]], toImageButtonOptions: { format: "svg", filename: id } };
    const layout = dressed(made.layout);
    place.style.height = `${layout.height}px`;
    if (!near(place)) { place.dataset.stale = "yes"; approaching.observe(place); return; } // tells at once where it is
    plotly.react(place, made.data, layout, config);
    if (after && !place.dataset.listening) { place.dataset.listening = "yes"; after(place); }
  });
}

const redraw = (id) => charts.get(id)?.();
const redrawAll = () => { for (const draw of charts.values()) draw(); };

function dressed(layout) {
  const narrow = innerWidth < 640 && !paper;
  const axis = { gridcolor: ink("line"), zerolinecolor: ink("zero"), linecolor: ink("line"), tickcolor: ink("line"),
    tickfont: { color: ink("soft") }, automargin: true, ...(narrow ? { nticks: 5 } : {}) };
  const dress = (value) => ({ ...axis, ...value, title: { text: [value.words ?? ""].flat().map(plain).join("<br>"), font: { color: ink("ink"), size: 14 }, standoff: 12 } });
  const made = { height: narrow ? 380 : 480, ...layout };
  for (const key of Object.keys(made)) if (/^[xy]axis\d*$/.test(key)) made[key] = dress(made[key]);
  return {
    margin: { l: 60, r: 18, t: 24, b: 56 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    font: { family: ink("text"), size: 13, color: ink("ink") }, hovermode: "closest", dragmode: narrow ? false : "zoom",
    hoverlabel: { bgcolor: ink("card"), bordercolor: ink("line"), font: { color: ink("ink"), family: ink("text"), size: 13 }, align: "left" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: ink("soft"), activecolor: ink("accent") },
    ...made,
  };
}

// Long words on two lines, parted at the comma or blank that is nearest to the middle.
function twoLines(text, most) {
  if (text.length <= most) return text;
  const gaps = [...text.matchAll(/,? /g)].map((m) => m.index + m[0].length).sort((a, b) => Math.abs(a - text.length / 2) - Math.abs(b - text.length / 2));
  return gaps.length ? [text.slice(0, gaps[0]), text.slice(gaps[0])] : text;
}

// An axis of a quantity in words, on two lines where one is too long; percent where it is percent.
function quantityAxis(c, log = false) {
  return { words: twoLines(wordsOf(c), innerWidth < 640 && !paper ? 34 : 60), zeroline: false, type: log ? "log" : "linear",
    ...(c.percent ? { tickformat: ".3~%" } : log ? { exponentformat: "power" } : {}) };
}

// Before printing, charts are redrawn in light colours at the width of the paper; afterwards they are restored.
function startPrinting(before, after) {
  const begin = () => {
    if (paper) return;
    paper = true;
    document.documentElement.dataset.theme = "light";
    before();
    redrawAll();
    for (const id of charts.keys()) if (plotly && byId(id).layout) plotly.relayout(byId(id), { width: 680, autosize: false });
  };
  const end = () => {
    if (!paper || printing.matches) return;
    paper = false;
    applyTheme();
    after();
    for (const id of charts.keys()) if (plotly && byId(id).layout) plotly.purge(byId(id));
    for (const id of charts.keys()) delete byId(id).dataset.listening;
    redrawAll();
  };
  addEventListener("beforeprint", begin);
  addEventListener("afterprint", end);
  printing.addEventListener("change", () => (printing.matches ? begin() : end()));
}
