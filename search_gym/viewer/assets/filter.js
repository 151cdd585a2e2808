// Which dialogues are listed, and in which order.

const FACETS = {
  algorithm: { label: "Algorithm", of: (dialogue) => dialogue.origin.algorithm || null },
  seed: { label: "Seed", of: (dialogue) => dialogue.origin.seed },
  file: { label: "File", of: (dialogue) => dialogue.origin.file },
  em: { label: "Exact match", of: (dialogue) => rightness(dialogue) },
  searches: { label: "Searches", of: (dialogue) => dialogue.searches },
  end: { label: "End", of: (dialogue) => dialogue.end, name: (value) => ENDS[value] ?? value },
};
const RANGES = {
  step: { label: "Step", of: (dialogue) => dialogue.origin.step },
  reward: { label: "Reward", of: (dialogue) => dialogue.reward },
};
const FILTERS = [
  ...Object.keys(FACETS),
  ...Object.keys(RANGES).flatMap((name) => [`${name}-from`, `${name}-to`]),
  "question",
];
const SORTS = {
  file: { label: "file and line", of: (dialogue) => dialogue.index },
  question: { label: "question", of: (dialogue) => dialogue.question },
  step: { label: "step", of: (dialogue) => dialogue.origin.step },
  reward: { label: "reward", of: (dialogue) => dialogue.reward },
  f1: { label: "F1", of: (dialogue) => dialogue.f1 },
  searches: { label: "searches", of: (dialogue) => dialogue.searches },
  length: { label: "length", of: (dialogue) => dialogue.text.length },
};
for (const [name, label] of Object.entries(MEASURES)) {
  if (isMeasured(name)) SORTS[name] = { label: `mean ${label.toLowerCase()}`, of: (dialogue) => meanOf(dialogue, name) };
}

function rightness(dialogue) {
  if (dialogue.em === null) return null;
  return dialogue.em > 0 ? "right" : "wrong";
}

/** The values of a facet, each with how many dialogues have it, in order. */
function facetValues(name) {
  const counts = new Map();
  for (const dialogue of dialogues) {
    const value = String(FACETS[name].of(dialogue) ?? "unknown");
    counts.set(value, (counts.get(value) ?? 0) + 1);
  }
  return [...counts].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
}

/** What finds the query in a text, whatever its case; null where there is no query. */
function queryPattern(flags = "i") {
  const query = state.q.trim();
  return query ? new RegExp(query.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&"), flags) : null;
}

function isWithin(name, dialogue) {
  const from = state[`${name}-from`];
  const to = state[`${name}-to`];
  if (from === "" && to === "") return true;
  const value = RANGES[name].of(dialogue);
  return value !== null && (from === "" || value >= Number(from)) && (to === "" || value <= Number(to));
}

/** The dialogues that the filters and the search leave, in order. */
function listed() {
  const facets = Object.keys(FACETS).filter((name) => state[name] !== "");
  const ranges = Object.keys(RANGES);
  const pattern = queryPattern();
  const found = dialogues.filter(
    (dialogue) =>
      facets.every((name) => String(FACETS[name].of(dialogue) ?? "unknown") === state[name]) &&
      ranges.every((name) => isWithin(name, dialogue)) &&
      (state.question === "" || dialogue.question === state.question) &&
      (pattern === null || pattern.test(dialogue.question) || pattern.test(dialogue.text)),
  );
  return sorted(found);
}

/** In the chosen order; what has no value comes last either way. */
function sorted(found) {
  const { of } = SORTS[state.sort] ?? SORTS.file;
  const sign = state.down ? -1 : 1;
  const keyed = found.map((dialogue) => [of(dialogue), dialogue]);
  keyed.sort(([a, x], [b, y]) => {
    if (a === b) return x.index - y.index;
    if (a === null || b === null) return a === null ? 1 : -1;
    return (a < b ? -1 : 1) * sign;
  });
  return keyed.map(([, dialogue]) => dialogue);
}
