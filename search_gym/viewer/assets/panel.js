// The dialogue that is shown, or two of them side by side, and the tools above.

const panes = document.getElementById("panes");
const legend = document.getElementById("legend");
const colourField = document.getElementById("colour");
const compareButton = document.getElementById("compare");
const foldButton = document.getElementById("fold");

function buildPanel() {
  colourField.append(element("option", { value: "kind", text: "kind" }));
  for (const [value, label] of Object.entries(MEASURES)) {
    const known = isMeasured(value);
    const option = element("option", { value, text: known ? label.toLowerCase() : `${label.toLowerCase()} (not recorded)` });
    option.disabled = !known;
    colourField.append(option);
  }
  colourField.addEventListener("change", () => update({ colour: colourField.value }));
  compareButton.addEventListener("click", toggleCompare);
  foldButton.addEventListener("click", toggleFold);
  document.getElementById("previous").addEventListener("click", () => step(-1));
  document.getElementById("next").addEventListener("click", () => step(1));
  document.getElementById("back").addEventListener("click", closeDialogue);
  watchTokens(panes);
}

/** The dialogues anew: after another one was chosen. */
function drawPanes() {
  const [left, right] = [pinned(), selected()];
  hideTip();
  panes.classList.toggle("two", left !== null);
  if (left === null) panes.replaceChildren(right === null ? hint("No dialogue is chosen.") : article(right, "Dialogue"));
  else panes.replaceChildren(article(left, "Kept"), secondPane(left, right));
  highlightMatches();
}

function secondPane(left, right) {
  if (right !== null && right !== left) return article(right, "Compared");
  return hint("Choose a second dialogue: in the list, or by j and k.");
}

function hint(text) {
  return element("p", { class: "pane hint", text });
}

/** Colours anew, in place. */
function recolour() {
  for (const token of panes.querySelectorAll(".t")) paint(token);
  drawLegend(legend);
}

/** Show the state in the tools. */
function syncPanel() {
  const colour = state.colour in SCALES && isMeasured(state.colour) ? state.colour : "kind";
  colourField.value = colour;
  document.body.dataset.colour = colour;
  compareButton.setAttribute("aria-pressed", String(pinned() !== null));
  foldButton.setAttribute("aria-pressed", String(state.fold !== ""));
  document.body.classList.toggle("open", state.open !== "");
}

function refold() {
  for (const made of panes.querySelectorAll(".block.retrieved")) made.setFolded(state.fold !== "");
  highlightMatches();
}

function toggleCompare() {
  update({ with: state.with === "" ? state.at : "" });
}

function toggleFold() {
  update({ fold: state.fold === "" ? "1" : "" });
}

/** On a narrow screen, back to the list. */
function closeDialogue() {
  update({ open: "" });
  list.focus({ preventScroll: true });
}
