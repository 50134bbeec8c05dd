// Follows a running study: polls the local server, and redraws the page when the data change.

const EVERY = 3000; // milliseconds

async function follow() {
  const status = byId("live");
  let tag = state.data.tag;
  status.hidden = false;
  const say = (words, how) => { if (status.textContent !== words) status.textContent = words; status.dataset.state = how; };
  say("Live: this page follows the running study.", "well");
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, EVERY));
    try {
      const answer = await fetch("data.json", { headers: { "If-None-Match": tag } });
      if (answer.status === 200) {
        const data = await answer.json();
        tag = answer.headers.get("ETag");
        show(data);
      } else if (answer.status !== 304) throw new Error(`the server answered ${answer.status}`);
      const { states } = state.data.runs;
      const of = (name) => states.filter((s) => s === name).length;
      say(`Live: ${of("done")} of ${states.length} runs done, ${of("running")} running${of("failed") ? `, ${of("failed")} failed` : ""}.`, "well");
    } catch {
      say("The server does not respond: this page shows the last data it received.", "lost");
    }
  }
}
