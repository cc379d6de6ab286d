// The study's page: choose a cell, choose a length. It runs after common.js.

const study = JSON.parse(document.getElementById("data").textContent);
const SEED_STYLES = 5;

function drawn(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const shown = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const seedStyle = (place) => `seed${place % SEED_STYLES}`;

// -- matrix ---------------------------------------------------------------------------------------------------------

const level = (value) =>
  value === null ? "unknown" : "level" + [0.1, 0.5, 0.9, 0.995].filter((bound) => value >= bound).length;

function chooseMultiple(multiple) {
  for (const button of document.querySelectorAll("button.cell")) {
    const cell = study.cells[Number(button.dataset.cell)];
    const value = cell.at[multiple];
    for (const name of ["unknown", "level0", "level1", "level2", "level3", "level4"]) button.classList.remove(name);
    button.classList.add(level(value));
    button.querySelector("b").textContent = shown(value);
    button.setAttribute("aria-label", `${cell.task} under ${cell.scheme}: exact match ${shown(value)} at ${multiple} times the training range`);
  }
}

function moveInMatrix(event) {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  const place = event.target.closest("td");
  if (!step || !place) return;
  const row = place.parentElement.parentElement.rows[place.parentElement.sectionRowIndex + step[0]];
  const next = row && row.cells[place.cellIndex + step[1]];
  const button = next && next.querySelector("button");
  if (!button) return;
  event.preventDefault();
  button.focus();
}

// -- one cell -------------------------------------------------------------------------------------------------------

function chooseCell(button, move) {
  for (const other of document.querySelectorAll("button.cell[aria-pressed=true]")) other.setAttribute("aria-pressed", "false");
  button.setAttribute("aria-pressed", "true");
  const cell = study.cells[Number(button.dataset.cell)];
  const title = document.getElementById("panel-title");
  title.textContent = `${cell.task} under ${cell.scheme}`;
  title.append(" ", element("a", { class: "link", href: address(cell), "aria-label": "link to this cell" }, "#"));
  document.getElementById("panel-body").replaceChildren(...panel(cell));
  if (move) {
    history.replaceState(null, "", address(cell));
    title.focus({ preventScroll: true });
    document.getElementById("panel").scrollIntoView({ block: "nearest" });
  }
}

// Each cell has an address: page.html#cell=copy/rope.
const address = (cell) => `#cell=${encodeURIComponent(cell.task)}/${encodeURIComponent(cell.scheme)}`;

function addressed() {
  return [...document.querySelectorAll("button.cell")].find((button) => address(study.cells[Number(button.dataset.cell)]) === location.hash);
}

function openAddressed() {
  const button = addressed();
  if (!button) return;
  chooseCell(button, false);
  document.getElementById("panel").scrollIntoView({ block: "nearest" });
}

function panel(cell) {
  const parts = [verdict(cell)];
  if (!cell.runs.length) return [...parts, element("p", { class: "none" }, "No run of this cell is in the study.")];
  parts.push(element("div", { class: "charts" }, ...charts(cell)), seedKey(cell), seedTable(cell));
  return [...parts, ...learned(cell), ...troubles(cell)];
}

function verdict(cell) {
  if (!cell.verdict) return element("p", { class: "none" }, "No verdict before training is in the study.");
  const reach = cell.verdict_up_to === null ? "" : ` (n up to ${cell.verdict_up_to})`;
  const word = element("span", { class: "verdict-word" }, cell.verdict);
  const reasons = cell.reasons ? `: ${cell.reasons}.` : ".";
  return element("p", { class: "verdict" }, `Before training${reach}: `, word, reasons, cell.surprise ? ` ${cell.surprise}` : "");
}

function charts(cell) {
  const lines = (points) => cell.runs.map((run, k) => ({ points: points(run), style: seedStyle(k), label: `seed ${run.seed}` }));
  const found = [chart("Exact match over input size n", lines((run) => run.exact), { logarithmic: true, top: 1, trainMax: cell.train_max })];
  for (const { curve, index, title } of study.growth) {
    const heading = `${title} up to input size n`;
    const iota = cell.runs.map((run) => shown(run.iota[index])).join(", ");
    const declared = cell.declared[curve].filter(([n]) => n <= cell.train_max);
    found.push(cell.runs.some((run) => run.growth[curve].length)
      ? chart(`${heading}; ι = ${iota}`, lines((run) => run.growth[curve]), { declared })
      : element("div", {}, element("h4", {}, heading), element("p", { class: "none" }, "Not measured: no run of this cell is accurate in range and probed.")));
  }
  return found;
}

function seedKey(cell) {
  const entries = cell.runs.map((run, k) =>
    element("span", {}, drawnSwatch(k), ` seed ${run.seed === null ? "?" : run.seed}`));
  return element("p", { class: "legend" }, ...entries,
    element("span", {}, "shaded: trained on; band: 95 % interval; dotted: what the task’s circuit declares"));
}

function drawnSwatch(place) {
  return drawn("svg", { width: 30, height: 8, viewBox: "0 0 30 8", "aria-hidden": "true" },
    drawn("path", { d: "M0 4H30", class: `line ${seedStyle(place)}` }));
}

function seedTable(cell) {
  const heads = ["seed", "ended", "accurate in range", "in range", ...study.multiples.map((m) => `at ${m}×`), ...study.indices.map(({ label }) => label), "steps"];
  const row = (run) => [
    run.seed === null ? "?" : String(run.seed), run.status || "–", run.accurate === null ? "–" : run.accurate ? "yes" : "no",
    shown(run.in_range_exact_match, 3), ...study.multiples.map((m) => shown(run.at[m], 3)),
    ...study.indices.map(({ name }) => shown(run.iota[name])), shown(run.steps, 0),
  ];
  const line = (run) => element("tr", {}, ...row(run).map((text, k) => element("td", k < 3 ? {} : { class: "number" }, text)));
  const table = element("table", { class: "sortable", id: "seeds" },
    element("thead", {}, element("tr", {}, ...heads.map((text, k) => element("th", { scope: "col", "aria-sort": "none", ...(k < 3 ? {} : { class: "number" }) }, element("button", { type: "button" }, text))))),
    element("tbody", {}, ...cell.runs.map(line)));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Seeds" }, table);
}

// Seeds that learned the same are named together.
function learned(cell) {
  const seeds = new Map();
  for (const run of cell.runs.filter((one) => one.learned.length)) {
    const words = JSON.stringify(run.learned);
    seeds.set(words, [...(seeds.get(words) || []), run.seed]);
  }
  return [...seeds].flatMap(([words, found]) => [
    element("h4", {}, `What seed ${found.join(", ")} learned to attend to`),
    element("ul", {}, ...JSON.parse(words).map((text) => element("li", {}, text))),
  ]);
}

function troubles(cell) {
  const texts = cell.runs.flatMap((run) => [run.reason, run.refused].filter(Boolean).map((text) => `Seed ${run.seed}: ${text}.`));
  return texts.map((text) => element("p", { class: "trouble" }, text));
}

// -- charts ---------------------------------------------------------------------------------------------------------

const WIDTH = 340, HEIGHT = 200, LEFT = 38, RIGHT = 10, TOP = 12, BOTTOM = 30;

function chart(title, lines, { logarithmic = false, top = null, trainMax = null, declared = [] } = {}) {
  const all = [...lines.flatMap((line) => line.points), ...declared];
  const box = element("div", {}, element("h4", {}, title));
  if (!all.length) {
    box.append(element("p", { class: "none" }, "Nothing was measured."));
    return box;
  }
  const scales = all.map(([n]) => n);
  const x = horizontal(Math.min(...scales), Math.max(...scales), logarithmic);
  const ceiling = top === null ? niceCeiling(Math.max(...all.map(([, value]) => value))) : top;
  const y = (value) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value / ceiling);
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
  if (trainMax) svg.append(drawn("rect", { class: "range", x: LEFT, y: TOP, width: Math.max(0, x(trainMax) - LEFT), height: HEIGHT - TOP - BOTTOM }));
  svg.append(...axes(x, y, scales, ceiling));
  if (declared.length) svg.append(drawn("path", { class: "declared", d: path(declared, x, y) }));
  for (const line of lines) svg.append(...curve(line, x, y));
  box.append(svg);
  return box;
}

function horizontal(first, last, logarithmic) {
  const along = logarithmic ? Math.log : (n) => n;
  const span = along(last) - along(first) || 1;
  return (n) => LEFT + 4 + (WIDTH - LEFT - RIGHT - 8) * ((along(n) - along(first)) / span);
}

function niceCeiling(value) {
  const unit = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 4, 5, 10].map((factor) => factor * unit).find((bound) => bound >= value);
}

function axes(x, y, scales, ceiling) {
  const parts = [0, 0.5, 1].flatMap((share) => [
    drawn("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(share * ceiling), y2: y(share * ceiling) }),
    drawn("text", { class: "tick", x: LEFT - 6, y: y(share * ceiling) + 4, "text-anchor": "end" }, String(share * ceiling)),
  ]);
  let right = -Infinity;
  for (const n of [...new Set(scales)].sort((a, b) => a - b)) {
    const width = 7 * String(n).length + 8;
    if (x(n) - width / 2 < right) continue;
    right = x(n) + width / 2;
    parts.push(drawn("text", { class: "tick", x: x(n), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, String(n)));
  }
  return [...parts, drawn("path", { class: "axis", d: `M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${WIDTH - RIGHT}` })];
}

const path = (points, x, y) => points.map(([n, value], k) => `${k ? "L" : "M"}${x(n).toFixed(1)} ${y(value).toFixed(1)}`).join("");

function curve({ points, style, label }, x, y) {
  if (!points.length) return [];
  const banded = points.filter(([, , low, high]) => low !== null && high !== null);
  const upper = banded.map(([n, , , high]) => [n, high]), lower = banded.map(([n, , low]) => [n, low]).reverse();
  const band = banded.length > 1 ? [drawn("path", { class: `band ${style}`, d: path([...upper, ...lower], x, y) + "Z" })] : [];
  const dots = points.map(([n, value, low, high]) => {
    const interval = low === null || high === null ? "" : ` (${shown(low)} to ${shown(high)})`;
    return drawn("circle", { class: `dot ${style}`, cx: x(n).toFixed(1), cy: y(value).toFixed(1), r: 3 },
      drawn("title", {}, `${label}, n = ${n}: ${+value.toFixed(4)}${interval}`));
  });
  return [...band, drawn("path", { class: `line ${style}`, d: path(points, x, y) }), ...dots];
}

// -- start ----------------------------------------------------------------------------------------------------------

document.addEventListener("click", (event) => {
  const cell = event.target.closest("button.cell");
  if (cell) chooseCell(cell, true);
});
document.addEventListener("change", (event) => {
  if (event.target.name === "multiple") chooseMultiple(event.target.value);
});
document.addEventListener("keydown", moveInMatrix);

const first = document.querySelector("button.cell");
if (first) chooseCell(first, false);
openAddressed();
window.addEventListener("hashchange", openAddressed);
