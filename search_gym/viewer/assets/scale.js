// From values to colours. The ends of a scale are the same for all dialogues of the page, so that they compare.

const SCALES = {
  ratio: { diverging: true, centre: 1, forward: Math.log, back: Math.exp },
  advantage: { diverging: true, centre: 0, forward: (value) => value, back: (value) => value },
  entropy: { diverging: false, forward: (value) => value, back: (value) => value },
  logprob: { diverging: false, forward: (value) => -value, back: (value) => -value },
};
const ENOUGH = 200000;
// A colour that nobody sees is not underlined either.
const FAINT = 0.04;
const limits = new Map();

/** How far from its centre a scale reaches: 98 % of all values lie within. */
function limitOf(name) {
  if (!limits.has(name)) limits.set(name, percentile(sizes(name), 0.98) || 1);
  return limits.get(name);
}

/** How far values lie from the centre; of very many, some of each dialogue. */
function sizes(name) {
  const found = [];
  const most = Math.ceil(ENOUGH / dialogues.length);
  for (const dialogue of dialogues) {
    const values = [dialogue.values[name] ?? []].flat();
    const stride = Math.ceil(values.length / most);
    for (let place = 0; place < values.length; place += stride) {
      const size = values[place] === null ? NaN : Math.abs(SCALES[name].forward(values[place]));
      if (Number.isFinite(size)) found.push(size);
    }
  }
  return Float64Array.from(found).sort();
}

function percentile(ascending, share) {
  return ascending[Math.min(ascending.length - 1, Math.floor(share * ascending.length))];
}

/** The side of the scale that a value is on, and how far out, from 0 to 1; null where there is no value. */
function shadeOf(name, value) {
  if (value === undefined || !(name in SCALES)) return null;
  const scale = SCALES[name];
  const moved = scale.forward(value);
  const share = Math.min(1, Math.abs(moved) / limitOf(name));
  if (!scale.diverging) return { side: "more", share };
  return { side: moved < 0 ? "low" : "high", share };
}

/** Colour a token by the chosen measure. */
function paint(token) {
  const { dialogue, kind, place } = token.piece;
  const value = kind === "policy" ? valueOf(dialogue, state.colour, place) : undefined;
  const shade = shadeOf(state.colour, value);
  token.classList.remove("low", "high", "more", "faint");
  if (shade === null) return token.style.removeProperty("--share");
  token.classList.add(shade.side);
  token.classList.toggle("faint", shade.share < FAINT);
  token.style.setProperty("--share", `${Math.round(shade.share * 70)}%`);
}

/** What the colours mean. */
function drawLegend(legend) {
  const name = state.colour;
  if (!(name in SCALES)) {
    const named = Object.entries(KINDS).filter(([kind]) => kind !== "unknown");
    legend.replaceChildren(...named.map(([kind, label]) => element("span", { class: `swatch ${kind}`, text: label })));
    return;
  }
  const { diverging, centre, back } = SCALES[name];
  const limit = limitOf(name);
  const ends = diverging ? [shown(back(-limit)), shown(centre), shown(back(limit))] : ["0", shown(back(limit))];
  ends[ends.length - 1] = `${name === "logprob" ? "\u2264" : "\u2265"} ${ends.at(-1)}`;
  if (diverging) ends[0] = `\u2264 ${ends[0]}`;
  legend.replaceChildren(
    element("span", { class: `bar ${diverging ? "diverging" : "sequential"}`, "aria-hidden": "true" }),
    element("span", { class: "ends", children: ends.map((end) => element("span", { text: end })) }),
  );
}
