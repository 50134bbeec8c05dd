// Statistics over the runs that are shown. Over all runs they come from Python, with intervals; a test compares both.

// Kendall's tau-a, Eq. 4 of Andriushchenko et al. 2023: a tied pair counts zero and stays in the denominator.
// With groups, only pairs within a group.
function tau(x, y, groups = null) {
  const rows = [];
  for (let i = 0; i < x.length; i++) if (isNumber(x[i]) && isNumber(y[i])) rows.push(i);
  let score = 0;
  let pairs = 0;
  for (let a = 1; a < rows.length; a++) {
    const i = rows[a];
    for (let b = 0; b < a; b++) {
      const j = rows[b];
      if (groups && groups[i] !== groups[j]) continue;
      pairs += 1;
      score += Math.sign(x[i] - x[j]) * Math.sign(y[i] - y[j]);
    }
  }
  return { tau: pairs ? score / pairs : NaN, n: rows.length, pairs };
}

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

function span(values) {
  const there = values.filter(isNumber);
  return there.length ? [there.reduce((a, b) => Math.min(a, b)), there.reduce((a, b) => Math.max(a, b))] : [NaN, NaN];
}

// Distinct values: numbers by size, then words in the study's order; missing values last.
function levels(values) {
  const seen = new Map();
  for (const value of values) if (!seen.has(word(value))) seen.set(word(value), value);
  const rank = (v) => (v === null ? 2 : isSize(v) ? 0 : 1);
  return [...seen.values()].sort((a, b) => rank(a) - rank(b) || (rank(a) === 0 ? Number(a) - Number(b) : 0));
}

// Whether a value is a number or a text that is one.
const isSize = (v) => v !== null && v !== undefined && !(typeof v === "string" && v.trim() === "") && !Number.isNaN(Number(v));
