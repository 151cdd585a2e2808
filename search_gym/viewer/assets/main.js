// Putting it together: what is drawn anew when some of the state changes.

const THEMES = { system: "light", light: "dark", dark: "system" };
const themeButton = document.getElementById("theme");

/** The theme that was chosen before; a browser may refuse to keep it for a page from disk. */
function keptTheme() {
  try {
    return localStorage.getItem("search-gym-theme") ?? "system";
  } catch {
    return "system";
  }
}

function setTheme(theme) {
  const known = theme in THEMES ? theme : "system";
  document.documentElement.dataset.theme = known;
  themeButton.textContent = `Theme: ${known}`;
  try {
    localStorage.setItem("search-gym-theme", known);
  } catch {
    // It holds until the page is left.
  }
}

const LISTING = ["q", "sort", "down", ...FILTERS];

function redraw(changed) {
  syncControls();
  syncPanel();
  const relisted = LISTING.some((name) => changed.has(name));
  if (relisted) refreshList();
  if (changed.has("at") || changed.has("open")) revealSelected();
  drawRows();
  if (changed.has("at") || changed.has("with") || changed.has("question")) drawPanes();
  else if (changed.has("fold")) refold();
  else if (changed.has("q")) highlightMatches();
  if (changed.has("colour")) recolour();
}

function start() {
  setTheme(keptTheme());
  themeButton.addEventListener("click", () => setTheme(THEMES[document.documentElement.dataset.theme]));
  buildControls();
  buildPanel();
  watchKeys();
  list.addEventListener("scroll", () => requestAnimationFrame(drawRows), { passive: true });
  new ResizeObserver(drawRows).observe(list);
  addEventListener("popstate", readHash);
  addEventListener("hashchange", readHash);
  onChange(redraw);
  readHash();
  redraw(new Set([...LISTING, "colour"]));
  if (selected() === null && rows.length) update({ at: rows[0].key });
  else redraw(new Set(["at"]));
}

start();
