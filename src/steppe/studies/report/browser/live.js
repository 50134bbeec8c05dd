// Follows a running study: asks the server on this machine for what is new, and draws that.

const EVERY = 3000; // milliseconds

async function follow() {
  const told = byId("live");
  let tag = state.data.tag;
  told.hidden = false;
  const say = (words, how) => { if (told.textContent !== words) told.textContent = words; told.dataset.state = how; };
  say("Live: this page follows the study.", "well");
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
      say("The study's server does not answer: this page shows what it knew last.", "lost");
    }
  }
}
