// The address keeps the view: controls that were changed, the filter and the chosen runs. Opening it restores them.

const view = new Map(); // id of a menu or tick, "filter" or "run" -> its value, in the order of the changes
let linkedSection = "";

function remember(key, value) {
  view.delete(key); // a later change stands later: some reset others
  if (value !== null) view.set(key, value);
  writeLink();
}

function writeLink() {
  const hash = [linkedSection, String(new URLSearchParams([...view]))].filter(Boolean).join("&");
  try {
    history.replaceState(null, "", location.href.split("#")[0] + (hash && `#${hash}`));
  } catch { /* a page inside another one may have no address of its own */ }
}

const runOf = (key) => state.data.runs.keys.indexOf(key);

function restoreControl(id, value) {
  const control = byId(id);
  if (control?.matches("select") && [...control.options].some((o) => o.value === value)) control.value = value;
  else if (control?.matches("input[type=checkbox]")) control.checked = value === "yes";
  else return;
  const fold = foldOf(control);
  if (fold) unfold(fold.parentElement.id); // a link shows what its view is of
  control.dispatchEvent(new Event("change", { bubbles: true }));
}

function openLink() {
  const wanted = [...new URLSearchParams(location.hash.slice(1))];
  for (const [key, value] of wanted) {
    if (value === "" && Object.hasOwn(SECTIONS, key)) linkedSection = key;
    else if (key === "filter") { unfold("runs"); setSearch(value); }
    else if (key !== "run") {
      if (key.startsWith("show-")) unfold("runs"); // its boxes are drawn with it
      restoreControl(key, value);
    }
  }
  if (linkedSection) unfold(linkedSection);
  if (wanted.length) document.activeElement?.blur(); // a restored menu takes no focus
  const run = runOf(wanted.find(([key]) => key === "run")?.[1]);
  if (run >= 0) showRun(run);
  if (view.size) writeLink();
}

// Sections move while charts are drawn: the browser's own jump is too early.
const goToLinkedSection = () => { if (linkedSection) byId(linkedSection).scrollIntoView({ behavior: "instant" }); };

function startLink() {
  document.addEventListener("change", ({ target }) => {
    if (target.id && target.matches("select")) remember(target.id, target.id.startsWith("filter-") && !target.value ? null : target.value);
    else if (target.id && target.matches("input[type=checkbox]")) remember(target.id, target.checked ? "yes" : "no");
  });
  addEventListener("hashchange", () => {
    const section = location.hash.slice(1);
    if (Object.hasOwn(SECTIONS, section)) { linkedSection = section; goTo(section); writeLink(); } else location.reload(); // another link of this page
  });
  openLink();
}
