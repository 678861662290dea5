// The page: asks for what changed every few seconds, keeps the rest; everything can be done with the keyboard.
import {Table, element, matcher, span} from "./table.js";
import {Detail, TABS} from "./detail.js";

const POLL_MS = 3000;
const $ = id => document.getElementById(id);
const runs = new Map();
let version = 0, head = {counts: {}, actions: [], states: {failed: []}}, experiment = "", failures = 0, drawn = "";

// A copy made by shoal ui --export holds the answers itself.
const copy = $("kept") ? JSON.parse($("kept").textContent) : null;

async function get(path, query = {}) {
  if (copy) {
    const found = copy[[path, query.run, query.stream].filter(Boolean).join(" ")];
    if (!found) throw new Error("this copy of the page does not hold that");
    return found;
  }
  const answer = await fetch(`${path}?${new URLSearchParams(query)}`, {credentials: "same-origin"});
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error || answer.statusText);
  return found;
}

const table = new Table($("rows"), $("head"), open);
const detail = new Detail($("detail"), get, act, copy !== null);

async function poll() {
  try {
    const found = await get("/api/runs", {since: version});
    if (found.complete) runs.clear();
    found.runs.forEach(run => runs.set(run.id, run));
    found.gone.forEach(id => runs.delete(id));
    const changed = found.complete || found.runs.length || found.gone.length;
    version = found.version; head = found; failures = 0;
    facts();
    if (changed || drawn === "") refresh(); else table.draw();
    if (detail.run && runs.has(detail.run.id)) detail.title(runs.get(detail.run.id), head);
  } catch (error) {
    failures++;
    warn(`no answer from shoal ui: ${error.message}`);
  }
  if (!copy) setTimeout(poll, document.hidden ? 5 * POLL_MS : POLL_MS * Math.min(8, 1 + failures));
}

function facts() {
  $("project").textContent = head.project; document.title = `${head.project} - shoal`;
  const words = [];
  if (head.gpus_busy) words.push(`${head.gpus_busy} GPUs busy`);
  if (head.expected_end) words.push(`ends ~${new Date(head.expected_end * 1000).toLocaleTimeString([], {hour: "2-digit", minute: "2-digit"})}`);
  if (copy) words.push(`copy of ${new Date(head.time * 1000).toLocaleString()}`);
  else if (head.slurm_time) words.push(`Slurm ${span(head.time - head.slurm_time)} ago`);
  $("facts").textContent = words.join("   ·   ");
  warn(head.slurm_problem ? `Slurm does not answer, these are last known states: ${head.slurm_problem}` : "");
}

function warn(text) { $("warning").textContent = text; $("warning").hidden = !text; }

function refresh() {
  drawn = "once";
  const all = [...runs.values()];
  sidebar(all);
  const here = experiment ? all.filter(run => run.experiment === experiment) : all;
  chips(here);
  const shown = here.filter(matcher($("filter").value));
  $("rows").classList.toggle("one", experiment !== ""); // then its name before each run says nothing
  table.show(shown);
  $("shown").textContent = shown.length === all.length ? `${all.length.toLocaleString()} runs` : `${shown.length.toLocaleString()} of ${all.length.toLocaleString()} runs`;
  $("none").hidden = shown.length > 0;
  $("rows").hidden = shown.length === 0;
  $("none").textContent = all.length ? "no run matches the filter" : "no runs yet; shoal submit experiments/... begins some";
}

function tally(list) {
  const counts = new Map();
  list.forEach(run => counts.set(run.state, (counts.get(run.state) || 0) + 1));
  return [...counts].sort((a, b) => b[1] - a[1]);
}

function chips(list) {
  const now = $("filter").value;
  $("counts").replaceChildren(...tally(list).map(([state, count]) => {
    const chip = element("button", `chip ${state}`, `${count.toLocaleString()} ${state}`);
    chip.setAttribute("aria-pressed", now === `state:${state}`);
    chip.addEventListener("click", () => { $("filter").value = now === `state:${state}` ? "" : `state:${state}`; refresh(); });
    return chip;
  }));
}

function sidebar(all) {
  const groups = new Map();
  all.forEach(run => { if (!groups.has(run.experiment)) groups.set(run.experiment, []); groups.get(run.experiment).push(run); });
  const entries = [["", all], ...[...groups].sort((a, b) => a[0].localeCompare(b[0], undefined, {numeric: true}))];
  // The same choice as a list that drops down, where there is no room for a sidebar.
  $("pick").replaceChildren(...entries.map(([name]) => new Option(name || "all experiments", name, false, name === experiment)));
  $("experiments").replaceChildren(...entries.map(([name, list]) => {
    const button = element("button");
    button.setAttribute("aria-current", name === experiment);
    const meter = element("span", "meter");
    tally(list).forEach(([state, count]) => { const part = element("i", state); part.style.width = `${100 * count / list.length}%`; meter.append(part); });
    const bad = list.filter(run => head.states.failed.includes(run.state)).length;
    const done = list.filter(run => run.state === "done").length;
    button.append(element("span", "name", name || "all experiments"), element("span", "sum", `${done}/${list.length} done${bad ? `, ${bad} failed` : ""}`), meter);
    button.addEventListener("click", () => { experiment = name; refresh(); });
    return button;
  }));
}

function open(id) { const run = runs.get(id); if (run) detail.open(run, head); }

function report() {
  const name = experiment || (detail.run ? detail.run.experiment : "");
  $("report-name").textContent = name ? `Report: ${name}` : "Report of all experiments";
  $("report-frame").src = copy ? `report${name ? `-${name}` : ""}.html` : `/report?${new URLSearchParams({experiment: name})}`;
  $("report").hidden = false; $("report-close").focus();
}

function closeReport() { $("report").hidden = true; $("report-frame").removeAttribute("src"); }

// The button that was pressed, or "no". Not by the event "close": it comes later, and may find the next question open.
function answerOf(dialog) {
  const form = dialog.querySelector("form");
  return new Promise(resolve => {
    const settle = value => { form.removeEventListener("submit", pressed); dialog.removeEventListener("cancel", left); resolve(value); };
    const pressed = event => settle(event.submitter ? event.submitter.value : "no");
    const left = () => settle("no");
    form.addEventListener("submit", pressed);
    dialog.addEventListener("cancel", left);
  });
}

async function act(name, run) {
  $("question").textContent = `${name} ${run.name} (${run.state})?`;
  $("confirm").querySelectorAll(".more").forEach(button => { button.hidden = name !== "retry"; });
  $("confirm").showModal();
  const said = await answerOf($("confirm")), more = ["memory", "time"].includes(said) ? said : null;
  if (said !== "yes" && !more) return;
  const answer = await fetch(`/api/${name}`, {method: "POST", credentials: "same-origin", headers: {"Content-Type": "application/json"}, body: JSON.stringify({runs: [run.id], more})});
  const found = await answer.json();
  toast(found.said || found.error);
}

function toast(text) { $("toast").textContent = text; $("toast").hidden = false; setTimeout(() => { $("toast").hidden = true; }, 4000); }

// As the system prefers, until the person chooses here.
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;
try { chosen = localStorage.getItem("theme"); } catch { /* private window */ }
function theme() { document.documentElement.dataset.theme = chosen || (prefersDark.matches ? "dark" : "bright"); }
function otherTheme() {
  chosen = document.documentElement.dataset.theme === "dark" ? "bright" : "dark";
  try { localStorage.setItem("theme", chosen); } catch { /* private window */ }
  theme();
}
prefersDark.addEventListener("change", theme);
theme();

$("theme").addEventListener("click", otherTheme);
$("help-button").addEventListener("click", () => $("help").showModal());
$("report-button").addEventListener("click", report);
$("report-close").addEventListener("click", closeReport);
$("filter").addEventListener("input", refresh);
$("pick").addEventListener("change", () => { experiment = $("pick").value; refresh(); });

document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.tagName === "INPUT" || event.target.tagName === "SELECT";
  if (event.key === "Escape") {
    if (!$("report").hidden) closeReport();
    else if (typing) { if ($("filter").value) { $("filter").value = ""; refresh(); } $("rows").focus(); }
    else if (detail.run) detail.close();
    return;
  }
  if (typing) { if (event.key === "Enter" || event.key === "ArrowDown") { $("rows").focus(); table.move(0); } return; }
  const keys = {
    j: () => moved(1), ArrowDown: () => moved(1), k: () => moved(-1), ArrowUp: () => moved(-1),
    PageDown: () => moved(15), PageUp: () => moved(-15), Home: () => moved(-1e9), End: () => moved(1e9),
    "/": () => $("filter").focus(), t: otherTheme, r: report, "?": () => $("help").showModal(),
    s: () => table.sortBy((table.sort.column + 1) % 8), Enter: () => table.selected && open(table.selected),
  };
  if (keys[event.key] && !(event.key === "Enter" && event.target.tagName === "BUTTON")) { event.preventDefault(); keys[event.key](); }
  else if (detail.run && /^[1-6]$/.test(event.key)) detail.show(TABS[+event.key - 1]);
});

function moved(step) { const id = table.move(step); if (id && detail.run) open(id); }

poll();
