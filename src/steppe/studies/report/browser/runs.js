// The table of runs: filters, sorting, columns, pages; and one run in full.

const PAGE = 50; // rows at a time; on paper all of them
const MEASURES_AT_FIRST = 4; // columns of measures shown at first
const MENU = 12; // values of a setting up to which it has a menu of its own
const table = { sort: "plan", down: false, page: 0, columns: null, focus: 0, head: 0 };

function columnsOfTable() {
  const { runs, settings, targets, measures } = state.data;
  const all = [{ key: "name", title: "run", kind: "name", values: runs.names }];
  if (runs.states.some((s) => s !== "done") || runs.admitted.includes(false)) all.push({ key: "state", title: "state", kind: "state", values: runs.states });
  for (const t of targets) all.push({ key: `targets:${t.name}`, title: wordsOf(t), id: t.name, kind: "number", aside: !t.asked, values: t.values, errors: t.errors, write: (t.write ??= t.percent ? percent : aligned(t.values)) });
  for (const m of measures) all.push({ key: `measures:${m.name}`, title: wordsOf(m), id: m.name, kind: "number", values: m.values, errors: m.errors, write: (m.write ??= aligned(m.values)) });
  // last: names of runs mostly contain them
  for (const s of settings) all.push({ key: `settings:${s.name}`, title: s.name, kind: "setting", values: s.values });
  return all;
}

function shownColumns() {
  const all = columnsOfTable();
  if (!table.columns) {
    const first = all.filter((c) => c.key.startsWith("measures:")).slice(0, MEASURES_AT_FIRST);
    table.columns = new Set(all.filter((c) => !c.aside && (!c.key.startsWith("measures:") || first.includes(c))).map((c) => c.key));
  }
  return all.filter((c) => c.key === "name" || table.columns.has(c.key));
}

function order() {
  const by = columnsOfTable().find((c) => c.key === table.sort);
  if (!by) return state.shown;
  const compare = (i, j) => {
    const [a, b] = [by.values[i], by.values[j]];
    const gone = (a === null) - (b === null); // missing values are last in both directions
    if (gone || a === null) return gone || i - j;
    const up = typeof a === "number" && typeof b === "number" ? a - b : word(a).localeCompare(word(b), "en", { numeric: true });
    return (table.down ? -up : up) || i - j;
  };
  return [...state.shown].sort(compare);
}

function setSearch(text) {
  state.search = text;
  table.page = 0;
  remember("filter", text.trim() ? text : null);
  if (byId("search").value !== text) byId("search").value = text;
  changed();
}

function drawFilters() {
  const { settings } = state.data;
  const search = el("input", { type: "search", id: "search", placeholder: "lr > 0.05 and test_error <= 3%", autocomplete: "off", spellcheck: "false",
    "aria-describedby": "filter-problem filter-help", oninput: () => setSearch(search.value) });
  search.value = state.search;
  const made = [el("label", { for: "search", class: "search" }, "Search or filter", search)];
  for (const setting of settings) {
    const found = levels(setting.values).map(word);
    if (found.length > MENU) continue;
    const options = [["", "any"], ...found.map((w) => [`=${w}`, w])];
    const chosen = state.filters.has(setting.name) ? `=${state.filters.get(setting.name)}` : "";
    made.push(menu(setting.name, `filter-${setting.name}`, options, chosen, (value) => {
      if (value) state.filters.set(setting.name, value.slice(1)); else state.filters.delete(setting.name);
      table.page = 0;
      changed();
    }));
    made.at(-1).querySelector("select").dataset.setting = setting.name;
  }
  const clear = el("button", { type: "button", id: "clear", onclick: () => {
    for (const name of state.filters.keys()) remember(`filter-${name}`, null);
    state.filters.clear();
    state.search = "";
    drawFilters();
    setSearch("");
    byId("search").focus();
  } }, "Clear");
  byId("filters").replaceChildren(...made, clear, el("p", { class: "counted", id: "counted", role: "status" }),
    el("p", { class: "problem", id: "filter-problem", role: "status" }),
    el("p", { class: "help", id: "filter-help" }, "Conditions on any setting, target or measure: ", ...["lr > 0.05", "test_error <= 3%", "method = sam"].flatMap((text, k) => [k ? ", " : "", el("code", {}, text)]),
      ", combined with “and” or blanks. Other words are searched for in names and settings. The page's address keeps the view."));
}

function drawProblem() {
  const place = byId("filter-problem");
  const words = state.problem || state.hint;
  if (place.textContent !== words) place.textContent = words; // or it would be announced again
  place.classList.toggle("wrong", Boolean(state.problem));
  byId("search").setAttribute("aria-invalid", String(Boolean(state.problem)));
}

function drawRuns() {
  const columns = shownColumns();
  const rows = order();
  const pages = paper ? 1 : Math.max(1, Math.ceil(rows.length / PAGE));
  table.page = Math.min(table.page, pages - 1);
  const here = paper ? rows : rows.slice(table.page * PAGE, (table.page + 1) * PAGE);
  byId("counted").textContent = filtered() ? `${state.shown.length} of ${count(state.data.runs.names.length, "run")}` : `all ${count(rows.length, "run")}`;
  byId("clear").disabled = !filtered() && !state.search;
  drawProblem();
  const body = el("tbody", {}, ...here.map((i, k) => runRow(i, k, columns)));
  if (!here.length) body.append(el("tr", {}, el("td", { colspan: columns.length, class: "quiet" }, "No run matches these filters.")));
  const made = el("table", { class: "runs", id: "runs-table" }, el("thead", {}, el("tr", {}, ...columns.map(headCell))), body);
  made.addEventListener("keydown", moveInTable);
  const { scrollLeft = 0, scrollTop = 0 } = byId("table").querySelector(".scroll") ?? {};
  const open = byId("columns")?.open ?? false;
  byId("table").replaceChildren(el("div", { class: "scroll" }, made), underTable(pages, rows, columns));
  Object.assign(byId("table").querySelector(".scroll"), { scrollLeft, scrollTop });
  byId("columns").open = open;
}

function headCell(c, k) {
  const on = table.sort === c.key;
  const button = el("button", { type: "button", tabindex: k === table.head ? 0 : -1, onclick: () => {
    if (on && table.down) Object.assign(table, { sort: "plan", down: false });
    else Object.assign(table, { sort: c.key, down: on });
    table.head = k;
    drawRuns();
    byId("runs-table").querySelectorAll("thead button")[k].focus();
  } }, ...breakable(c.title));
  const kind = c.kind === "number" || (c.kind === "setting" && c.values.some(isNumber)) ? " number" : c.kind === "name" ? " name" : "";
  return el("th", { scope: "col", class: `sortable${kind}`, "aria-sort": on ? (table.down ? "descending" : "ascending") : "none", "data-key": c.key, title: c.id }, button);
}

function runRow(i, k, columns) {
  const cells = columns.map((c) => {
    const value = c.values[i];
    if (c.kind === "name") return el("th", { scope: "row", class: "name", title: value }, ...breakable(value));
    if (c.kind === "number") return el("td", { class: "number", "data-key": c.key, "data-value": value }, ...withError(value, c.errors?.[i], c.write));
    if (c.kind === "state") return el("td", { class: "state-cell" }, stateWord(i));
    return el("td", { class: c.values.some(isNumber) ? "number" : null, "data-key": c.key, title: word(value) }, word(value));
  });
  return el("tr", { "data-run": i, tabindex: k === table.focus ? 0 : -1, "aria-selected": state.selected === i ? "true" : null, onclick: () => { table.focus = k; showRun(i); } }, ...cells);
}

function stateWord(i) {
  const out = state.data.runs.admitted[i] === false;
  const words = out ? "excluded" : state.data.runs.states[i];
  return words === "done" ? "done" : el("span", { class: `state ${words.replace(" ", "-")}` }, words);
}

function underTable(pages, rows, columns) {
  const turn = (by) => () => { table.page += by; table.focus = 0; drawRuns(); byId("table").querySelector(".scroll").scrollTop = 0; };
  const parts = [];
  if (pages > 1) {
    parts.push(el("button", { type: "button", disabled: table.page === 0, onclick: turn(-1) }, "Previous"),
      el("p", { class: "counted" }, `page ${table.page + 1} of ${pages}`),
      el("button", { type: "button", disabled: table.page === pages - 1, onclick: turn(1) }, "Next"));
  }
  const titles = columns.flatMap((c) => (c.errors ? [c.id ?? c.title, `${c.id ?? c.title} standard error`] : [c.title]));
  const line = (i) => columns.flatMap((c) => (c.errors ? [c.values[i], c.errors[i]] : [c.values[i]]));
  parts.push(el("button", { type: "button", onclick: () => downloadable("runs.csv", [titles, ...rows.map(line)]) }, "Save as CSV"), columnChoice());
  return el("div", { class: "under" }, ...parts);
}

function closeOnEscape(event) {
  if (event.key !== "Escape") return;
  event.currentTarget.open = false;
  event.currentTarget.firstChild.focus();
}

function columnChoice() {
  const groups = [["settings:", "Settings"], ["targets:", "Targets"], ["measures:", "Measures"]];
  const boxes = groups.flatMap(([prefix, title]) => {
    const those = columnsOfTable().filter((c) => c.key.startsWith(prefix));
    const ticks = those.map((c) => tick(c.title, `show-${c.key}`, table.columns.has(c.key), (on) => {
      if (on) table.columns.add(c.key); else table.columns.delete(c.key);
      drawRuns();
      byId(`show-${c.key}`).focus();
    }));
    return those.length ? [el("h3", {}, title), ...ticks] : [];
  });
  return el("details", { class: "columns", id: "columns", onkeydown: closeOnEscape },
    el("summary", {}, "Columns"), el("div", {}, ...boxes));
}

// Arrow keys move through heads and rows; Enter sorts or opens; Home and End go to the ends.
function moveInTable(event) {
  const heads = [...byId("runs-table").querySelectorAll("thead button")];
  const rows = [...byId("runs-table").querySelectorAll("tbody tr[data-run]")];
  const go = (list, k) => {
    const to = Math.min(Math.max(k, 0), list.length - 1);
    if (!list[to]) return;
    event.preventDefault();
    for (const item of list) item.tabIndex = item === list[to] ? 0 : -1;
    list[to].focus();
    if (list === heads) table.head = to; else table.focus = to;
  };
  const head = heads.indexOf(document.activeElement);
  const row = rows.indexOf(document.activeElement);
  const { key } = event;
  if (head >= 0) {
    if (key === "ArrowRight" || key === "ArrowLeft") go(heads, head + (key === "ArrowRight" ? 1 : -1));
    else if (key === "ArrowDown") go(rows, table.focus);
    else if (key === "Home" || key === "End") go(heads, key === "Home" ? 0 : heads.length - 1);
  } else if (row >= 0) {
    if (key === "ArrowDown") go(rows, row + 1);
    else if (key === "ArrowUp") { if (row) go(rows, row - 1); else go(heads, table.head); }
    else if (key === "Home" || key === "End") go(rows, key === "Home" ? 0 : rows.length - 1);
    else if (key === "Enter" || key === " ") { event.preventDefault(); table.focus = row; showRun(Number(rows[row].dataset.run)); }
  }
}
