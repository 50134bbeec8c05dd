// Light, dark or the system's theme; and colours that are distinct for any colour vision.

// Okabe and Ito 2008. The yellow is last: it is faint on white. Shapes go with colours, so that neither is needed alone.
const OKABE_ITO = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", null, "#F0E442"];
const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];

// As plotly draws them, in a box from -10 to 10, for keys.
const SHAPES = [
  ["circle", "M6,0A6,6 0 1,1 0,-6A6,6 0 0,1 6,0Z"],
  ["square", "M5.5,5.5H-5.5V-5.5H5.5Z"],
  ["diamond", "M7.8,0L0,7.8L-7.8,0L0,-7.8Z"],
  ["triangle-up", "M-6.9,3.5H6.9L0,-7Z"],
  ["cross", "M7.2,2.4H2.4V7.2H-2.4V2.4H-7.2V-2.4H-2.4V-7.2H2.4V-2.4H7.2Z"],
  ["triangle-down", "M-6.9,-3.5H6.9L0,7Z"],
  ["x", "M0,3.4L3.4,6.8L6.8,3.4L3.4,0L6.8,-3.4L3.4,-6.8L0,-3.4L-3.4,-6.8L-6.8,-3.4L-3.4,0L-6.8,3.4L-3.4,6.8Z"],
  ["star", "M8.4,-2.7H2L0,-9L-2,-2.7H-8.4L-3.2,1L-5.2,7.2L0,3.4L5.2,7.2L3.2,1Z"],
];

const system = matchMedia("(prefers-color-scheme: dark)");
const printing = matchMedia("print");
let chosenTheme = "auto";

const isDark = () => !printing.matches && !paper && (chosenTheme === "dark" || (chosenTheme === "auto" && system.matches));
let paper = false; // while the page is being printed

function applyTheme() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  for (const button of byId("theme").children) {
    const on = button.dataset.themeName === chosenTheme;
    button.setAttribute("aria-checked", String(on));
    button.tabIndex = on ? 0 : -1;
  }
}

function startTheme(redraw) {
  try {
    chosenTheme = ["light", "dark"].find((t) => t === localStorage.getItem("steppe-theme")) ?? "auto";
  } catch { /* a browser without storage for files */ }
  const buttons = [...byId("theme").children];
  const choose = (button) => {
    chosenTheme = button.dataset.themeName;
    try { localStorage.setItem("steppe-theme", chosenTheme); } catch { /* as above */ }
    applyTheme();
    button.focus();
    redraw();
  };
  for (const [k, button] of buttons.entries()) {
    button.addEventListener("click", () => choose(button));
    button.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (step) { event.preventDefault(); choose(buttons[(k + step + buttons.length) % buttons.length]); }
    });
  }
  system.addEventListener("change", () => { applyTheme(); redraw(); });
  applyTheme();
}

const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// The palette, then the palette again, blended with the colour of text.
function category(k) {
  const pure = OKABE_ITO[k % OKABE_ITO.length] ?? ink("ink");
  return k < OKABE_ITO.length ? pure : blend(pure, ink("soft"), 0.5);
}

function blend(a, b, t) {
  const channels = [1, 3, 5].map((k) => Math.round(parseInt(a.slice(k, k + 2), 16) * (1 - t) + parseInt(b.slice(k, k + 2), 16) * t));
  return `#${channels.map((v) => v.toString(16).padStart(2, "0")).join("")}`;
}

// The outline of a mark: the page's colour, or a visible one for yellow on white.
const edge = (colour) => (colour === OKABE_ITO.at(-1) && !isDark() ? ink("soft") : ink("card"));

// The colour of a number from 0 to 1; with `visible`, without the ends that vanish into the page.
function ramp(t, visible = false) {
  const [from, to] = !visible ? [0, 1] : isDark() ? [0.3, 1] : [0, 0.86];
  const at = (from + (to - from) * Math.min(Math.max(t, 0), 1)) * (CIVIDIS.length - 1);
  const low = Math.min(Math.floor(at), CIVIDIS.length - 2);
  return blend(CIVIDIS[low], CIVIDIS[low + 1], at - low);
}

// Black or white, whichever is easier to read on a colour (WCAG relative luminance).
function readableOn(hex) {
  const linear = [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16) / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.179 ? "#000000" : "#ffffff";
}

// How a setting colours runs: numbers by a scale, words by the palette.
function colouring(setting) {
  if (!setting) return { of: () => ink("accent"), levels: [], scale: null };
  const found = levels(setting.values);
  const numbers = found.filter(isNumber);
  if (numbers.length > 2 && found.every((v) => isNumber(v) || v === null)) {
    const many = numbers.length > OKABE_ITO.length;
    const wide = numbers[0] > 0 && numbers.at(-1) / numbers[0] >= 20;
    const place = (v) => (wide ? Math.log(v / numbers[0]) / Math.log(numbers.at(-1) / numbers[0]) : (v - numbers[0]) / (numbers.at(-1) - numbers[0]));
    const of = (v) => (!isNumber(v) ? ink("zero") : ramp(many ? place(v) : numbers.indexOf(v) / (numbers.length - 1), true));
    return { of, levels: many ? [] : found, scale: many ? [numbers[0], numbers.at(-1)] : null };
  }
  const places = new Map(found.map((v, k) => [word(v), k]));
  return { of: (v) => category(places.get(word(v))), levels: found, scale: null };
}

function shaping(setting) {
  const found = setting ? levels(setting.values) : [];
  const places = new Map(found.map((v, k) => [word(v), k]));
  return { of: (v) => SHAPES[(places.get(word(v)) ?? 0) % SHAPES.length], levels: found };
}

const glyph = (path, colour) => svg("svg", { viewBox: "-10 -10 20 20", "aria-hidden": "true" }, svg("path", { d: path, fill: colour, stroke: edge(colour), "stroke-width": colour === OKABE_ITO.at(-1) ? 1 : 0 }));
