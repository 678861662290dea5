// The table of runs: filter, sort, and only the rows that can be seen are in the document, so 5,000 runs feel like 50.
import {Names, fitColumns, measureColumns} from "./fit.js";

export const ROW = 30;
// A column: name, title, least width in pixels, share of what is left over, how soon it gives way to others (0: never),
// what it sorts by, its cell, and for which runs it has something to show. One with a `text` is as wide as its longest text; `brief` is its width in a narrow window.
const column = (name, title, width, grow, way, value, cell, has = null) => ({name, title, width, grow, way, value, cell, has});
const FIRST = [column("pick", "", 20, 0, 0, () => 0, null), column("run", "RUN", 130, 2.2, 0, run => run.name, null), {...column("state", "STATE", 78, 0, 0, run => ORDER.indexOf(run.state), stateCell), brief: 18}];
const timeText = run => run.started ? span(elapsed(run)) + (run.time_limit_s ? ` / ${span(run.time_limit_s)}` : "") : "-";
const LAST = [
  column("reason", "REASON", 110, 3, 0, reason, run => told(run)),
  column("attempt", "ATTEMPT", 62, 0, 7, run => run.attempt, run => element("span", "dim", run.attempt || "-")),
  column("job", "JOB", 84, 0, 8, run => run.job_id || "", run => element("span", "dim", run.job_id || "-")),
  {...column("node", "NODE", 44, 0, 6, run => run.node || "", run => element("span", "dim", run.node || "-")), text: run => run.node || "-"},
  {...column("time", "TIME", 60, 0, 3, run => elapsed(run), run => element("span", "", timeText(run))), text: timeText},
  column("gpu", "GPU", 56, 0, 4, run => run.gpu_percent ?? -1, run => element("span", "", run.gpu_percent === null ? (run.state === "running" && run.gpus ? "no data" : "-") : `${Math.round(run.gpu_percent)}%`), run => run.gpu_percent !== null || run.state === "running"),
];
const endText = run => run.remaining_s === null ? "-" : `~${clock(run.remaining_s)}`;
const end = run => run.remaining_s === null ? Infinity : run.remaining_s;
const clock = seconds => new Date(Date.now() + 1000 * seconds).toLocaleTimeString([], seconds > 72000 ? {weekday: "short", hour: "2-digit", minute: "2-digit"} : {hour: "2-digit", minute: "2-digit"});
export const number = value => Number(value.toPrecision(4)).toString();

// The columns of one experiment, as the server found them: parameters that vary, and the metric; else those of all runs.
export function columnsOf(table) {
  if (!table) return [...FIRST, ...LAST];
  const sign = table.metric && table.metric.mode === "max" ? -1 : 1;
  const last = value => value === null || value === undefined ? Infinity : sign * value;
  const metricText = run => `${run.id === table.best ? "★ " : ""}${run.last === null ? (run.is_finite ? "-" : "nan") : number(run.last)}`;
  const metric = table.metric ? [
    {...column("last", table.metric.name, 60, 0, 1, run => last(run.last), run => {
      const cell = element("span", run.id === table.best ? "best" : "", metricText(run));
      if (run.id === table.best) cell.title = "best run so far";
      return cell;
    }), text: metricText},
    column("best", "BEST", 76, 0, 3, run => last(run.best), run => element("span", "dim", run.best === null ? "-" : number(run.best)))] : [];
  const seedText = run => String(run.seed ?? "-");
  return [...FIRST, ...paramColumns(table.params), {...column("seed", "SEED", 36, 0, 2.1, run => run.seed ?? -1, run => element("span", "", seedText(run)), run => run.seed !== null && run.seed !== undefined), text: seedText},
    {...column("end", "END", 60, 0, 5, end, run => element("span", "dim", endText(run)), run => run.remaining_s !== null), text: endText},
    ...metric, {...LAST[0], way: table.metric ? 2.5 : 0}, ...LAST.slice(1)];
}

function paramColumns(params) {
  const paramText = (run, name) => run.params[name] ? run.params[name][0] : "-";
  return params.slice(0, 8).map(([name, short]) => ({...column(`param:${name}`, short, 36, 0, 2,
    run => run.params[name] ? run.params[name].slice(1) : [3, 0, ""], run => {
      const cell = element("span", "", paramText(run, name));
      cell.title = cell.textContent;
      return cell;
    }), text: run => paramText(run, name)}));
}

// Rows over seeds: mean and deviation of the metric, over how many seeds that is, and what is missing.
export function columnsOfGroups(table, metric) {
  const sign = metric && metric.mode === "max" ? -1 : 1, name = metric ? metric.name : "metric";
  const meanText = row => `${row.is_best ? "★ " : ""}${row.mean === null ? "-" : number(row.mean)}${row.mean === null || row.std === null ? "" : ` ± ${number(Number(row.std.toPrecision(2)))}`}`;
  return [FIRST[0], column("run", "GROUP", 130, 2.2, 0, row => row.name, null), ...paramColumns(table ? table.params : []),
    ...(metric ? [{...column("last", name, 60, 0.6, 0, row => row.mean === null ? Infinity : sign * row.mean, row => {
      const cell = element("span", row.is_best ? "best" : "", meanText(row));
      if (row.is_best) cell.title = "best mean so far";
      return cell;
    }), text: meanText}, column("n", "SEEDS", 48, 0, 2.2, row => row.n, row => element("span", "dim", `${row.n}/${row.runs.length}`))] : []),
    column("states", "STATES", 120, 1, 3, row => row.runs.length, row => { const cell = element("span", "states"); Object.entries(row.states).forEach(([state, count]) => cell.append(element("span", state, `${count} ${state} `))); return cell; }),
    column("reason", "MISSING", 100, 1.5, 2, row => row.missing, row => { const cell = element("span", "dim", row.missing); cell.title = row.missing; return cell; }, row => row.missing)];
}

// The exit code is the least telling part of a reason, and space is scarce.
function reason(run) {
  const idle = run.gpu_idle_s ? `GPUs idle for ${span(run.gpu_idle_s)}` : "";
  return [run.adopted ? "adopted" : "", idle, (run.reason || (run.state === "running" ? run.progress : "") || "").replace(/^exit code \d+: /, "")].filter(Boolean).join("   ");
}

const ORDER = ["running", "blocked", "unknown", "failed", "oom", "timeout", "node_fail", "lost", "preempted", "pending",
  "waiting", "new", "cancelled", "stopped", "completed"];

export function elapsed(run, now = Date.now() / 1000) {
  return run.started ? (run.ended || now) - run.started : -1;
}

export function span(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s}s`;
  if (s < 600) return `${Math.floor(s / 60)}m${String(s % 60).padStart(2, "0")}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m`;
  if (s < 86400) return `${Math.floor(s / 3600)}h${String(Math.floor(s % 3600 / 60)).padStart(2, "0")}m`;
  return `${Math.floor(s / 86400)}d${String(Math.floor(s % 86400 / 3600)).padStart(2, "0")}h`;
}

export function element(kind, className, text) {
  const found = document.createElement(kind);
  if (className) found.className = className;
  if (text !== undefined && text !== null) found.textContent = text; // never innerHTML: names and logs are other people's text
  return found;
}

// "lr3 state:failed,oom node:gpu0 gpu:<10": words are searched in name and reason; a filter can be odd, never wrong.
export function matcher(text) {
  const tests = text.toLowerCase().split(/\s+/).filter(Boolean).map(word => {
    const at = word.indexOf(":");
    const key = at > 0 ? word.slice(0, at) : "", value = word.slice(at + 1);
    const field = {state: "state", node: "node", job: "job_id", exp: "experiment", name: "name", part: "partition", cause: "cause",
      reason: "reason", partition: "partition"}[key];
    if (field) return run => value.split(",").some(one => String(run[field] ?? "").toLowerCase().includes(one));
    if (key === "gpu" || key === "gpus" || key === "attempt") {
      const match = /^([<>]?)(\d+)/.exec(value);
      const name = {gpu: "gpu_percent", gpus: "gpus", attempt: "attempt"}[key];
      if (match) return run => run[name] !== null && (match[1] === "<" ? run[name] < +match[2] : match[1] === ">" ? run[name] > +match[2]
        : run[name] === +match[2]);
    }
    return run => `${run.name} ${run.reason || ""} ${run.state} ${run.job_id || ""} ${run.adopted ? "adopted" : ""}`.toLowerCase().includes(word);
  });
  return run => tests.every(test => test(run));
}

// Numbers by size, text by its numbers, lists part by part.
const names = new Intl.Collator(undefined, {numeric: true});
function compare(x, y) {
  if (Array.isArray(x)) { for (let at = 0; at < x.length; at++) { const order = compare(x[at], y[at]); if (order) return order; } return 0; }
  return typeof x === "number" ? (x === y ? 0 : x - y) : names.compare(x, y);
}

export class Table {
  constructor(rows, head, onOpen, onChange, onPick) {
    this.rows = rows; this.head = head; this.onOpen = onOpen; this.onChange = onChange; this.onPick = onPick; this.picked = new Set(); this.colourOf = () => null; this.isOneExperiment = false; this.names = new Names([]);
    this.space = rows.querySelector("#space"); this.window = rows.querySelector("#window");
    this.shown = []; this.selected = null; this.sort = {name: "state", down: false}; this.columns = columnsOf(null); this.fit = this.columns;
    rows.addEventListener("scroll", () => this.draw(), {passive: true});
    new ResizeObserver(() => { this.layOut(); this.draw(); }).observe(rows);
    new ResizeObserver(() => { this.layOut(); this.draw(); }).observe(head);
    this.window.addEventListener("click", event => {
      const row = event.target.closest(".row");
      if (event.target.closest(".pick")) { if (event.target.tagName === "INPUT") this.pick(row.dataset.id); } else if (row) { this.select(row.dataset.id); this.onOpen(row.dataset.id); }
    });
  }

  layOut() {
    const room = this.head.clientWidth - 24, gap = room < 500 ? 8 : 10;
    const kept = fitColumns(this.columns, this.shown, room, gap, this.names);
    const template = kept.map(one => one.grow ? `minmax(${Math.min(one.width, room)}px,${one.grow}fr)` : `${one.width}px`).join(" ");
    this.rows.parentElement.style.setProperty("--columns", template);
    this.rows.parentElement.style.setProperty("--gap", `${gap}px`);
    this.fit = kept;
    this.head.replaceChildren(...kept.map(one => {
      if (one.name === "pick") return this.pickAll();
      const now = one.name === this.sort.name, button = element("button", "", (one.isBrief ? "" : one.title) + (now ? this.sort.down ? " ↓" : " ↑" : ""));
      button.dataset.column = one.name; button.title = one.title;
      button.setAttribute("role", "columnheader");
      if (now) button.setAttribute("aria-sort", this.sort.down ? "descending" : "ascending");
      button.addEventListener("click", () => this.sortBy(one.name));
      return button;
    }));
    const title = this.head.querySelector("[data-column=run]");
    if (title) this.names.fit(title.clientWidth);
  }

  // The experiment's name before each run says nothing where there is one experiment.
  nameOf(run) { return this.isOneExperiment ? run.name.slice(run.name.indexOf("/") + 1) : run.name; }

  pickAll() {
    const all = element("input"), count = this.shown.filter(run => this.picked.has(run.id)).length;
    all.type = "checkbox"; all.checked = count > 0 && count === this.shown.length; all.indeterminate = count > 0 && !all.checked;
    all.title = "select all rows, or none"; all.setAttribute("aria-label", "select all rows");
    all.addEventListener("change", () => { this.shown.forEach(run => this.picked[all.checked ? "add" : "delete"](run.id)); this.onPick(); });
    return all;
  }

  pick(id) { if (!this.picked.delete(id)) this.picked.add(id); this.onPick(); }

  sortBy(name) {
    this.sort = {name, down: this.sort.name === name ? !this.sort.down : false};
    this.show(this.shown);
    this.onChange();
  }

  sortByNext() {
    const at = this.fit.findIndex(one => one.name === this.sort.name);
    this.sortBy((this.fit[at + 1] || this.fit[1]).name);
  }

  show(runs, columns = this.columns) {
    this.columns = measureColumns(columns.filter(one => !one.has || runs.some(one.has)), runs);
    const by = columns.find(one => one.name === this.sort.name) || columns[2], sign = this.sort.down ? -1 : 1;
    const params = columns.filter(one => one.name.startsWith("param:") || one.name === "seed");
    this.shown = [...runs].sort((a, b) => {
      let order = sign * compare(by.value(a), by.value(b));
      for (let at = 0; !order && at < params.length; at++) order = compare(params[at].value(a), params[at].value(b));
      return order || names.compare(a.name, b.name);
    });
    this.names = new Names(this.shown.map(run => this.nameOf(run)));
    this.layOut();
    this.space.style.height = `${this.shown.length * ROW}px`;
    this.draw();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.rows.scrollTop / ROW) - 5);
    const last = Math.min(this.shown.length, first + Math.ceil(this.rows.clientHeight / ROW) + 10);
    this.window.style.transform = `translateY(${first * ROW}px)`;
    this.window.replaceChildren(...this.shown.slice(first, last).map(run => this.row(run)));
  }

  row(run) {
    const row = element("div", "row");
    row.dataset.id = run.id;
    row.setAttribute("role", "row");
    row.setAttribute("aria-selected", run.id === this.selected);
    row.append(...this.fit.map(one => one.name === "pick" ? this.pickCell(run) : one.name === "run" ? this.nameCell(run) : one.cell(run, one.isBrief)));
    return row;
  }

  nameCell(run) {
    const cell = element("span", "name"), text = this.nameOf(run), [begin, end] = this.names.parts(text), at = end ? 0 : begin.indexOf("/") + 1;
    cell.title = run.name;
    cell.append(element("span", "dim", begin.slice(0, at)), element("span", "", begin.slice(at)), element("span", "", end));
    return cell;
  }

  pickCell(run) {
    const cell = element("label", "pick"), box = element("input"), colour = this.colourOf(run.id);
    box.type = "checkbox"; box.checked = this.picked.has(run.id); box.tabIndex = -1; box.setAttribute("aria-label", `select ${run.name}`);
    cell.append(box);
    if (colour) { const dot = element("i"); dot.style.background = colour; cell.append(dot); }
    return cell;
  }

  select(id) { this.selected = id; this.draw(); }

  move(step) {
    if (!this.shown.length) return null;
    const at = this.shown.findIndex(run => run.id === this.selected);
    const next = this.shown[Math.max(0, Math.min(this.shown.length - 1, at + step))];
    const top = this.shown.indexOf(next) * ROW;
    if (top < this.rows.scrollTop) this.rows.scrollTop = top;
    if (top + ROW > this.rows.scrollTop + this.rows.clientHeight) this.rows.scrollTop = top + ROW - this.rows.clientHeight;
    this.select(next.id);
    return next.id;
  }
}

const SIGNS = {completed: "✓", running: "▸", pending: "…", waiting: "…", new: "…", unknown: "?", blocked: "!", cancelled: "–", stopped: "–"};

function stateCell(run, isBrief) {
  const cell = element("span", run.state, isBrief ? SIGNS[run.state] || "✕" : run.state);
  cell.title = run.state;
  if (isBrief) { cell.setAttribute("role", "img"); cell.setAttribute("aria-label", run.state); }
  return cell;
}

function told(run) {
  const cell = run.progress_fraction !== null && run.state === "running" ? progress(run) : element("span", "dim", reason(run));
  cell.title = run.reason || run.progress || "";
  return cell;
}

function progress(run) {
  const box = element("span", "prog"), track = element("span", "track"), fill = element("i");
  fill.style.width = `${Math.round(100 * run.progress_fraction)}%`;
  track.append(fill); box.append(track, element("span", run.gpu_idle_s ? "failed" : "dim", reason(run)));
  return box;
}
