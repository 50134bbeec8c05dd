// Elements and formatted numbers. Text enters the page as text only: there is no innerHTML in these files.

const SVG = "http://www.w3.org/2000/svg";

function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined).map((c) => (c instanceof Node ? c : String(c))));
  return made;
}

function svg(tag, properties = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const byId = (id) => document.getElementById(id);
const isNumber = (x) => typeof x === "number" && Number.isFinite(x);
const count = (n, word, words = `${word}s`) => `${n.toLocaleString("en")} ${n === 1 ? word : words}`;

const minus = (text) => text.replace(/-/g, "−");
const plus = (x) => (x >= 0 ? "+" : "");

// Numbers have the digits that Python prints: `digits` and `uncertain` are _util/numbers.py, and `tauWords`, `chance` and
// `amount` are studies/statistics/sentences.py. A test compares them.
function digits(x, significant = 4) {
  if (!isNumber(x)) return "–";
  if (Math.abs(x) >= 10 ** (significant - 1) && Math.abs(x) < 1e6) return minus(fixed(x, 0));
  return minus(general(x, significant));
}

// As Python's format "g": without zeros at the end, with an exponent below 1e-4 and from 10 to the power of `significant` on.
function general(x, significant) {
  if (x === 0) return "0";
  const [mantissa, exponent] = x.toExponential(significant - 1).split("e");
  const power = Number(exponent);
  const trimmed = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  if (power >= -4 && power < significant) return trimmed(fixed(x, significant - 1 - power));
  return trimmed(mantissa) + exponentText(power);
}

const exponentText = (power) => `e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
const powerOf = (x) => Number(x.toExponential(1).split("e")[1]);

// A value and its error with as many decimals as show two digits of the error: [before, value, error, after].
function uncertain(value, error) {
  if (value && powerOf(value) - powerOf(error) > 4) return ["", digits(value, 6), digits(error, 2), ""];
  const size = Math.max(Math.abs(value), error);
  const power = size >= 1e-4 && size < 1e6 ? 0 : Math.floor(Math.log10(size));
  const [v, e] = [value, error].map((x) => x / 10 ** power);
  const decimals = Math.max(0, 1 - powerOf(e));
  const shown = fixed(v, decimals);
  const parts = [Number(shown) ? minus(shown) : shown.replace("-", ""), fixed(e, decimals)];
  return power ? ["(", ...parts, `)${minus(exponentText(power))}`] : ["", ...parts, ""];
}

const signed = (x, places = 2) => (isNumber(x) ? minus(plus(x) + fixed(x, places)) : "–");
const tauWords = (x) => (!isNumber(x) || Math.abs(x) >= 0.005 || x === 0 ? signed(x) : minus(plus(x) + general(x, 1)));
const chance = (p) => (!isNumber(p) ? "–" : p < 1e-4 ? "< 0.0001" : general(p, 2));
const percent = Object.assign((x) => (isNumber(x) ? minus(`${fixed(100 * x, 2)}\u00a0%`) : "–"), { scale: 100, unit: "\u00a0%" });

// A value of a target: shares in percent, other numbers as they are; and a difference of two such values.
const amount = (target, x) => (target.percent ? percent(x) : isNumber(x) ? minus(general(x, 3)) : "–");
const difference = (target, x) => (!isNumber(x) ? "–" : minus(plus(x) + (target.percent ? fixed(100 * x, 2) : general(x, 3))));

// Rounds as Python does: ties go to the even digit. Among binary numbers only odd multiples of 2^-(places + 1) are ties.
function fixed(x, places) {
  if (Math.abs((x * 2 ** (places + 1)) % 2) !== 1) return x.toFixed(places);
  return ((2 * Math.round((x * 10 ** places) / 2)) / 10 ** places).toFixed(places);
}

// A value of a setting as text.
function word(value) {
  if (value === null || value === undefined) return "none";
  if (typeof value === "number") return Number.isInteger(value) ? minus(String(value)) : digits(value, 6);
  if (typeof value === "boolean") return value ? "yes" : "no";
  return value === "" ? "(empty)" : spoken(String(value));
}

// Lists of a configuration, ["flip", "crop"] and [], as readable text.
const spoken = (text) => text.replace(/\[("[^"\\]*"(?:, "[^"\\]*")*)?\]/g, (_, inner) => (inner ? inner.replace(/", "/g, " + ").replace(/"/g, "") : "none"));

const short = (text, most = 60) => (Array.from(text).length > most ? `${Array.from(text).slice(0, most - 1).join("")}…` : text);

// Removes characters that change the direction of the text after them.
const level = (text) => text.replace(/[\u202a-\u202e\u2066-\u2069]/g, "");

// Plotly interprets some markup in labels (<b>, <a>, entities): names must be escaped.
const plain = (text) => level(short(String(text))).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

// A number with its error, if it has one; `write` is how the column writes numbers alone.
function withError(value, error, write = digits) {
  if (!isNumber(value)) return [el("span", { class: "quiet" }, "–")];
  if (!isNumber(error) || error <= 0) return [write(value)];
  const { scale = 1, unit = "" } = write;
  const [before, shown, width, after] = uncertain(scale * value, scale * error);
  return [before + shown, " ", el("span", { class: "error" }, `±\u00a0${width}`), after + unit];
}

// How a column formats its numbers: with equally many decimals, so that they align, if that shows both the smallest and
// the largest.
function aligned(values) {
  const sizes = values.filter((v) => isNumber(v) && v !== 0).map(Math.abs).sort((a, b) => a - b);
  const middle = sizes[Math.floor(sizes.length / 2)];
  if (!sizes.length || middle >= 1e6 || middle < 1e-4 || sizes.at(-1) / middle > 1e3) return digits;
  const decimals = Math.min(Math.max(3 - Math.floor(Math.log10(middle)), 0), 7);
  return (x) => (x !== 0 && Math.abs(x) < 0.5 * 10 ** -decimals ? digits(x, 2) : minus(x.toFixed(decimals)));
}

// A labelled menu; options are [value, words] pairs.
function menu(label, id, options, chosen, changed) {
  const select = el("select", { id, onchange: () => changed(select.value) });
  for (const [value, words] of options) select.append(el("option", { value, selected: value === chosen }, short(words, 48)));
  return el("label", { for: id }, label, select);
}

function tick(label, id, on, changed) {
  const box = el("input", { type: "checkbox", id, checked: on, onchange: () => changed(box.checked) });
  return el("label", { class: "tick", for: id }, box, label);
}

function downloadable(name, rows) {
  const cell = (x) => {
    let text = x === null || x === undefined ? "" : String(x);
    // a spreadsheet executes text that begins like a formula
    if (typeof x === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  const text = rows.map((row) => row.map(cell).join(",")).join("\r\n");
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
