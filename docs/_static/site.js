document.addEventListener("DOMContentLoaded", () => {
  // A button on every block of code that copies it, without the prompts and the outputs of examples.
  for (const block of document.querySelectorAll("div.highlight")) {
    const code = block.querySelector("pre");
    if (!code || !navigator.clipboard) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy the code");
    button.addEventListener("click", async () => {
      const lines = code.innerText.split("\n");
      const typed = lines.filter((line) => /^(>>>|\.\.\.)( |$)/.test(line)).map((line) => line.slice(4));
      await navigator.clipboard.writeText((typed.length ? typed : lines).join("\n").trimEnd() + "\n");
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    block.append(button);
  }

  for (const table of document.querySelectorAll(".content table")) {
    // Names of tests are long: a cell of them shows their number, and the names on a click.
    for (const cell of table.querySelectorAll("td")) {
      const names = [...cell.querySelectorAll("code")];
      if (!names.length || !names.every((name) => /^((papers\/)?tests\/|test_)/.test(name.textContent))) continue;
      const details = document.createElement("details");
      const summary = document.createElement("summary");
      summary.textContent = names.length === 1 ? "1 test" : `${names.length} tests`;
      details.append(summary, ...cell.childNodes);
      cell.append(details);
    }
    // On a phone each row becomes a block of "column: cell" (site.css), except in wide tables of numbers, which scroll.
    const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim());
    const fits = heads.length === 2 && table.scrollWidth <= table.parentElement.clientWidth;
    if (heads.length < 2 || heads.length > 8 || fits) continue;
    table.classList.add("stacked");
    for (const row of table.querySelectorAll("tbody tr")) {
      for (const [k, cell] of [...row.cells].entries()) {
        cell.dataset.head = heads[k];
        if (!cell.textContent.trim()) cell.classList.add("empty");
      }
    }
  }
});
