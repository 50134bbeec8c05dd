// The dialog with all details of one run.

let openedFromTable = false;
const precise = (x, significant = 6) => digits(x, significant);

function showRun(i) {
  openedFromTable = byId("runs-table").contains(document.activeElement);
  const { runs, settings, targets, measures } = state.data;
  state.selected = i;
  const rows = (those) => el("table", {}, el("tbody", {}, ...those));
  const pair = (name, ...value) => el("tr", {}, el("th", { scope: "row" }, name), el("td", { class: "number" }, ...value));
  const body = el("div", { class: "body" });
  if (runs.errors[i]) body.append(el("p", {}, el("span", { class: "state failed" }, "failed"), " ", runs.errors[i]));
  if (runs.admitted[i] === false) body.append(el("p", {}, stateWord(i), ": statistics do not include this run. It is one of the sweep that chose settings, or outside the study's admission rule."));
  const filled = (title, list) => { if (list.length) body.append(el("h3", {}, title), rows(list)); };
  filled("Settings that differ between runs", settings.map((s) => pair(s.name, word(s.values[i]))));
  filled("Generalisation", targets.map((t) => pair(spanned(t), ...withError(t.values[i], t.errors[i], t.percent ? percent : precise))));
  filled("Measured", measures.map((m) => el("tr", {}, el("th", { scope: "row" }, spanned(m)),
    el("td", { class: "number", "data-value": m.values[i] }, ...withError(m.values[i], m.errors[i], precise)), el("td", { class: "quiet" }, m.how[m.which[i]] ?? ""))));
  const beside = el("button", { type: "button", onclick: () => compareFromDialog(i) }, "Compare with another run");
  const close = el("button", { type: "button", onclick: () => byId("run").close() }, "Close");
  const dialog = byId("run");
  dialog.replaceChildren(el("div", { class: "head" }, el("h2", { id: "run-name" }, runs.names[i]), el("div", { class: "buttons" }, beside, close)), body);
  drawRuns();
  redraw("scatter-chart");
  redraw("curves-chart");
  redraw("parallel-chart");
  remember("run", runs.keys[i]);
  dialog.showModal();
  dialog.scrollTop = 0;
}

function compareFromDialog(i) {
  openedFromTable = false; // the focus goes to the comparison instead
  byId("run").close();
  compareRuns(i, runOf(compared.b) === i ? runOf(compared.a) : runOf(compared.b));
  byId("compare").scrollIntoView();
  byId("compare-b").focus();
}

function startRun() {
  const dialog = byId("run");
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  // the row that opened it was redrawn meanwhile, so the browser cannot return the focus to it by itself
  dialog.addEventListener("close", () => {
    remember("run", null);
    if (openedFromTable) byId("runs-table").querySelector(`tr[data-run="${state.selected}"]`)?.focus({ preventScroll: true });
  });
}
