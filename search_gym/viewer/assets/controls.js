// The search field, the filters and the order of the list: built from the data, kept to the state.

const queryField = document.getElementById("query");
const facetFields = document.getElementById("facets");
const sortField = document.getElementById("sort");
const downButton = document.getElementById("down");
const SETTLED = 120;

/** A menu of the values of a facet; null where all dialogues have the same, for it would tell nothing apart. */
function facetMenu(name) {
  const values = facetValues(name);
  if (values.length < 2) return null;
  const { label, name: named = (value) => value } = FACETS[name];
  const menu = element("select", { "data-state": name, children: [element("option", { value: "", text: "all" })] });
  for (const [value, count] of values) menu.append(element("option", { value, text: `${named(value)} (${count})` }));
  menu.addEventListener("change", () => update({ [name]: menu.value }));
  return element("label", { text: label, children: [menu] });
}

/** Two fields for the ends of a range; null where no two dialogues differ. */
function rangeFields(name) {
  const { label, of } = RANGES[name];
  const values = dialogues.map(of).filter((value) => value !== null);
  const least = values.reduce((a, b) => Math.min(a, b), Infinity);
  const most = values.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!(least < most)) return null;
  const fields = ["from", "to"].map((end) => {
    const field = element("input", {
      type: "number",
      step: "any",
      "data-state": `${name}-${end}`,
      "aria-label": `${label} ${end}`,
      placeholder: shown(end === "from" ? least : most),
    });
    field.addEventListener("change", () => update({ [`${name}-${end}`]: field.value }));
    return field;
  });
  return element("div", {
    class: "range",
    role: "group",
    "aria-label": label,
    children: [element("span", { text: label, "aria-hidden": "true" }), fields[0], "\u2013", fields[1]],
  });
}

function buildControls() {
  const fields = [...Object.keys(FACETS).map(facetMenu), ...Object.keys(RANGES).map(rangeFields)];
  facetFields.replaceChildren(...fields.filter((field) => field !== null));
  for (const [value, { label }] of Object.entries(SORTS)) sortField.append(element("option", { value, text: label }));
  sortField.addEventListener("change", () => update({ sort: sortField.value }));
  downButton.addEventListener("click", () => update({ down: state.down ? "" : "1" }));
  document.getElementById("clear").addEventListener("click", clearFilters);
  let timer = 0;
  queryField.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => update({ q: queryField.value }), SETTLED);
  });
}

/** Show all dialogues again. */
function clearFilters() {
  update(Object.fromEntries(["q", ...FILTERS].map((name) => [name, ""])));
}

/** Show the state in the fields. */
function syncControls() {
  if (document.activeElement !== queryField || state.q === "") queryField.value = state.q;
  for (const field of facetFields.querySelectorAll("[data-state]")) field.value = state[field.dataset.state];
  sortField.value = state.sort in SORTS ? state.sort : DEFAULTS.sort;
  downButton.setAttribute("aria-pressed", String(state.down !== ""));
  const active = FILTERS.filter((name) => state[name] !== "").length;
  document.getElementById("active").textContent = active ? `(${active} in use)` : "";
}
