// Inside a network: choose a token and a head of one sequence. It runs after common.js.

const inside = JSON.parse(document.getElementById("data").textContent);
const TOP = 4; // keys named for each head
const patterns = inside.patterns.map((text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)));
let query = inside.start, head = inside.head;

// Weights of keys up to the query only, one query after the other.
const weight = (which, i, j) => (j > i ? 0 : (inside.peak * patterns[which][(i * (i + 1)) / 2 + j]) / 255);
const shown = (value) => value.toFixed(2);
const place = (key) => `${inside.words[key]} (${key})`;

function tokenButtons() {
  return inside.words.map((word, at) => {
    const button = element("button", { type: "button", class: "token", "data-at": at, "aria-pressed": "false" },
      element("b", {}, word), element("small", {}, String(at)));
    if (inside.wrong.includes(at)) button.classList.add("wrong");
    return button;
  });
}

function headChoice() {
  return inside.heads.map((name, which) => {
    const input = element("input", { type: "radio", name: "head", value: which });
    input.checked = which === head;
    return element("label", {}, input, name);
  });
}

function show() {
  const reads = new Set(Object.values(inside.sources[query] || {}).flat());
  for (const button of document.querySelectorAll(".token")) {
    const at = Number(button.dataset.at), weightAt = weight(head, query, at);
    button.style.setProperty("--weight", Math.min(1, weightAt).toFixed(3));
    button.classList.toggle("source", reads.has(at));
    button.classList.toggle("later", at > query);
    button.setAttribute("aria-pressed", String(at === query));
    button.setAttribute("aria-label", `${inside.words[at]} at position ${at}` + (at > query ? "" : `, weight ${shown(weightAt)}`));
  }
  document.getElementById("panel-title").textContent = `From ${place(query)}`;
  document.getElementById("panel-body").replaceChildren(...panel());
  drawPattern();
}

function panel() {
  const written = inside.words[query + 1];
  const sources = Object.entries(inside.sources[query] || {});
  const first = sources.length
    ? `The circuit writes ${written} from ` + sources.map(([role, keys]) => `${role}: ${keys.map(place).join(", ")}`).join("; ") + "."
    : written === undefined ? "The sequence ends here." : `The next token is ${written}; no step of the answer.`;
  const columns = element("div", { class: "columns" },
    element("div", {}, element("h4", {}, "Each head's strongest keys"), bars()),
    element("div", {}, element("h4", {}, "What the stream would predict (logit lens)"), lens(written)));
  return [element("p", {}, first), columns];
}

function bars() {
  const reads = new Set(Object.values(inside.sources[query] || {}).flat());
  const rows = inside.heads.flatMap((name, which) => {
    const keys = [...Array(query + 1).keys()].sort((a, b) => weight(which, query, b) - weight(which, query, a)).slice(0, TOP);
    const kept = keys.filter((key, k) => k === 0 || weight(which, query, key) >= 0.05);
    const named = kept.map((key) => element("span", reads.has(key) ? { class: "source" } : {}, `${place(key)} ${shown(weight(which, query, key))}`));
    return [element("b", {}, name), element("div", { class: "top" }, ...named)];
  });
  return element("div", { class: "bars" }, ...rows);
}

function lens(written) {
  const rows = inside.lens.map((positions, layer) => {
    const cells = positions[query].map(([token, probability]) =>
      element("td", token === written ? { class: "right" } : {}, `${token} ${shown(probability)}`));
    return element("tr", {}, element("th", { scope: "row" }, layer ? `after layer ${layer - 1}` : "embedding"), ...cells);
  });
  const head = element("tr", {}, ...["", "1st", "2nd", "3rd"].slice(0, 1 + inside.lens[0][0].length).map((text) => element("th", { scope: "col" }, text)));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Logit lens" },
    element("table", { class: "sortable lens" }, element("thead", {}, head), element("tbody", {}, ...rows)));
}

// -- the whole pattern ----------------------------------------------------------------------------------------------

const cell = Math.max(3, Math.min(18, Math.floor(640 / inside.words.length)));

function drawPattern() {
  const canvas = document.getElementById("pattern"), size = inside.words.length * cell;
  canvas.width = size;
  canvas.height = size;
  const context = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  context.fillStyle = style.getPropertyValue("--paper");
  context.fillRect(0, 0, size, size);
  context.fillStyle = style.getPropertyValue("--seed0");
  for (let i = 0; i < inside.words.length; i++)
    for (let j = 0; j <= i; j++) {
      context.globalAlpha = Math.min(1, weight(head, i, j));
      context.fillRect(j * cell, i * cell, cell, cell);
    }
  context.globalAlpha = 1;
  context.strokeStyle = style.getPropertyValue("--seed1");
  for (const [i, roles] of Object.entries(inside.sources))
    for (const j of Object.values(roles).flat()) context.strokeRect(j * cell + 0.5, i * cell + 0.5, cell - 1, cell - 1);
  context.strokeStyle = style.getPropertyValue("--ink");
  context.strokeRect(0.5, query * cell + 0.5, size - 1, cell - 1);
}

// -- start ----------------------------------------------------------------------------------------------------------

function choose(at, move) {
  query = Math.max(0, Math.min(inside.words.length - 1, at));
  show();
  if (move) document.querySelector(`.token[data-at="${query}"]`).focus();
}

document.addEventListener("click", (event) => {
  const token = event.target.closest(".token");
  if (token) choose(Number(token.dataset.at), false);
  if (event.target.id === "pattern") choose(Math.floor(event.offsetY / cell), false);
});
document.addEventListener("change", (event) => {
  if (event.target.name !== "head") return;
  head = Number(event.target.value);
  show();
});
document.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step || !event.target.closest(".token")) return;
  event.preventDefault();
  choose(query + step, true);
});

document.getElementById("tokens").append(...tokenButtons());
document.getElementById("choice").append(...headChoice());
show();
