// What a browser adds to the page: updates as they come, keys, and buttons that copy commands. Without it all of the
// page is there, as it was when it was loaded.
const main = document.getElementById("main");
const live = document.getElementById("live");
const pause = document.getElementById("pause");
const keys = document.getElementById("keys");
const help = document.getElementById("help");
const noKeys = document.getElementById("no-keys");
const words = document.getElementById("words");
const LATE_MS = 45000;

let stamp = main.dataset.stamp;
let stream = null;
let paused = false;
let heard = performance.now();

function parsed(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return [...template.content.children];
}

// What somebody has opened or is on stays so, where it is still there.
function replaced(old, fresh) {
  const open = new Set([...old.querySelectorAll("details[open]")].map((one) => one.dataset.key));
  for (const one of fresh.querySelectorAll("details")) one.open = open.has(one.dataset.key);
  const scrolled = [...old.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  const focused = old.contains(document.activeElement) ? place(old, document.activeElement) : -1;
  old.replaceWith(fresh);
  [...fresh.querySelectorAll(".scroll")].forEach((one, index) => { one.scrollLeft = scrolled[index] || 0; });
  if (focused >= 0) reachable(fresh)[focused]?.focus({ preventScroll: true });
}

const reachable = (part) => [...part.querySelectorAll("a, button, input, summary, [tabindex]")];
const place = (part, one) => reachable(part).indexOf(one);

function addCopying(part) {
  if (!navigator.clipboard) return;
  for (const code of part.querySelectorAll(".command")) {
    if (code.nextElementSibling?.classList.contains("copy")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.setAttribute("aria-label", `Copy: ${code.textContent}`);
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    });
    code.after(button);
  }
}

// Only how much needs attention is read out, and only when that changes.
let attention = count();
function count() {
  return document.querySelectorAll("#attention .attention > li").length;
}

function say(text, late = false) {
  live.textContent = text;
  live.classList.toggle("late", late);
}

function taken(event) {
  stamp = event.lastEventId;
  const now = count();
  if (now !== attention) say(`${now} need attention`);
  attention = now;
}

// Whoever is not let in any more is asked to sign in, and what was shown goes from the screen.
function letOut() {
  fetch("./", { method: "HEAD" }).then((answer) => { if (answer.status === 401) location.reload(); }, () => {});
}

function listen() {
  const url = new URL("live", location.href);
  url.search = location.search;
  url.searchParams.set("stamp", stamp);
  stream = new EventSource(url);
  stream.onopen = () => { heard = performance.now(); say("live"); };
  stream.onerror = () => {
    say("updates have stopped; trying again", true);
    if (stream && stream.readyState === EventSource.CLOSED) {
      stream = null;
      letOut();
      setTimeout(resume, 30000);
    }
  };
  stream.addEventListener("parts", (event) => {
    heard = performance.now();
    for (const fresh of parsed(event.data)) {
      addCopying(fresh);
      const old = document.getElementById(fresh.id);
      if (old) replaced(old, fresh);
    }
    taken(event);
  });
  stream.addEventListener("page", (event) => {
    heard = performance.now();
    main.replaceChildren(...parsed(event.data));
    addCopying(main);
    taken(event);
  });
  stream.addEventListener("ended", () => { end(); location.reload(); });
}

function end() {
  if (stream) stream.close();
  stream = null;
}

function resume() {
  if (!paused && !document.hidden && !stream) listen();
}

function toggle() {
  paused = !paused;
  pause.textContent = paused ? "Go on" : "Pause updates";
  pause.setAttribute("aria-pressed", String(paused));
  if (paused) { end(); say("paused"); } else resume();
}

function showHelp(shown) {
  help.hidden = !shown;
  keys.setAttribute("aria-expanded", String(shown));
  if (shown) help.scrollIntoView();
}

function move(by) {
  const all = [...main.querySelectorAll("h2")];
  const at = all.indexOf(document.activeElement);
  const next = all[Math.min(all.length - 1, Math.max(0, at + by))];
  if (next) { next.tabIndex = -1; next.focus(); next.scrollIntoView(); }
}

const does = {
  "/": () => words.focus(),
  "?": () => showHelp(help.hidden),
  j: () => move(1),
  k: () => move(-1),
  p: toggle,
};

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select");
  if (event.key === "Escape") { if (typing) event.target.blur(); showHelp(false); return; }
  if (typing || noKeys.checked || event.ctrlKey || event.metaKey || event.altKey || !does[event.key]) return;
  event.preventDefault();
  does[event.key]();
});

noKeys.checked = localStorage.getItem("no-keys") === "1";
noKeys.addEventListener("change", () => localStorage.setItem("no-keys", noKeys.checked ? "1" : "0"));
pause.hidden = keys.hidden = false;
pause.addEventListener("click", toggle);
keys.addEventListener("click", () => showHelp(help.hidden));
document.addEventListener("visibilitychange", () => (document.hidden ? end() : resume()));
addEventListener("pagehide", end);
addEventListener("pageshow", resume);
setInterval(() => { if (stream && performance.now() - heard > LATE_MS) say("no word of the server for long", true); }, 5000);
addCopying(document);
resume();
