// Assembles the page.

function show(data) {
  state.data = data;
  state.selected = state.selected !== null && state.selected < data.runs.names.length ? state.selected : null;
  const held = document.activeElement?.id;
  drawTitle();
  drawForest();
  drawContest();
  drawDetails();
  drawFilters();
  drawCompareControls();
  drawScatterControls();
  drawParallelControls();
  drawImportance();
  drawHeatControls();
  drawCurvesControls();
  drawShapesControls();
  drawMaking();
  drawSections();
  changed();
  if (held && document.activeElement?.id !== held) byId(held)?.focus({ preventScroll: true });
}

const SECTIONS = { overview: "Overview", contest: "Methods", details: "Details", runs: "Runs", compare: "Compare", scatter: "Scatter", parallel: "Parallel", importance: "Settings", heat: "Heat maps", curves: "Curves", spectra: "Spectra", landscapes: "Landscapes", ensembles: "Ensembles", making: "Versions" };

function drawSections() {
  for (const id of ["runs", "scatter"]) byId(id).hidden = !state.data.runs.names.length || (id === "scatter" && !quantities().length);
  const links = Object.entries(SECTIONS).filter(([id]) => !byId(id).hidden).map(([id, name]) => el("a", { href: `#${id}` }, name));
  if (byId("sections").children.length !== links.length) byId("sections").replaceChildren(...links);
}

function startSections() {
  const mark = () => {
    const here = Object.keys(SECTIONS).filter((id) => !byId(id).hidden && byId(id).getBoundingClientRect().top < 160).at(-1);
    for (const link of byId("sections").children) link.setAttribute("aria-current", String(link.getAttribute("href") === `#${here}`));
    const nav = byId("sections");
    const link = nav.querySelector("[aria-current=true]");
    if (link) nav.scrollLeft = link.offsetLeft - nav.offsetLeft - (nav.clientWidth - link.clientWidth) / 2; // it may be wider than the screen
  };
  addEventListener("scroll", mark, { passive: true });
  mark();
}

const PAPER_COLUMNS = 14; // that fit on A4 at 8 pt

// On paper, rows of wide tables become paragraphs of numbers after their heads: a browser would shrink the page otherwise.
function stackWide() {
  for (const table of document.querySelectorAll(".scroll > table:not(.forest)")) {
    const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent);
    const wide = paper && heads.length > PAPER_COLUMNS;
    table.classList.toggle("stacked", wide);
    if (wide) for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, k) => { cell.dataset.head = heads[k]; });
  }
}

function start() {
  startTheme(() => { drawScatter(); drawCurves(); drawHeat(); redrawAll(); });
  startParallel();
  startRun();
  startScatter();
  startCurves();
  startShapes();
  const drawTables = () => { drawForest(); drawRuns(); stackWide(); };
  startPrinting(drawTables, drawTables);
  onChange(drawRuns);
  onChange(() => { if (!byId("scatter").hidden) drawScatter(); });
  onChange(drawCompare);
  onChange(drawParallel);
  onChange(drawHeat);
  onChange(drawCurves);
  onChange(drawShapes);
  const data = JSON.parse(byId("data").textContent);
  show(data);
  startLink();
  startSections();
  performance.mark("interactive"); // charts follow
  window.steppe = { tau, state, digits, signed, tauWords, chance, percent, uncertain }; // for the console and for tests
  const drawn = unpackPlotly().then(redrawAll).then(goToLinkedSection).catch((error) => {
    for (const id of charts.keys()) byId(id).replaceChildren(el("p", { class: "quiet" }, `No charts: ${error.message}. The tables are complete without them.`));
  });
  drawn.then(() => { document.documentElement.dataset.ready = "yes"; });
  if (data.live) follow();
}

start();
