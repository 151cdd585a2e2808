// The keyboard.

const help = document.getElementById("help");
const KEYS = {
  j: () => moveOn(1),
  k: () => moveOn(-1),
  c: toggleCompare,
  f: toggleFold,
  "/": () => queryField.focus(),
  "?": () => help.showModal(),
};
const LIST_KEYS = {
  ArrowDown: () => step(1),
  ArrowUp: () => step(-1),
  PageDown: () => step(Math.max(1, Math.floor(list.clientHeight / ROW) - 1)),
  PageUp: () => step(-Math.max(1, Math.floor(list.clientHeight / ROW) - 1)),
  Home: () => step(-rows.length),
  End: () => step(rows.length),
  Enter: enterDialogue,
};

/** The next dialogue, with the list in focus, whose active row a screen reader reads. */
function moveOn(count) {
  step(count);
  list.focus({ preventScroll: true });
}

function enterDialogue() {
  if (selected() === null) return;
  if (state.open === "") update({ open: "1" }, { push: isNarrow() });
  panes.querySelector(".pane:last-child h2")?.focus();
}

function isTyping(target) {
  return target.matches("input, select, textarea");
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  if (event.key === "Escape") return leave(event);
  if (isTyping(event.target)) return;
  const inList = event.target === list || event.target === document.body;
  const action = (inList && LIST_KEYS[event.key]) || KEYS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

/** Out of a field, a token or, on a narrow screen, the dialogue. */
function leave(event) {
  if (!tip.hidden) return hideTip();
  if (event.target === queryField) queryField.value = "";
  if (event.target === queryField) update({ q: "" });
  if (isTyping(event.target)) return list.focus({ preventScroll: true });
  if (state.open !== "" && isNarrow()) closeDialogue();
}

function watchKeys() {
  document.addEventListener("keydown", onKey);
  document.getElementById("help-button").addEventListener("click", () => help.showModal());
}
