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

function digits(x, significant = 4) {
  if (!isNumber(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1e6 || size < 1e-4) {
    const [mantissa, power] = x.toExponential(significant - 1).split("e");
    return minus(`${mantissa.replace(/\.?0+$/, "")}e${Number(power)}`);
  }
  const text = x.toPrecision(significant);
  return minus(text.includes("e") ? String(Number(text)) : text);
}

const minus = (text) => text.replace(/-/g, "−");
const signed = (x, places = 2) => (isNumber(x) ? minus((x >= 0 ? "+" : "") + fixed(x, places)) : "–");

const percent = Object.assign((x) => (isNumber(x) ? minus(`${fixed(100 * x, 2)}\u00a0%`) : "–"), { scale: 100, unit: "\u00a0%" });

// Rounds as Python does, so that the page and the terminal agree: ties go to the even digit. Among binary numbers only
// odd multiples of 2^-(places + 1) are ties.
function fixed(x, places) {
  if (Math.abs((x * 2 ** (places + 1)) % 2) !== 1) return x.toFixed(places);
  return ((2 * Math.round((x * 10 ** places) / 2)) / 10 ** places).toFixed(places);
}

function chanceWords(p) {
  if (!isNumber(p)) return "–";
  return p < 0.001 ? "< 0.001" : p.toFixed(p < 0.1 ? 3 : 2);
}

// A value of a setting as text.
function word(value) {
  if (value === null || value === undefined) return "none";
  if (typeof value === "number") return Number.isInteger(value) ? minus(String(value)) : minus(String(Number(value.toPrecision(6))));
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

function withError(value, error, write = digits) {
  if (!isNumber(value)) return [el("span", { class: "quiet" }, "–")];
  const shown = [write(value)];
  if (isNumber(error) && error > 0) shown.push(" ", el("span", { class: "error" }, `± ${write(error, 2)}`));
  return shown;
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
