// What is shown. All of it stands in the hash of the URL, so that a view can be kept, sent and linked to.

const DEFAULTS = {
  q: "",
  algorithm: "",
  seed: "",
  file: "",
  em: "",
  searches: "",
  end: "",
  question: "",
  "step-from": "",
  "step-to": "",
  "reward-from": "",
  "reward-to": "",
  sort: "file",
  down: "",
  colour: "kind",
  fold: "",
  at: "",
  with: "",
  open: "",
};
const state = { ...DEFAULTS };
const listeners = [];

/** Take a hash as the state; names that it lacks, or that are no state, count for nothing. */
function readHash() {
  const given = new URLSearchParams(location.hash.slice(1));
  const changes = {};
  for (const [name, value] of Object.entries(DEFAULTS)) changes[name] = given.get(name) ?? value;
  apply(changes);
}

/** Change the state, the hash and what is shown. With `push` the browser's back button leads back. */
function update(changes, { push = false } = {}) {
  const hash = hashOf({ ...state, ...changes });
  if (push) history.pushState(null, "", hash);
  else history.replaceState(null, "", hash);
  apply(changes);
}

/** The hash for a state: what differs from the defaults. */
function hashOf(wanted) {
  const set = Object.entries(wanted).filter(([name, value]) => value !== DEFAULTS[name]);
  return `#${new URLSearchParams(set)}`;
}

function apply(changes) {
  const changed = new Set(Object.keys(changes).filter((name) => state[name] !== changes[name]));
  Object.assign(state, changes);
  for (const listener of listeners) listener(changed);
}

/** Be told the set of names whenever some of the state changes. */
function onChange(listener) {
  listeners.push(listener);
}

/** The dialogue that is shown; null where there is none. */
function selected() {
  return byKey.get(state.at) ?? null;
}

/** The dialogue that others are compared with; null where there is none. */
function pinned() {
  return byKey.get(state.with) ?? null;
}
