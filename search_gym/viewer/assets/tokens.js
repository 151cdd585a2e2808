// The values of a token: under the pointer, and with the keyboard.

const tip = document.getElementById("tip");

/** What is known of a token, as pairs of a name and a value. */
function detailsOf({ dialogue, kind, text, position, place }) {
  const details = [
    ["Text", text === "" ? "a part of the next character" : JSON.stringify(text)],
    ["Kind", kind === "policy" ? "policy" : `${KINDS[kind].toLowerCase()}, not trained on`],
    ["Position", String(position)],
  ];
  if (kind !== "policy") return details;
  for (const [name, label] of Object.entries(MEASURES)) {
    const value = valueOf(dialogue, name, place);
    if (value !== undefined) details.push([label, shown(value, 5)]);
    if (value !== undefined && name === "logprob") details.push(["Probability", shown(Math.exp(value))]);
  }
  return details;
}

function showTip(token) {
  const pairs = detailsOf(token.piece).flatMap(([name, value]) => [element("dt", { text: name }), element("dd", { text: value })]);
  tip.replaceChildren(element("dl", { children: pairs }));
  tip.hidden = false;
  const box = token.getClientRects()[0] ?? token.getBoundingClientRect();
  const left = Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
  const under = box.bottom + 6 + tip.offsetHeight < document.documentElement.clientHeight;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${under ? box.bottom + 6 : box.top - tip.offsetHeight - 6}px`;
}

function hideTip() {
  tip.hidden = true;
}

/** Give the focus to a token. It can be reached so alone: hundreds of tab stops would bar the way. */
function focusToken(token) {
  token.tabIndex = -1;
  token.setAttribute("aria-describedby", tip.id);
  token.focus();
}

/** The policy's token before or after the one that has the focus; the first where none has. */
function tokenBeside(text, direction) {
  const tokens = [...text.querySelectorAll(".block.policy .body:not([hidden]) .t")];
  const now = tokens.indexOf(document.activeElement);
  return now < 0 ? tokens[0] : tokens[now + direction];
}

function watchTokens(panes) {
  panes.addEventListener("mouseover", ({ target }) => {
    if (target.piece) showTip(target);
    else if (!document.activeElement?.piece) hideTip();
  });
  panes.addEventListener("mouseleave", hideTip);
  panes.addEventListener("scroll", hideTip, { capture: true, passive: true });
  panes.addEventListener("click", ({ target }) => {
    if (target.piece && getSelection().isCollapsed) focusToken(target);
  });
  panes.addEventListener("focusin", ({ target }) => (target.piece ? showTip(target) : hideTip()));
  panes.addEventListener("focusout", ({ target }) => {
    if (!target.piece) return;
    target.removeAttribute("tabindex");
    target.removeAttribute("aria-describedby");
    hideTip();
  });
  panes.addEventListener("keydown", (event) => {
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const text = event.target.closest(".dialogue");
    if (!direction || !text || event.target.closest("button")) return;
    const token = tokenBeside(text, direction);
    if (!token) return;
    event.preventDefault();
    focusToken(token);
  });
}
