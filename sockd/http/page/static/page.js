// The other scripts are loaded when the page is shown: functions.js, details.js and htmx, which replaces the
// parts named by sse-swap as the stream of events brings new ones. The label says whether the stream is connected.
"use strict";
const label = document.getElementById("state");
const main = document.getElementById("main");
const words = { wait: "connecting", live: "live", lost: "no connection" };
function say(state) {
  label.dataset.state = state;
  label.textContent = words[state];
}
function load([url, ...rest]) {
  const script = document.createElement("script");
  script.src = url;
  script.onload = rest.length ? () => load(rest) : connect;
  document.head.append(script);
}
function connect() {
  main.setAttribute("sse-connect", main.dataset.events);
  htmx.process(main);
}
say("wait");
document.body.addEventListener("htmx:sseOpen", () => say("live"));
for (const end of ["htmx:sseError", "htmx:sseClose"]) document.body.addEventListener(end, () => say("lost"));
const scripts = document.currentScript.dataset.then.split(" ");
addEventListener("load", () => load(scripts));
