// Sorts and filters the table of functions, in this browser alone. The server sends a whole new panel whenever a number
// changes: an observer applies the order and the filter to it before the browser draws it.
"use strict";
{
  const panel = document.getElementById("functions");
  const filter = document.getElementById("filter");
  const count = document.getElementById("filter-count");
  let sorted = { column: 0, descending: false };
  let focused = null; // the column of the heading that has the focus

  // "1 204", "<0.1" and ">99 %" as numbers; "–" is less than all.
  function number(text) {
    const digits = text.replace(/[^\d.]/g, "");
    const nudge = text.startsWith("<") ? -0.001 : text.startsWith(">") ? 0.001 : 0;
    return digits ? Number(digits) + nudge : -1;
  }

  function compared(kind) {
    const text = (row) => row.cells[sorted.column].textContent.trim();
    const sign = sorted.descending ? -1 : 1;
    if (kind === "text") return (one, other) => sign * text(one).localeCompare(text(other));
    return (one, other) => sign * (number(text(one)) - number(text(other)));
  }

  function sortBy(column, kind) {
    const again = sorted.column === column;
    sorted = { column, descending: again ? !sorted.descending : kind === "number" };
    apply();
  }

  // A heading becomes a button here and not on the server: without scripts it could do nothing.
  function addButton(head, column) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sortBy(column, head.dataset.sort));
    head.append(button);
    if (focused === column) button.focus();
  }

  function apply() {
    const table = panel.querySelector("table");
    document.getElementById("filter-line").hidden = !table;
    if (!table) return;
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      if (!head.dataset.sort) return;
      if (!head.querySelector("button")) addButton(head, column);
      head.removeAttribute("aria-sort");
    });
    heads[sorted.column].ariaSort = sorted.descending ? "descending" : "ascending";
    const active = document.activeElement;
    const rows = [...table.tBodies[0].rows].sort(compared(heads[sorted.column].dataset.sort));
    table.tBodies[0].append(...rows);
    if (panel.contains(active)) active.focus({ preventScroll: true }); // a row that is moved loses the focus
    const wanted = filter.value.trim().toLowerCase();
    for (const row of rows) row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
    count.textContent = wanted ? `${rows.filter((row) => !row.hidden).length} of ${rows.length}` : "";
  }

  if (panel && filter) {
    // Not by the heading's own events: a heading that is replaced may lose the focus with or without one.
    addEventListener("focusin", ({ target }) => (focused = panel.contains(target) && target.closest("thead th")?.cellIndex));
    addEventListener("pointerdown", () => (focused = null));
    filter.addEventListener("input", apply);
    new MutationObserver(apply).observe(panel, { childList: true });
    apply();
  }
}
