// The page of a running study: the browser reads it again, and its address keeps the view.

function follow(seconds) {
  const status = byId("live");
  const { states } = state.data.runs;
  const of = (name) => states.filter((s) => s === name).length;
  const failed = of("failed") ? `, ${of("failed")} failed` : "";
  status.textContent = `Live: ${of("done")} of ${states.length} runs done, ${of("running")} running${failed}. This page is read again every ${seconds} seconds.`;
  status.dataset.state = "well";
  status.hidden = false;
  setTimeout(() => location.reload(), 1000 * seconds); // unlike a refresh in the page's head, it keeps the whole address
}
