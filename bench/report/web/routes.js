"use strict";
/* Which page an address means, the header, and the colours. */
const VIEW = document.getElementById("view");
const THEME = document.getElementById("theme");
const SCROLLED = new Map();
let current = null;

/* Kind of page to [what is in the header, the page of a name]; null where there is no such page. */
const dataset = (page) => (name) => { const found = DATA.datasets.find((one) => one.name === name); return found ? page(found) : null; };
const ROUTES = {
  board: ["Boards", dataset(board)],
  charts: ["Boards", dataset(charts)],
  images: ["Boards", dataset(images)],
  run: ["Boards", run],
  compare: ["Compare", (name) => compare(name.split("-").filter(Boolean).slice(0, 2))],
  choose: ["Choose", choose],
  methods: ["Methods", methods],
  method: ["Methods", method],
  ...Object.assign({}, ...SECTIONS.map((one) => one.routes)),
};
const LINKS = [["Choose", "#choose"], ["Methods", "#methods"], ["Boards", DATA.datasets.length ? address("board", DATA.datasets[0].name) : "#"], ["Compare", "#compare"], ...SECTIONS.map((one) => one.link)];

const noPage = (place) => [heading("No such page"), note(`This report has no page #${place}. `, element("a", { href: "#" }, "To the front page"))];

async function route() {
  const asked = location.hash;
  let place;
  try { place = decodeURIComponent(asked.slice(1)); } catch { place = asked; } // an address that is not text is not a page
  if (place === "main") return;
  const dash = place.indexOf("-");
  const [kind, name] = dash < 0 ? [place, ""] : [place.slice(0, dash), place.slice(dash + 1)];
  const known = Object.hasOwn(ROUTES, kind) ? ROUTES[kind] : ["", () => null];
  VIEW.setAttribute("aria-busy", "true");
  let content;
  try {
    content = place ? (await known[1](name)) || noPage(place) : overview();
  } catch (error) {
    content = [heading("This page could not be shown"), element("p", { class: "bad" }, error.message)];
  }
  if (location.hash !== asked) return; // the reader has gone elsewhere while the data came
  VIEW.replaceChildren(...content.flat(3).filter(Boolean));
  VIEW.removeAttribute("aria-busy");
  pages(known[0]);
  const title = VIEW.querySelector("h1");
  document.title = `${title.textContent} – dp-distill-bench`;
  current = asked;
  if (place) title.focus({ preventScroll: true });
  scrollTo(0, kind === "run" ? 0 : SCROLLED.get(current) || 0);
}
function pages(here) {
  document.getElementById("pages").replaceChildren(...LINKS.map(([name, href]) => element("a", { href, "aria-current": name === here ? "true" : null }, name)));
}

/* Colours: the system's, unless the reader chose others here. Where nothing can be stored, the choice is for this page. */
function stored() {
  try { return localStorage; } catch { return null; }
}
function colours(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  THEME.value = theme;
}
THEME.addEventListener("change", () => {
  colours(THEME.value);
  const store = stored();
  if (store) store.setItem("dp-distill-bench-colours", THEME.value);
});
colours((stored() && stored().getItem("dp-distill-bench-colours")) || "");

VIEW.addEventListener("click", (event) => {
  const button = event.target.closest(".legend button");
  if (button) bringOut(button);
});
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); document.getElementById("main").focus(); });
addEventListener("scroll", () => SCROLLED.set(current, scrollY), { passive: true });
addEventListener("hashchange", route);
route();
