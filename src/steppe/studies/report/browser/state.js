// The state of the page: the study's data, the runs that match the filters, and the selected run.

const state = { data: null, shown: [], filters: new Map(), search: "", selected: null, listeners: [] };

function settle() {
  const { runs, settings } = state.data;
  const wanted = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  const by = [...state.filters].map(([name, value]) => [settings.find((s) => s.name === name), value]).filter(([s]) => s);
  state.shown = runs.names.map((_, i) => i).filter((i) => {
    if (!by.every(([setting, value]) => word(setting.values[i]) === value)) return false;
    if (!wanted.length) return true;
    const text = [runs.names[i], runs.states[i], runs.groups[i], ...settings.map((s) => `${s.name}=${word(s.values[i])}`)].join(" ").toLowerCase();
    return wanted.every((w) => text.includes(w));
  });
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
const named = (kind) => state.data[kind].map((c) => [c.name, c.name]);
const quantity = (key) => column(key.slice(0, key.indexOf(":")), key.slice(key.indexOf(":") + 1));
const quantities = () => ["targets", "measures"].flatMap((kind) => named(kind).map(([name]) => [`${kind}:${name}`, name]));

// Keeps the chosen option if it still exists.
const kept = (chosen, options, otherwise) => (options.some(([value]) => value === chosen) ? chosen : otherwise ?? options[0]?.[0] ?? null);
