// The page: asks for what changed every few seconds, keeps the rest; everything can be done with the keyboard.
import {Table, columnsOf, columnsOfGroups, element, matcher, span} from "./table.js";
import {hue} from "./plot.js";
import {Curves} from "./curves.js";
import {Params} from "./params.js";
import {Cluster} from "./cluster.js";
import {Detail, TABS} from "./detail.js";

const POLL_MS = 3000;
const $ = id => document.getElementById(id);
const runs = new Map();
let version = 0, head = {counts: {}, actions: [], states: {failed: []}}, experiment = "", failures = 0, drawn = "";
const VIEWS = ["curves", "params", "cluster"];
let view = "", isGrouped = false, info = {groups: [], metrics: [], metric: null}, infoOf = "", rowsNow = [], colours = new Map();

// A copy made by shoal ui --export holds the answers itself.
const copy = $("kept") ? JSON.parse($("kept").textContent) : null;

// The second secret: it came behind the # of the link, and is kept for this port alone. No other server ever gets it.
let key = new URLSearchParams(location.hash.slice(1)).get("key") || "";
try { if (key) localStorage.setItem("key", key); else key = localStorage.getItem("key") || ""; } catch { /* private window */ }
if (location.hash.startsWith("#key=")) history.replaceState(null, "", location.pathname);

async function get(path, query = {}) {
  if (copy) {
    const found = path === "/api/curves" ? keptCurves(JSON.parse(query.q)) : copy[[path, query.run, query.stream, query.experiment, query.metric].filter(Boolean).join(" ")];
    if (!found) throw new Error("this copy of the page does not hold that");
    return found;
  }
  const answer = await fetch(`${path}?${new URLSearchParams(query)}`, {credentials: "same-origin", headers: {"X-Shoal-Key": key}});
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error || answer.statusText);
  return found;
}

function keptCurves({runs, groups, metrics, x}) {
  const ids = new Set([...runs, ...Object.keys(groups)]), curves = copy["/api/curves"][x].filter(one => ids.has(one.id) && metrics.includes(one.metric));
  const drawn = new Set(curves.map(one => one.id)), known = new Set(copy["/api/curves"].step.map(one => one.id));
  return {version: 1, unread: 0, curves, without_x: [...ids].filter(id => !drawn.has(id) && known.has(id)), isCopy: true};
}

const table = new Table($("rows"), $("head"), open, remember, picked);
const curves = new Curves($("curves"), get, remember, id => runs.has(id) ? openRun(id) : table.pick(id));
const params = new Params($("params"), get, openRun, remember);
const cluster = new Cluster($("cluster"), get);
table.colourOf = id => view === "curves" && colours.has(id) ? hue(colours.get(id)) : null;
const detail = new Detail($("detail"), get, act, copy !== null, () => { if (!detail.run && view) refresh(); else remember(); });

// What is shown is in the address behind the #, so that a link to it can be sent: experiment, filter, sort, run, tab.
function remember() {
  if (!drawn) return;
  const sort = table.sort.name === "state" && !table.sort.down ? "" : `${table.sort.down ? "-" : ""}${table.sort.name}`;
  const state = {exp: experiment, filter: $("filter").value, sort, view, group: isGrouped ? "seeds" : "", pick: [...table.picked].map(id => id.slice(0, 9)).slice(0, 100).join(","),
    curves: curves.address, params: params.address, run: detail.run ? detail.run.id : "", tab: detail.run ? detail.tab : "", wide: detail.run && detail.isWide ? "1" : ""};
  const words = new URLSearchParams(Object.entries(state).filter(([, value]) => value)).toString();
  if (words === location.hash.slice(1)) return;
  const isOther = ["exp", "run", "view", "group"].some(name => (state[name] || "") !== (shownState[name] || ""));
  shownState = state;
  try { history[isOther ? "pushState" : "replaceState"](null, "", words ? `#${words}` : location.pathname); } catch { /* a copy that was opened from a file */ }
}

function follow() {
  const words = new URLSearchParams(location.hash.slice(1)), sort = words.get("sort") || "state";
  experiment = words.get("exp") || "";
  $("filter").value = words.get("filter") || "";
  table.sort = {name: sort.replace(/^-/, ""), down: sort.startsWith("-")};
  view = VIEWS.includes(words.get("view")) ? words.get("view") : ""; isGrouped = words.get("group") === "seeds";
  curves.address = words.get("curves"); params.address = words.get("params");
  wanted = (words.get("pick") || "").split(",").filter(Boolean);
  shownState = {exp: experiment, run: words.get("run") || "", view, group: isGrouped ? "seeds" : ""};
  const run = runs.get(shownState.run);
  if (TABS.includes(words.get("tab"))) detail.tab = words.get("tab");
  refresh();
  if (run) { table.select(run.id); detail.open(run, head); $("side").hidden = true; if (Boolean(detail.isWide) !== (words.get("wide") === "1")) detail.widen(words.get("wide") === "1"); detail.show(detail.tab); } else if (detail.run) detail.close();
}

let shownState = {exp: "", run: ""}, wanted = [];
addEventListener("popstate", follow);

async function poll() {
  try {
    const found = await get("/api/runs", {since: version});
    if (found.complete) runs.clear();
    found.runs.forEach(run => runs.set(run.id, run));
    found.gone.forEach(id => runs.delete(id));
    const changed = found.complete || found.runs.length || found.gone.length;
    version = found.version; head = found; failures = 0;
    facts();
    if (drawn === "") { drawn = "once"; follow(); } else if (changed) refresh(); else table.draw();
    if (detail.run && runs.has(detail.run.id)) detail.title(runs.get(detail.run.id), head);
  } catch (error) {
    failures++;
    warn(`no answer from shoal ui: ${error.message}`);
  }
  if (!copy) setTimeout(poll, head.more && !failures ? 20 : document.hidden ? 5 * POLL_MS : POLL_MS * Math.min(8, 1 + failures));
}

function facts() {
  $("project").textContent = head.project; document.title = `${head.project} - shoal`;
  const words = [];
  if (head.gpus_allocated) words.push(`${head.gpus_allocated} GPUs allocated`);
  if (head.expected_end) words.push(`ends ~${new Date(head.expected_end * 1000).toLocaleTimeString([], {hour: "2-digit", minute: "2-digit"})}${head.expected_end_if_gpus ? ` if ${head.expected_end_if_gpus} GPUs are free` : ""}`);
  if (head.unread) words.push(`reading ${head.unread.toLocaleString()} more runs`);
  if (copy) words.push(`copy of ${new Date(head.time * 1000).toLocaleString()}`);
  else if (head.slurm_time) words.push(`Slurm ${span(head.time - head.slurm_time)} ago`);
  $("facts").textContent = words.join("   ·   ");
  warn(head.slurm_problem ? `Slurm does not answer, these are last known states: ${head.slurm_problem}` : "");
}

function warn(text) { $("warning").textContent = text; $("warning").hidden = !text; }

// The experiment whose parameters and metric are columns, if it is one.
function shownTable() {
  const experiments = Object.keys(head.tables || {});
  return (head.tables || {})[experiment || (experiments.length === 1 ? experiments[0] : "")];
}

function refresh() {
  const all = [...runs.values()];
  sidebar(all);
  const here = experiment ? all.filter(run => run.experiment === experiment) : all;
  chips(here);
  const shown = here.filter(matcher($("filter").value));
  table.isOneExperiment = experiment !== "";
  if (isGrouped || (view && view !== "cluster")) ask();
  if (isGrouped) {
    const kept = new Set(shown.map(run => run.id)), groups = info.groups.filter(group => group.runs.some(id => kept.has(id)));
    table.show(groups, columnsOfGroups(shownTable(), info.metric));
    say(groups.length, info.groups.length, "groups");
  } else {
    table.show(shown, columnsOf(shownTable()));
    say(shown.length, all.length, "runs");
  }
  if (wanted.length && (!isGrouped || info.groups.length)) { table.picked = new Set(table.shown.map(row => row.id).filter(id => wanted.some(part => id.startsWith(part)))); wanted = []; }
  $("none").hidden = table.shown.length > 0;
  $("rows").hidden = table.shown.length === 0;
  $("none").textContent = !all.length ? "no runs yet; shoal submit experiments/... begins some" : isGrouped ? "no runs with parameters or seeds to group" : "no run matches the filter";
  for (const name of VIEWS) $(name).hidden = view !== name;
  $("side").hidden = !view || Boolean(detail.run);
  document.querySelectorAll("#views button, #cluster-button").forEach(button => button.setAttribute("aria-pressed", button.value === view));
  $("group").setAttribute("aria-pressed", isGrouped);
  draw();
  remember();
}

function say(count, all, word) { $("shown").textContent = count === all ? `${all.toLocaleString()} ${word}` : `${count.toLocaleString()} of ${all.toLocaleString()} ${word}`; }

// Groups and metrics of the experiment; asked for again when its runs have changed.
async function ask() {
  const key = `${experiment}\n${version}`;
  if (key === infoOf) return;
  infoOf = key;
  try { info = await get("/api/experiment", {experiment}); } catch (error) { warn(error.message); return; }
  if (key === infoOf) refresh();
}

// The plots beside the table show the selected rows, or the first ones.
function draw() {
  const chosen = table.shown.filter(row => table.picked.has(row.id)), rows = chosen.length ? chosen : table.shown;
  colours = new Map();
  if (view === "curves" && !$("side").hidden) {
    const labels = labelsOf(rows);
    rows.slice(0, chosen.length ? 200 : 24).forEach((row, at) => colours.set(row.id, at));
    curves.show(rows.map((row, at) => ({id: row.id, name: row.name, label: labels[at], colour: at, runs: isGrouped ? row.runs : null})), info, chosen.length > 0);
  } else curves.hide();
  if (view === "params" && !$("side").hidden) {
    const list = isGrouped ? rows.flatMap(group => group.runs.map(id => runs.get(id)).filter(Boolean)) : rows;
    params.show(list, shownTable(), info, experiment);
  }
  if (view === "cluster" && !$("side").hidden) cluster.show(); else cluster.hide();
  table.layOut(); table.draw();
}

// By what differs, where that is known; else by name.
function labelsOf(rows) {
  const columns = shownTable();
  if (!columns || !columns.params.length) return rows.map(row => row.name);
  return rows.map(row => [...columns.params.slice(0, 4).map(([name, short]) => `${short}=${row.params && row.params[name] ? row.params[name][0] : "-"}`), ...(isGrouped || row.seed === null || row.seed === undefined ? [] : [`seed=${row.seed}`])].join(" "));
}

function picked() { draw(); remember(); }

function setView(name) { view = view === name ? "" : name; if (detail.run) detail.close(); refresh(); }

function setGrouped() {
  // A selection of groups becomes one of their runs, and the other way round.
  const inside = new Set(info.groups.filter(group => table.picked.has(group.id)).flatMap(group => group.runs));
  const around = new Set(info.groups.filter(group => group.runs.some(id => table.picked.has(id))).map(group => group.id));
  table.picked = isGrouped ? inside : around;
  isGrouped = !isGrouped; table.selected = null;
  refresh();
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
    const failed = list.filter(run => head.states.failed.includes(run.state)).length;
    const completed = list.filter(run => run.state === "completed").length;
    button.append(element("span", "name", name || "all experiments"), element("span", "sum", `${completed}/${list.length} completed${failed ? `, ${failed} failed` : ""}`), meter);
    button.addEventListener("click", () => { experiment = name; refresh(); });
    return button;
  }));
}

function open(id) { if (isGrouped) table.pick(id); else openRun(id); }

function openRun(id) { const run = runs.get(id); if (run) { table.select(id); detail.open(run, head); $("side").hidden = true; curves.hide(); } }

async function report() {
  const name = experiment || (detail.run ? detail.run.experiment : "");
  $("report-name").textContent = name ? `Report: ${name}` : "Report of all experiments";
  const own = copy && copy.reports ? copy.reports[`report${name ? `-${name}` : ""}.html`] : null;
  if (own) $("report-frame").srcdoc = own;
  else $("report-frame").src = copy ? `report${name ? `-${name}` : ""}.html` : `/report?${new URLSearchParams({experiment: name, ...await get("/api/ticket")})}`;
  $("report").hidden = false; $("report-close").focus();
}

function closeReport() { $("report").hidden = true; $("report-frame").removeAttribute("src"); $("report-frame").removeAttribute("srcdoc"); }

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
  const answer = await fetch(`/api/${name}`, {method: "POST", credentials: "same-origin", headers: {"Content-Type": "application/json", "X-Shoal-Key": key}, body: JSON.stringify({runs: [run.id], more})});
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
  if (drawn) draw();
}
prefersDark.addEventListener("change", () => { theme(); if (drawn) draw(); });
theme();

if (copy) document.querySelector("#cluster-button").hidden = true;
$("theme").addEventListener("click", otherTheme);
$("help-button").addEventListener("click", () => $("help").showModal());
$("report-button").addEventListener("click", report);
$("report-close").addEventListener("click", closeReport);
$("filter").addEventListener("input", refresh);
$("group").addEventListener("click", setGrouped);
document.querySelectorAll("#views button, #cluster-button").forEach(button => button.addEventListener("click", () => setView(button.value)));
$("pick").addEventListener("change", () => { experiment = $("pick").value; refresh(); });

document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = (event.target.tagName === "INPUT" && event.target.type !== "checkbox") || event.target.tagName === "SELECT";
  if (event.key === "Escape") {
    if (!$("report").hidden) closeReport();
    else if (typing) { if (event.target === $("filter") && $("filter").value) { $("filter").value = ""; refresh(); } $("rows").focus(); }
    else if (detail.run) detail.close();
    else if (view) setView(view);
    return;
  }
  if (typing) { if (event.target === $("filter") && (event.key === "Enter" || event.key === "ArrowDown")) { $("rows").focus(); table.move(0); } return; }
  const keys = {
    j: () => moved(1), ArrowDown: () => moved(1), k: () => moved(-1), ArrowUp: () => moved(-1),
    PageDown: () => moved(15), PageUp: () => moved(-15), Home: () => moved(-1e9), End: () => moved(1e9),
    "/": () => $("filter").focus(), t: otherTheme, r: report, "?": () => $("help").showModal(),
    c: () => setView("curves"), p: () => setView("params"), q: () => !copy && setView("cluster"), g: setGrouped, w: () => detail.run && detail.widen(!detail.isWide), x: () => table.selected && table.pick(table.selected),
    s: () => table.sortByNext(), Enter: () => table.selected && open(table.selected),
  };
  if (keys[event.key] && !(event.key === "Enter" && event.target.tagName === "BUTTON")) { event.preventDefault(); keys[event.key](); }
  else if (detail.run && /^[1-8]$/.test(event.key)) detail.show(TABS[+event.key - 1]);
});

function moved(step) { const id = table.move(step); if (id && detail.run) openRun(id); }

poll();
