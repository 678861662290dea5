// The table of runs: filter, sort, and only the rows that can be seen are in the document, so 5,000 runs feel like 50.
export const ROW = 30;
export const COLUMNS = [
  ["RUN", run => run.name],
  ["STATE", run => run.state],
  ["WHY", why],
  ["TRY", run => run.attempt],
  ["JOB", run => run.job_id || ""],
  ["NODE", run => run.node || ""],
  ["TIME", run => elapsed(run)],
  ["GPU", run => run.gpu_percent ?? -1],
];
// The exit code is the least telling part of a cause, and space is scarce.
function why(run) {
  const idle = run.gpu_idle_s ? `GPUs idle for ${span(run.gpu_idle_s)}` : "";
  return [idle, (run.cause || run.progress || "").replace(/^exit code \d+: /, "")].filter(Boolean).join("   ");
}

const ORDER = ["running", "stuck", "unknown", "failed", "oom", "timeout", "node_fail", "lost", "preempted", "pending",
  "queued", "new", "cancelled", "stopped", "done"];

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

// "lr3 state:failed,oom node:gpu0 gpu:<10": words are searched in name and cause; a filter can be odd, never wrong.
export function matcher(text) {
  const tests = text.toLowerCase().split(/\s+/).filter(Boolean).map(word => {
    const at = word.indexOf(":");
    const key = at > 0 ? word.slice(0, at) : "", value = word.slice(at + 1);
    const field = {state: "state", node: "node", job: "job_id", exp: "experiment", name: "name", part: "partition", why: "cause",
      partition: "partition"}[key];
    if (field) return run => value.split(",").some(one => String(run[field] ?? "").toLowerCase().includes(one));
    if (key === "gpu" || key === "gpus" || key === "try") {
      const match = /^([<>]?)(\d+)/.exec(value);
      const name = {gpu: "gpu_percent", gpus: "gpus", try: "attempt"}[key];
      if (match) return run => run[name] !== null && (match[1] === "<" ? run[name] < +match[2] : match[1] === ">" ? run[name] > +match[2]
        : run[name] === +match[2]);
    }
    return run => `${run.name} ${run.cause || ""} ${run.state} ${run.job_id || ""}`.toLowerCase().includes(word);
  });
  return run => tests.every(test => test(run));
}

export class Table {
  constructor(rows, head, onOpen) {
    this.rows = rows; this.head = head; this.onOpen = onOpen;
    this.space = rows.querySelector("#space"); this.window = rows.querySelector("#window");
    this.shown = []; this.selected = null; this.sort = {column: 1, down: false};
    rows.addEventListener("scroll", () => this.draw(), {passive: true});
    new ResizeObserver(() => this.draw()).observe(rows);
    this.window.addEventListener("click", event => {
      const row = event.target.closest(".row");
      if (row) { this.select(row.dataset.id); this.onOpen(row.dataset.id); }
    });
    COLUMNS.forEach(([title], column) => {
      const button = element("button", "", title);
      button.addEventListener("click", () => this.sortBy(column));
      head.append(button);
    });
  }

  sortBy(column) {
    this.sort = {column, down: this.sort.column === column ? !this.sort.down : false};
    this.show(this.shown);
  }

  show(runs) {
    const value = COLUMNS[this.sort.column][1], sign = this.sort.down ? -1 : 1;
    const rank = this.sort.column === 1 ? run => ORDER.indexOf(run.state) : value;
    const names = new Intl.Collator(undefined, {numeric: true});
    this.shown = [...runs].sort((a, b) => {
      const x = rank(a), y = rank(b);
      const order = typeof x === "number" ? x - y : names.compare(x, y);
      return sign * order || names.compare(a.name, b.name);
    });
    [...this.head.children].forEach((button, at) => {
      const now = at === this.sort.column;
      button.textContent = COLUMNS[at][0] + (now ? this.sort.down ? " ↓" : " ↑" : "");
      if (now) button.setAttribute("aria-sort", this.sort.down ? "descending" : "ascending"); else button.removeAttribute("aria-sort");
    });
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
    // The end of a name tells runs apart, so the experiment before it is cut first, and then the middle.
    const name = element("span", "name"), at = run.name.indexOf("/") + 1, tail = run.name.length - at > 24 ? run.name.length - 10 : at; name.title = run.name;
    name.append(element("span", "dim", run.name.slice(0, at)), element("span", "", run.name.slice(at, tail)), element("span", "", run.name.slice(tail)));
    const told = run.progress_fraction !== null && run.state === "running" ? progress(run) : element("span", "dim", why(run));
    told.title = run.cause || run.progress || "";
    const limit = run.time_limit_s ? ` / ${span(run.time_limit_s)}` : "";
    row.append(name, element("span", run.state, run.state), told, element("span", "dim", run.attempt || "-"),
      element("span", "dim", run.job_id || "-"), element("span", "dim", run.node || "-"),
      element("span", "", run.started ? span(elapsed(run)) + limit : "-"),
      element("span", "", run.gpu_percent === null ? (run.state === "running" && run.gpus ? "no data" : "-") : `${Math.round(run.gpu_percent)}%`));
    return row;
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

function progress(run) {
  const box = element("span", "prog"), track = element("span", "track"), fill = element("i");
  fill.style.width = `${Math.round(100 * run.progress_fraction)}%`;
  track.append(fill); box.append(track, element("span", run.gpu_idle_s ? "failed" : "dim", why(run)));
  return box;
}
