// Assembles the page.

function show(data) {
  state.data = data;
  state.selected = state.selected !== null && state.selected < data.runs.names.length ? state.selected : null;
  const held = document.activeElement?.id;
  drawTitle();
  drawForest();
  drawContest();
  drawDetails();
  drawSettings();
  drawFilters();
  drawCompareControls();
  drawScatterControls();
  drawParallelControls();
  drawHeatControls();
  drawCurvesControls();
  drawShapesControls();
  whenOpen("making", drawMaking)();
  drawShapes(); // filters do not change them
  drawSections();
  changed();
  if (held && document.activeElement?.id !== held) byId(held)?.focus({ preventScroll: true });
}

// Folds: everything but the answer is closed at first, and is drawn when it is opened.
const pending = new Map(); // section -> what draws it, while it is closed
const foldOf = (place) => place.closest("details.fold");
const isFolded = (place) => foldOf(place)?.open === false;
const whenOpen = (id, draw) => () => {
  const fold = byId(id).querySelector(".fold");
  if (fold.open) { draw(); return; }
  pending.set(id, draw);
  fold.dataset.stale = "yes";
};

function unfold(id) {
  const fold = byId(id).querySelector(".fold");
  if (!fold) return;
  fold.open = true;
  delete fold.dataset.stale;
  const draw = pending.get(id);
  pending.delete(id);
  draw?.();
  for (const place of fold.querySelectorAll(".chart")) redraw(place.id);
}

// A link to a section opens it, also if the address has it already.
function goTo(id) {
  unfold(id);
  byId(id).scrollIntoView();
}

function startFolds() {
  for (const fold of document.querySelectorAll(".fold")) fold.addEventListener("toggle", () => { if (fold.open) unfold(fold.parentElement.id); });
  document.addEventListener("click", ({ target }) => {
    const id = target.closest?.("a[href^='#']")?.hash.slice(1);
    if (Object.hasOwn(SECTIONS, id ?? "")) unfold(id);
  });
}

// On paper: the tables of the study's findings, and what the reader has opened.
const ON_PAPER = ["contest", "forest", "details", "settings", "making"];
let openedForPaper = [];
function unfoldForPaper() {
  openedForPaper = ON_PAPER.filter((id) => !byId(id).querySelector(".fold").open);
  openedForPaper.forEach(unfold);
}
function foldAfterPaper() {
  for (const id of openedForPaper) byId(id).querySelector(".fold").open = false;
}

// The navigation: parts of the page, and the sections of the part on the screen.
const PARTS = {
  Overview: { overview: "Overview" },
  Methods: { contest: "Which method won?" },
  Measures: { forest: "Predictions", details: "Where they fail", settings: "Settings" },
  Runs: { runs: "All runs", compare: "Two runs" },
  Charts: { scatter: "Scatter", parallel: "Parallel coordinates", heat: "Heat maps", curves: "Training curves", ensembles: "Ensembles" },
  Curvature: { spectra: "Spectra", landscapes: "Landscapes" },
  About: { making: "Measures and versions" },
};
const SECTIONS = Object.assign({}, ...Object.values(PARTS));
const visible = (ids) => Object.keys(ids).filter((id) => !byId(id).hidden);

function drawSections() {
  for (const id of ["runs", "scatter"]) byId(id).hidden = !state.data.runs.names.length || (id === "scatter" && !quantities().length);
  const links = Object.entries(PARTS).map(([name, ids]) => [name, visible(ids)[0]]).filter(([, id]) => id).map(([name, id]) => el("a", { href: `#${id}` }, name));
  byId("parts").replaceChildren(...links);
  markSection();
}

// Marks the part and the section on the screen, and lists the sections of that part.
function markSection() {
  const current = visible(SECTIONS).filter((id) => byId(id).getBoundingClientRect().top < 160).at(-1) ?? "overview";
  const part = Object.values(PARTS).find((ids) => Object.hasOwn(ids, current));
  const ids = visible(part);
  const listed = [...byId("sections").children].map((link) => link.hash.slice(1));
  if (ids.join() !== listed.join()) byId("sections").replaceChildren(...ids.map((id) => el("a", { href: `#${id}` }, SECTIONS[id])));
  byId("sections").hidden = ids.length < 2;
  for (const [nav, id] of [[byId("parts"), ids[0]], [byId("sections"), current]]) {
    for (const link of nav.children) link.setAttribute("aria-current", String(link.hash === `#${id}`));
    const link = nav.querySelector("[aria-current=true]");
    if (link) nav.scrollLeft = link.offsetLeft - nav.offsetLeft - (nav.clientWidth - link.clientWidth) / 2; // it may be wider than the screen
  }
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
  const redrawRuns = whenOpen("runs", drawRuns);
  const coloured = [["scatter", drawScatter], ["curves", drawCurves], ["heat", drawHeat]].map(([id, draw]) => whenOpen(id, draw));
  startTheme(() => { for (const draw of coloured) draw(); redrawAll(); });
  startParallel();
  startRun();
  startScatter();
  startCurves();
  startShapes();
  startFolds();
  const drawTables = () => { drawTitle(); drawForest(); drawContest(); redrawRuns(); stackWide(); };
  startPrinting(() => { unfoldForPaper(); drawTables(); }, () => { foldAfterPaper(); drawTables(); });
  for (const width of ["639px", "759px"]) matchMedia(`(max-width: ${width})`).addEventListener("change", redrawAll); // a phone that is turned
  onChange(redrawRuns);
  onChange(whenOpen("scatter", () => { if (!byId("scatter").hidden) drawScatter(); }));
  onChange(whenOpen("compare", drawCompare));
  onChange(whenOpen("parallel", drawParallel));
  onChange(whenOpen("heat", drawHeat));
  onChange(whenOpen("curves", drawCurves));
  const data = JSON.parse(byId("data").textContent);
  show(data);
  startLink();
  addEventListener("scroll", markSection, { passive: true });
  performance.mark("interactive"); // charts follow
  window.steppe = { tau, state, digits, signed, tauWords, chance, percent, uncertain }; // for the console and for tests
  const drawn = unpackPlotly().then(redrawAll).then(goToLinkedSection).catch((error) => {
    for (const id of charts.keys()) byId(id).replaceChildren(el("p", { class: "quiet" }, `No charts: ${error.message}. The tables are complete without them.`));
  });
  drawn.then(() => { document.documentElement.dataset.ready = "yes"; });
  if (data.live) follow(data.live);
}

start();
