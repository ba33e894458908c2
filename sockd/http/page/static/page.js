// Says whether the page is kept up to date. Everything else is htmx: parts named by sse-swap are exchanged as they come.
"use strict";
const label = document.getElementById("state");
const words = { wait: "connecting", live: "live", lost: "no connection" };
function say(state) {
  if (label.dataset.state === state && label.textContent) return;
  label.dataset.state = state;
  label.textContent = words[state];
}
say("wait");
document.body.addEventListener("htmx:sseOpen", () => say("live"));
document.body.addEventListener("htmx:sseError", () => say("lost"));
document.body.addEventListener("htmx:sseClose", () => say("lost"));
