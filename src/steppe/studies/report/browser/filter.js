// Conditions on runs as they are typed: `lr > 0.05 and test_error <= 3%`. Other words are searched for in a run's text.

const CONDITION = /("[^"]*"|[^\s<>=!≤≥"]+)\s*(<=|>=|!=|==|=|<|>|≤|≥)\s*("[^"]*"|[^\s<>=!≤≥"]*)/y;
const BLANK = /\s*/y;
const OTHER = /"[^"]*"|[<>=!≤≥]+|[^\s<>=!≤≥]+/y;
const NUMBER = /^[-+−]?(\d+\.?\d*|\.\d+)(e[-+−]?\d+)?%?$/i;
const ORDERS = { "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b };
const SIGNS_READ = { "==": "=", "≤": "<=", "≥": ">=" };

// Returns { holds: run index -> boolean, problem: "" or what is wrong, hint: "" or a remark }.
function parsedFilter(text) {
  const tests = [];
  const hints = [];
  let at = 0;
  let conditions = 0;
  const next = (pattern) => { pattern.lastIndex = at; const match = pattern.exec(text); if (match) at = pattern.lastIndex; return match; };
  try {
    for (next(BLANK); at < text.length; next(BLANK)) {
      const condition = next(CONDITION);
      if (condition) {
        conditions += 1;
        tests.push(conditionTest(condition, hints));
      } else {
        const [other] = next(OTHER);
        if (/^"[^"]*$/.test(other)) throw new Error(`the quotation mark of ${short(other, 40)} is not closed`);
        if (/^[<>=!≤≥]/.test(other)) throw new Error(`“${other}” needs a name before it, such as lr ${other} 0.05`);
        if (/^or$/i.test(other) && conditions) throw new Error("conditions are combined with “and” only");
        if (!/^and$/i.test(other)) tests.push(textTest(other));
      }
    }
  } catch (error) {
    return { holds: () => true, problem: `Filter not applied: ${error.message}.`, hint: "" };
  }
  return { holds: (i) => tests.every((test) => test(i)), problem: "", hint: hints.join(" ") };
}

const unquoted = (text) => text.replace(/^"|"$/g, "");
const textTest = (text) => { const wanted = unquoted(text).toLowerCase(); return (i) => runText(i).includes(wanted); };

function runText(i) {
  const { runs, settings } = state.data;
  return [runs.names[i], runs.states[i], runs.groups[i], ...settings.map((s) => `${s.name}=${word(s.values[i])}`)].join(" ").toLowerCase();
}

function filterColumns() {
  const { settings, targets, measures, runs } = state.data;
  return [...settings, ...targets, ...measures, { name: "state", values: runs.states }, { name: "run", values: runs.names }];
}

function conditionTest([all, rawName, rawSign, rawValue], hints) {
  const name = unquoted(rawName);
  const sign = SIGNS_READ[rawSign] ?? rawSign;
  const columns = filterColumns();
  const called = (c) => [c.name, c.label ?? c.name].some((one) => one.toLowerCase() === name.toLowerCase()); // "test error" is test_error
  const column = columns.find((c) => c.name === name) ?? columns.find(called);
  if (!column) {
    // names of runs contain such text too: "sam decay=0.1"
    if (sign === "=" && state.data.runs.names.some((_, i) => runText(i).includes(all.toLowerCase()))) return textTest(all);
    throw new Error(`there is no setting, target or measure “${short(name, 40)}”. There are ${short(columns.map((c) => c.name).join(", "), 300)}`);
  }
  const value = unquoted(rawValue);
  if (!value) throw new Error(`“${all.trim()}” needs a value`);
  const number = NUMBER.test(value) ? Number(value.replace(/−/g, "-").replace("%", "")) / (value.endsWith("%") ? 100 : 1) : null;
  const wanted = word(value).toLowerCase();
  if (sign === "=" || sign === "!=") {
    const same = (v) => (number !== null && isSize(v) ? Math.abs(Number(v) - number) <= 1e-9 * Math.abs(number) : word(v).toLowerCase() === wanted);
    return (i) => same(column.values[i]) === (sign === "=");
  }
  if (!column.values.some(isSize)) throw new Error(`the values of ${name} are words: use = or != instead of ${sign}`);
  if (number === null) throw new Error(`${name} ${sign} needs a number, not “${short(value, 40)}”`);
  if (column.percent && number > 1 && !value.endsWith("%")) hints.push(`${name} is a share: ${value} means ${percent(number)}; write ${value}% for percent.`);
  return (i) => isSize(column.values[i]) && ORDERS[sign](Number(column.values[i]), number);
}
