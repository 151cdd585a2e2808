// One dialogue: its question and scores, then what each party wrote, block by block.

/** The whole of a dialogue as an article. */
function article(dialogue, label) {
  const text = element("div", { class: "dialogue", role: "group", tabindex: "0", "aria-label": textLabel(dialogue) });
  text.append(...spansOf(dialogue).map((span, place) => block(dialogue, span, place)));
  return element("article", { class: "pane", "aria-label": label, children: [head(dialogue, label), text] });
}

function textLabel(dialogue) {
  return dialogue.tokens ? "Text. The left and right arrow keys step through the tokens of the policy." : "Text";
}

/** Question, answers, scores and origin. */
function head(dialogue, label) {
  const { origin } = dialogue;
  const answer = element("dd", { dir: "auto", text: dialogue.answer ?? "none" });
  const mark = rightMark(dialogue);
  if (mark) answer.append(" ", mark);
  const scores = [
    dialogue.reward === null ? "" : `reward ${shown(dialogue.reward)}`,
    dialogue.f1 === null ? "" : `F1 ${shown(dialogue.f1)}`,
    counted(dialogue.searches, "search", "searches"),
    ENDS[dialogue.end] ?? dialogue.end,
    dialogue.tokens ? counted(dialogue.lengths.length, "token") : "",
  ];
  const place = [
    origin.algorithm,
    origin.step === null ? "" : `step ${origin.step}`,
    origin.seed === null ? "" : `seed ${origin.seed}`,
    `${origin.file}, line ${origin.line}`,
  ];
  return element("header", {
    children: [
      element("h2", { tabindex: "-1", dir: "auto", text: dialogue.question || "No question was recorded" }),
      element("dl", {
        children: [element("dt", { text: "Answer" }), answer, element("dt", { text: "Accepted" }), accepted(dialogue)],
      }),
      element("p", { class: "scores", text: scores.filter(Boolean).join(" \u00b7 ") }),
      element("p", { class: "origin", text: `${state.with ? `${label}: ` : ""}${place.filter(Boolean).join(" \u00b7 ")}`, children: siblings(dialogue) }),
    ],
  });
}

const FEW = 4;

/** The accepted answers; of many, the first, and the others when asked for. */
function accepted({ golds }) {
  const shownFirst = golds.slice(0, FEW).join(" / ") || "not recorded";
  if (golds.length <= FEW) return element("dd", { dir: "auto", text: shownFirst });
  const more = element("button", { type: "button", class: "link", text: `and ${golds.length - FEW} more` });
  const made = element("dd", { dir: "auto", text: `${shownFirst} `, children: [more] });
  more.addEventListener("click", () => made.replaceChildren(golds.join(" / ")));
  return made;
}

/** A button for the other dialogues of the same question; none where there are none. */
function siblings(dialogue) {
  const count = dialogues.filter((other) => other.question === dialogue.question).length;
  if (count < 2 || !dialogue.question) return [];
  const on = state.question !== "";
  const text = on ? "Show all questions" : `Show all ${count.toLocaleString("en")} of this question`;
  const button = element("button", { type: "button", class: "link", text });
  button.addEventListener("click", () => update({ question: on ? "" : dialogue.question }));
  return [" ", button];
}

/** What one party wrote, under a heading that folds it. */
function block(dialogue, span, place) {
  const { kind, note, pieces } = span;
  const size = dialogue.tokens ? counted(pieces.length, "token") : "";
  const title = [KINDS[kind], note, size].filter(Boolean).join(" \u00b7 ");
  const button = element("button", { type: "button", class: "heading", children: [
    element("span", { class: "title", text: title }),
    element("span", { class: "preview", text: previewOf(pieces), "aria-hidden": "true" }),
  ] });
  const body = element("div", { class: "body", dir: "auto" });
  const made = element("section", { class: `block ${kind}`, "data-kind": kind, "data-place": place });
  made.append(element("h3", { children: [button] }), body);
  made.setFolded = (folded) => {
    button.setAttribute("aria-expanded", String(!folded));
    body.hidden = folded;
    if (!folded && !body.hasChildNodes()) body.append(...texts(dialogue, span));
  };
  made.setFolded(kind === "prompt" || (kind === "retrieved" && state.fold !== ""));
  button.addEventListener("click", () => {
    made.setFolded(!body.hidden);
    highlightMatches();
  });
  return made;
}

/** The beginning of a block, in one line. */
function previewOf(pieces) {
  let text = "";
  for (let place = 0; place < pieces.length && text.length < 300; place += 1) text += pieces[place];
  return text.slice(0, 300).replace(/\s+/g, " ").trim();
}

/** The text of a block: an element for each token, or in one piece where tokens are not known. */
function texts(dialogue, { kind, begin, pieces, first }) {
  if (!dialogue.tokens) return pieces.flatMap(withEdges);
  const inner = pieces.map((text) => text.trim() !== "");
  const [from, to] = [inner.indexOf(true), inner.lastIndexOf(true)];
  return pieces.map((text, number) => {
    const token = document.createElement("span");
    token.className = `t ${looksOf(text)} ${number < from || number > to ? "edge" : ""}`;
    token.textContent = text;
    token.piece = { dialogue, kind, text, position: begin + number, place: first + number };
    paint(token);
    return token;
  });
}

/** What the style must know of a token that would not be seen. */
function looksOf(text) {
  if (text === "") return "part";
  return text.trim() === "" && text.includes("\n") ? "newline" : "";
}

/** A text, with the white space at its ends in elements of their own. */
function withEdges(text) {
  const [, before, middle, after] = text.match(/^(\s*)(.*?)(\s*)$/s);
  return [element("span", { class: "edge", text: before }), middle, element("span", { class: "edge", text: after })];
}

const MOST = 1000;

/** Mark where the query stands in what is shown, without a change of the document. */
function highlightMatches() {
  if (!("highlights" in CSS)) return;
  const pattern = queryPattern("gi");
  const bodies = pattern ? [...document.querySelectorAll(".pane .body:not([hidden]), .pane h2")] : [];
  const ranges = bodies.flatMap((body) => matchesIn(body, pattern));
  CSS.highlights.set("match", new Highlight(...ranges.slice(0, MOST)));
}

function matchesIn(body, pattern) {
  const nodes = [];
  const walker = document.createTreeWalker(body, NodeFilter.SHOW_TEXT);
  let text = "";
  while (walker.nextNode()) {
    nodes.push({ node: walker.currentNode, start: text.length });
    text += walker.currentNode.data;
  }
  return [...text.matchAll(pattern)].map((match) => {
    const range = new Range();
    range.setStart(...placeIn(nodes, match.index));
    range.setEnd(...placeIn(nodes, match.index + match[0].length - 1, 1));
    return range;
  });
}

/** The text node at an offset of the text that they make together, and the offset in it. */
function placeIn(nodes, offset, after = 0) {
  const { node, start } = nodes.findLast((candidate) => candidate.start <= offset && candidate.node.length > 0);
  return [node, offset - start + after];
}
