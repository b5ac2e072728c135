// @ts-check
// What a page gains where JavaScript runs: it stays up to date, and the keyboard is enough. All else is links and forms.

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const live = /** @type {HTMLElement} */ (document.getElementById("live"));

// --- dark or light ---------------------------------------------------------------------------

const root = document.documentElement;
const theme = localStorage.getItem("theme");
if (theme) root.dataset.theme = theme;

function toggleTheme() {
  const dark = getComputedStyle(root).colorScheme === "dark"
    || (root.dataset.theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
}

// --- live ------------------------------------------------------------------------------------

/** Replace the parts of the page that are different in a newer one. */
function update(/** @type {string} */ html) {
  const page = new DOMParser().parseFromString(html, "text/html");
  for (const part of page.querySelectorAll("[data-part]")) {
    const name = /** @type {HTMLElement} */ (part).dataset.part;
    const shown = main.querySelector(`[data-part="${name}"]`);
    if (!shown || shown.innerHTML === part.innerHTML) continue;
    if (shown.querySelector("details[open], input:checked")) continue; // somebody reads or chooses there
    const selected = [...shown.querySelectorAll("tbody tr")].findIndex((row) => row.ariaSelected === "true");
    shown.replaceChildren(...part.childNodes);
    if (selected >= 0) select([...shown.querySelectorAll("tbody tr")].at(selected));
  }
}

/** @type {EventSource | null} */
let source = null;

function connect() {
  source = new EventSource(`${main.dataset.live}${location.search}`);
  source.addEventListener("main", (event) => { state(""); update(event.data); });
  source.addEventListener("same", () => state(""));
  source.addEventListener("rows", (event) => { state(""); prepend(event.data); });
  source.addEventListener("trouble", () => state("lost"));
  source.addEventListener("error", () => {
    state("lost");
    if (source?.readyState === EventSource.CLOSED) setTimeout(again, 2000); // the browser itself does not try again
  });
}

function again() {
  if (source?.readyState === EventSource.CLOSED) connect();
}

/** Say whether the page is up to date: live, paused, or lost. */
function state(/** @type {string} */ word) {
  live.className = `live ${word}`;
  const button = live.querySelector("button");
  if (button) button.textContent = { paused: "paused", lost: "no answer" }[word] ?? "live";
}

/** The newest messages of a topic, on top of those that are shown. */
function prepend(/** @type {string} */ html) {
  const page = new DOMParser().parseFromString(`<table><tbody>${html}</tbody></table>`, "text/html");
  const body = main.querySelector("[data-tail] tbody");
  if (!body) return;
  body.prepend(...page.querySelectorAll("tbody > tr"));
  while (body.children.length > 200) body.lastElementChild?.remove();
}

function pause() {
  if (!main.dataset.live) return;
  if (source) { source.close(); source = null; state("paused"); } else { connect(); state(""); }
}

if (main.dataset.live) {
  live.hidden = false;
  connect();
  addEventListener("pagehide", () => source?.close());
}

document.querySelector("nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });

// --- keyboard --------------------------------------------------------------------------------

const PAGES = { o: "/", c: "/cluster", t: "/topics", g: "/groups", m: "/messages", d: "/dlq", s: "/scheduled", x: "/transactions" };
let going = false;

function select(/** @type {Element | undefined} */ row) {
  for (const other of main.querySelectorAll("tr[aria-selected]")) other.removeAttribute("aria-selected");
  if (!row) return;
  row.setAttribute("aria-selected", "true");
  row.scrollIntoView({ block: "nearest" });
}

function move(/** @type {number} */ step) {
  const rows = [...main.querySelectorAll("tbody tr")];
  const at = rows.findIndex((row) => row.ariaSelected === "true");
  select(rows.at(Math.min(rows.length - 1, Math.max(0, at + step))));
}

addEventListener("keydown", (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (target.matches("input, textarea, select")) {
    if (event.key === "Escape") target.blur();
    return;
  }
  if (going) {
    going = false;
    const page = PAGES[/** @type {keyof typeof PAGES} */ (event.key)];
    if (page) location.assign(page);
    return;
  }
  if (event.key === "/") {
    event.preventDefault();
    /** @type {HTMLElement | null} */ (document.querySelector(".search input"))?.focus();
  } else if (event.key === "g") going = true;
  else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === ".") pause();
  else if (event.key === "?") location.assign("/keys");
  else if (event.key === "Enter" && target === document.body) {
    /** @type {HTMLElement | null} */ (main.querySelector('tr[aria-selected="true"] a'))?.click();
  }
});

addEventListener("click", (event) => {
  const action = /** @type {HTMLElement} */ (event.target).closest("[data-action]")?.getAttribute("data-action");
  if (action === "theme") toggleTheme();
  if (action === "pause") pause();
});
for (const button of document.querySelectorAll("[data-action]")) /** @type {HTMLElement} */ (button).hidden = false;
