// The state of the page: the study's data, the runs that match the filters, and the selected run.

const state = { data: null, shown: [], filters: new Map(), search: "", problem: "", hint: "", selected: null, listeners: [] };

function settle() {
  const { runs, settings } = state.data;
  const by = [...state.filters].map(([name, value]) => [settings.find((s) => s.name === name), value]).filter(([s]) => s);
  const { holds, problem, hint } = parsedFilter(state.search);
  Object.assign(state, { problem, hint });
  state.shown = runs.names.map((_, i) => i).filter((i) => by.every(([setting, value]) => word(setting.values[i]) === value) && holds(i));
}

// Whether a run is finished and within the study's admission rule: all statistics are over such runs.
const counts = (i) => state.data.runs.admitted[i] === true;
const filtered = () => state.shown.length < state.data.runs.names.length;
const onChange = (listener) => state.listeners.push(listener);

function changed() {
  settle();
  for (const listener of state.listeners) listener();
}

const column = (kind, name) => state.data[kind].find((c) => c.name === name) ?? null;
const pick = (values) => state.shown.map((i) => values[i]);

// Targets and measures, as [value, words] pairs for a menu.
const named = (kind) => state.data[kind].map((c) => [c.name, wordsOf(c)]);
const quantity = (key) => column(key.slice(0, key.indexOf(":")), key.slice(key.indexOf(":") + 1));
const quantities = () => ["targets", "measures"].flatMap((kind) => state.data[kind].map((c) => [`${kind}:${c.name}`, wordsOf(c)]));

// A quantity as people read it, "largest Hessian eigenvalue"; and with its identifier, to point at: "… (lambda_max)".
const wordsOf = (c) => c.label || c.name;
const titled = (c) => (c.label && c.label !== c.name ? `${c.label} (${c.name})` : c.name);

// How a quantity's numbers are written.
const writer = (c) => (c.percent ? percent : digits);
const inWords = (c, i) => withError(c.values[i], c.errors?.[i], writer(c)).map((part) => part.textContent ?? part).join("");

// Keeps the chosen option if it still exists.
const kept = (chosen, options, otherwise) => (options.some(([value]) => value === chosen) ? chosen : otherwise ?? options[0]?.[0] ?? null);
