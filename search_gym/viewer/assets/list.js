// The list. Only the rows that are in view are in the document, so thousands of dialogues scroll like a few.

const list = document.getElementById("list");
const countLine = document.getElementById("count");
const TOLD = new Set(["algorithm", "step", "seed"].filter(differs));
const ROW = TOLD.size ? 84 : 64;
const SPARE = 4;
const canvas = element("div", { class: "canvas", role: "presentation" });
let rows = [];
let drawn = "";

/** The list anew: after a change of what is listed, or of its order. */
function refreshList() {
  rows = listed();
  canvas.style.height = `${rows.length * ROW}px`;
  const all = counted(dialogues.length, "dialogue");
  countLine.textContent = rows.length === dialogues.length ? all : `${rows.length.toLocaleString("en")} of ${all}`;
  list.replaceChildren(rows.length ? canvas : emptyList());
  list.scrollTop = 0;
  drawn = "";
  drawRows();
}

function emptyList() {
  const clear = element("button", { type: "button", text: "Clear search and filters" });
  clear.addEventListener("click", clearFilters);
  return element("div", { class: "empty", role: "presentation", children: [element("p", { text: "Nothing matches." }), clear] });
}

/** Put the rows in view into the document, and take the others out. */
function drawRows() {
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - SPARE);
  const last = Math.min(rows.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + SPARE);
  const wanted = `${first} ${last} ${state.at} ${state.with}`;
  if (wanted === drawn) return;
  drawn = wanted;
  canvas.replaceChildren(...rows.slice(first, last).map((dialogue, place) => row(dialogue, first + place)));
  const active = canvas.querySelector("[aria-selected=true]");
  if (active) list.setAttribute("aria-activedescendant", active.id);
  else list.removeAttribute("aria-activedescendant");
}

function row(dialogue, place) {
  const question = element("span", { class: "question", dir: "auto", text: dialogue.question || dialogue.key });
  const made = element("div", {
    class: "row",
    role: "option",
    id: `row-${dialogue.index}`,
    "aria-selected": String(dialogue.key === state.at),
    "aria-setsize": rows.length,
    "aria-posinset": place + 1,
    children: [question, facts(dialogue), ...(TOLD.size ? [originLine(dialogue)] : [])],
  });
  if (dialogue.key === state.with) made.classList.add("pinned");
  made.style.transform = `translateY(${place * ROW}px)`;
  made.style.height = `${ROW}px`;
  made.addEventListener("click", () => open(dialogue));
  return made;
}

/** Whether something of the origin tells dialogues of the page apart. */
function differs(name) {
  return dialogues.some(({ origin }) => origin[name] !== dialogues[0].origin[name]);
}

/** The second line of a row. */
function facts(dialogue) {
  const said = [
    dialogue.reward === null ? "" : `reward ${shown(dialogue.reward)}`,
    counted(dialogue.searches, "search", "searches"),
    dialogue.end === "answered" ? "" : (ENDS[dialogue.end] ?? dialogue.end),
  ];
  const mark = rightMark(dialogue);
  return element("span", { class: "facts", children: [...(mark ? [mark] : []), said.filter(Boolean).join(" \u00b7 ")] });
}

/** The third line of a row, where there is one: what tells the dialogue's origin from others. */
function originLine({ origin }) {
  const said = [
    TOLD.has("algorithm") ? origin.algorithm : "",
    TOLD.has("step") && origin.step !== null ? `step ${origin.step}` : "",
    TOLD.has("seed") && origin.seed !== null ? `seed ${origin.seed}` : "",
  ];
  return element("span", { class: "facts", text: said.filter(Boolean).join(" \u00b7 ") });
}

/** Whether the answer is right, by a sign, a word and a colour; null where that is not known. */
function rightMark(dialogue) {
  const right = rightness(dialogue);
  if (right === null) return null;
  return element("span", { class: `mark ${right}`, text: right === "right" ? "\u2713 right" : "\u2717 wrong" });
}

/** Show a dialogue; on a narrow screen in place of the list. */
function open(dialogue) {
  update({ at: dialogue.key, open: "1" }, { push: isNarrow() });
}

/** Show the dialogue so many rows further on. */
function step(count) {
  if (!rows.length) return;
  const now = rows.findIndex((dialogue) => dialogue.key === state.at);
  const next = now < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, now + count));
  update({ at: rows[next].key });
}

/** Scroll the list to the dialogue that is shown, if it is listed. */
function revealSelected() {
  const place = rows.findIndex((dialogue) => dialogue.key === state.at);
  if (place < 0) return;
  const top = place * ROW;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
}

function isNarrow() {
  return matchMedia("(max-width: 56rem)").matches;
}
