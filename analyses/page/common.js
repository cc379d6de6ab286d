"use strict";
// What all pages share: making elements, and sorting tables. Text from the data only ever becomes text.

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// -- tables ---------------------------------------------------------------------------------------------------------

function sortTable(head) {
  const table = head.closest("table"), column = head.cellIndex;
  const ascending = head.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const rows = [...table.tBodies[0].rows].map((row) => [sortKey(row.cells[column]), row]);
  rows.sort(([a], [b]) => compared(a, b, ascending));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

function sortKey(cell) {
  const text = cell.dataset.key === undefined ? cell.textContent : cell.dataset.key;
  return text === "" || text === "–" ? null : Number.isNaN(Number(text)) ? text : Number(text);
}

// What is missing stays at the end, whichever way the rest goes.
function compared(a, b, ascending) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  return ascending ? order : -order;
}

document.addEventListener("click", (event) => {
  const head = event.target.closest("table.sortable th");
  if (head) sortTable(head);
});

// -- terms, and paper -----------------------------------------------------------------------------------------------

// A term opens onto what it means, right after it; once more, or Escape, closes it.
function toggleTerm(button) {
  const open = button.getAttribute("aria-expanded") === "true";
  button.setAttribute("aria-expanded", String(!open));
  if (open) return button.nextElementSibling.remove();
  const meaning = document.querySelector(`[data-meaning="${CSS.escape(button.dataset.term)}"]`);
  button.after(element("span", { class: "definition", role: "note" }, meaning ? meaning.textContent : ""));
}

document.addEventListener("click", (event) => {
  const term = event.target.closest("button.term");
  if (term) toggleTerm(term);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") document.querySelectorAll("button.term[aria-expanded=true]").forEach(toggleTerm);
});

// What is folded is there on paper.
let folded = [];
window.addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const each of folded) each.open = true;
});
window.addEventListener("afterprint", () => {
  for (const each of folded) each.open = false;
});
