// The dialogues of the page, and what is known of each token.

const data = JSON.parse(document.getElementById("data").textContent);
const dialogues = data.dialogues;
const byKey = new Map();
for (const [index, dialogue] of dialogues.entries()) {
  dialogue.index = index;
  dialogue.key = `${dialogue.origin.file}:${dialogue.origin.line}`;
  byKey.set(dialogue.key, dialogue);
}

const KINDS = { policy: "Policy", retrieved: "Retrieved", notice: "Notice", prompt: "Prompt", unknown: "Dialogue" };
const ENDS = { answered: "answered", turns: "out of turns", context: "context full", "no answer": "no answer" };
const MEASURES = {
  ratio: "Importance ratio",
  advantage: "Advantage",
  entropy: "Entropy",
  logprob: "Log-prob",
};

/** Whether any dialogue of the page has a measure. */
function isMeasured(name) {
  return dialogues.some((dialogue) => name in dialogue.values);
}

/** The value of the policy's token number `place`; undefined where none was recorded. */
function valueOf(dialogue, name, place) {
  const values = dialogue.values[name];
  return (Array.isArray(values) ? values[place] : values) ?? undefined;
}

/** The mean of a measure over a dialogue; null where there is none. */
function meanOf(dialogue, name) {
  const values = dialogue.values[name];
  if (!Array.isArray(values)) return values ?? null;
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

/** The spans of a dialogue with the texts of their pieces, and the number of the first policy token in each. */
function spansOf(dialogue) {
  let start = 0;
  let place = 0;
  return dialogue.spans.map(([kind, begin, end, note]) => {
    const pieces = dialogue.lengths.slice(begin, end).map((length) => {
      start += length;
      return dialogue.text.slice(start - length, start);
    });
    const first = place;
    if (kind === "policy") place += pieces.length;
    return { kind, begin, note, pieces, first };
  });
}

/** A number for people: as many digits as tell values apart, and a real minus sign. */
function shown(value, digits = 3) {
  if (value === null || value === undefined) return "\u2013";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 0.001 || size >= 100000) ? value.toExponential(2) : String(+value.toFixed(size < 10 ? digits : 1));
  return text.replaceAll("-", "\u2212");
}

/** A count with its noun. */
function counted(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

/** An element with text and attributes; text is never read as HTML. */
function element(tag, { text, children = [], ...attributes } = {}) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
