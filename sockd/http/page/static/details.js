// Keeps details open that somebody has opened: the server sends a whole new panel whenever a number changes, with all
// details closed.
"use strict";
{
  const main = document.getElementById("main");
  const opened = new Set();

  main.addEventListener(
    "toggle",
    ({ target }) => {
      if (!target.id || !target.isConnected) return;
      if (target.open) opened.add(target.id);
      else opened.delete(target.id);
    },
    true, // toggle events do not bubble
  );
  new MutationObserver(() => {
    for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
  }).observe(main, { childList: true, subtree: true });
}
