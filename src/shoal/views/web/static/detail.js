// One run: its log as it grows, its errors, curves, reasons, script, attempts, provenance and files.
import {element, elapsed, number, span} from "./table.js";
import {Plot} from "./plot.js";

export const TABS = ["log", "errors", "metrics", "why", "script", "attempts", "provenance", "files"];
const LOOK_MS = 2000, MAX_TEXT = 8 << 20;

export class Detail {
  constructor(root, get, act, isCopy, onChange) {
    this.isCopy = isCopy; this.onChange = onChange; this.root = root; this.get = get; this.act = act; this.tab = "log"; this.run = null; this.ticket = 0; this.stream = "out";
    this.pane = root.querySelector("#pane"); this.tabs = root.querySelector("#tabs");
    TABS.forEach(name => {
      const button = element("button", "", name);
      button.setAttribute("role", "tab");
      button.addEventListener("click", () => this.show(name));
      this.tabs.append(button);
    });
    root.querySelector("#close").addEventListener("click", () => this.close());
    root.querySelector("#wide").addEventListener("click", () => this.widen(!this.isWide));
  }

  // As wide as the window, or beside the table.
  widen(isWide) {
    this.isWide = isWide; this.root.classList.toggle("wide", isWide);
    this.root.querySelector("#wide").setAttribute("aria-pressed", isWide);
    this.onChange();
  }

  open(run, head) {
    const same = this.run && this.run.id === run.id;
    this.run = run; this.root.hidden = false;
    this.title(run, head);
    if (!same) { this.attempt = null; this.part = ""; this.lines(run); this.show(this.tab); }
  }

  // Commands to copy: repeat it, attach to it, forward a port, start it again.
  async lines(run) {
    const box = this.root.querySelector("#lines");
    box.replaceChildren();
    let found;
    try { found = await this.get("/api/run", {run: run.id}); } catch { return; }
    if (!this.run || this.run.id !== run.id) return;
    Object.entries(found.commands).forEach(([name, text]) => {
      const button = element("button", "", name);
      button.title = `copy: ${text}`;
      button.addEventListener("click", async () => {
        try { await navigator.clipboard.writeText(text); button.textContent = "copied"; } catch { button.textContent = name; }
        line.textContent = text; setTimeout(() => { button.textContent = name; }, 1500);
      });
      box.append(button);
    });
    const line = element("code", "", found.commands.repeat || ""); line.tabIndex = 0;
    if (line.textContent) box.append(line);
  }

  title(run, head) {
    this.run = run;
    this.root.querySelector("#run-name").textContent = run.name;
    const line = this.root.querySelector("#run-line");
    const time = run.started ? ` · ${span(elapsed(run))}` : "";
    const cause = run.cause && run.cause !== run.state ? ` · ${run.cause}` : "";
    line.replaceChildren(element("b", run.state, run.state), element("span", "", `${cause}${run.reason ? " · " + run.reason : ""}${run.progress ? " · " + run.progress : ""}${time}`));
    const wanted = head.actions.filter(name => head.states[name === "cancel" ? "active" : "retryable"].includes(run.state));
    this.root.querySelector("#acts").replaceChildren(...wanted.map(name => {
      const button = element("button", name === "cancel" ? "danger" : "", name);
      button.addEventListener("click", () => this.act(name, run));
      return button;
    }));
  }

  close() { this.root.hidden = true; this.run = null; this.ticket++; this.onChange(); }

  async show(name) {
    this.tab = name;
    this.onChange();
    const ticket = ++this.ticket;
    [...this.tabs.children].forEach(button => button.setAttribute("aria-selected", button.textContent === name));
    this.pane.replaceChildren(element("p", "dim", "…"));
    try {
      await this[name](ticket);
    } catch (error) {
      if (ticket === this.ticket) this.pane.replaceChildren(element("p", "failed", error.message));
    }
  }

  async log(ticket) {
    const run = this.run, info = await this.get("/api/run", {run: run.id});
    if (ticket !== this.ticket) return;
    const tools = element("div", "tools"), box = element("div", "log"), text = element("pre"), size = element("span");
    (this.isCopy ? ["out"] : ["out", "slurm"]).forEach(stream => {
      const button = element("button", "", stream);
      button.setAttribute("aria-pressed", stream === this.stream);
      button.addEventListener("click", () => { this.stream = stream; this.show("log"); });
      tools.append(button);
    });
    if (info.attempts.length > 1 && !this.isCopy) {
      const choice = element("select");
      info.attempts.forEach(one => choice.append(new Option(`attempt ${one.attempt}`, one.attempt)));
      choice.value = this.attempt || info.attempts[info.attempts.length - 1].attempt;
      choice.addEventListener("change", () => { this.attempt = +choice.value; this.part = ""; this.show("log"); });
      choice.setAttribute("aria-label", "attempt");
      tools.append(choice);
    }
    const whose = element("select"), earlier = element("button", "", "earlier");
    whose.setAttribute("aria-label", "rank or replica"); whose.hidden = earlier.hidden = true;
    whose.addEventListener("change", () => { this.part = whose.value; this.show("log"); });
    const search = element("input"), matches = element("span");
    search.type = "search"; search.placeholder = "search the log"; search.setAttribute("aria-label", "search the log"); search.spellcheck = false; search.value = this.search || "";
    matches.setAttribute("aria-live", "polite");
    tools.append(whose, earlier, search, matches, size); box.append(text);
    this.pane.replaceChildren(tools, ...await this.firstErrors(run), box);
    if (ticket !== this.ticket) return;
    // What was read is kept as one text; a search shows the lines that hold its words, with their numbers.
    let whole = "";
    const draw = () => {
      const words = search.value.toLowerCase();
      this.search = search.value;
      if (!words) { matches.textContent = ""; text.textContent = whole; return; }
      const lines = whole.split("\n"), found = lines.map((line, at) => [at, line]).filter(([, line]) => line.toLowerCase().includes(words));
      matches.textContent = `${found.length} of ${lines.length} lines`;
      text.textContent = found.slice(-2000).map(([at, line]) => `${at + 1}: ${line}`).join("\n");
    };
    search.addEventListener("input", () => { draw(); if (!search.value) box.scrollTop = box.scrollHeight; });
    let next = null, first = 0, attempts = null, part = this.stream === "slurm" ? "" : this.part;
    const query = more => ({run: run.id, stream: this.stream, ...(this.attempt ? {attempt: this.attempt} : {}), ...(part ? {part} : {}), ...more});
    earlier.addEventListener("click", async () => {
      const from = Math.max(0, first - 262144), found = await this.get("/api/log", query({offset: from, most: first - from}));
      first = found.offset; whole = found.text + whole; draw(); earlier.hidden = first === 0;
    });
    while (ticket === this.ticket) {
      if (next !== null && this.isCopy) { earlier.hidden = true; return; }
      const found = await this.get("/api/log", query({offset: next === null ? -65536 : next}));
      if (ticket !== this.ticket) return;
      // What was started again has a new file; one that became shorter was begun anew.
      if (attempts !== null && (found.attempts !== attempts || found.size < next)) { this.show("log"); return; }
      attempts = found.attempts;
      if (found.size) part = found.part;
      if (!this.isCopy) offer(whose, found.parts, found.part);
      const low = box.scrollHeight - box.scrollTop - box.clientHeight < 40 || next === null;
      if (next === null) { first = found.offset; earlier.hidden = first === 0; }
      if (found.text) {
        whole = (whole + found.text).slice(-MAX_TEXT);
        if (search.value || whole.length === MAX_TEXT || next === null) draw(); else if (next === 0) text.textContent = whole; else text.append(found.text);
      }
      if (next === null && !found.size) text.textContent = run.ended ? "nothing was printed" : "nothing was printed yet";
      next = found.next;
      size.textContent = bytes(found.size);
      if (low) box.scrollTop = box.scrollHeight;
      await new Promise(resolve => setTimeout(resolve, found.next < found.size ? 50 : LOOK_MS));
    }
  }

  // Of a failed run, what went wrong stands above its log.
  async firstErrors(run) {
    if (!run.ended || run.state === "completed") return [];
    let found;
    try { found = await this.get("/api/why", {run: run.id}); } catch { return []; }
    if (!found.log_lines.length) return [];
    const box = element("details", "first"), lines = element("pre", "", found.log_lines.slice(-12).join("\n"));
    box.open = true; box.append(element("summary", "failed", found.headline), lines);
    return [box];
  }

  async errors(ticket) {
    const found = await this.get("/api/why", {run: this.run.id});
    if (ticket !== this.ticket) return;
    if (!found.log_lines.length) { this.pane.replaceChildren(element("p", "dim", "no error was found in its log")); return; }
    const box = element("div", "log"); box.append(element("pre", "", found.log_lines.join("\n")));
    this.pane.replaceChildren(element("p", "say", found.headline), box);
  }

  async why(ticket) {
    const found = await this.get("/api/why", {run: this.run.id});
    if (ticket !== this.ticket) return;
    const list = element("ul");
    found.evidence.forEach(line => list.append(element("li", "", line)));
    const parts = [element("p", "say", found.headline), list];
    if (found.start_estimate) parts.push(element("p", "", `Slurm estimates its start at ${new Date(found.start_estimate * 1000).toLocaleString()}`));
    else if (found.estimate_note) parts.push(element("p", "dim", found.estimate_note));
    found.sooner.forEach(one => parts.push(element("p", "", `with ${one.what} it could start at ${new Date(one.start * 1000).toLocaleTimeString()}: ${one.flag}`)));
    if (found.next.length) parts.push(element("p", "dim", "next"), ...found.next.map(text => element("code", "", text)));
    this.pane.replaceChildren(...parts);
  }

  async metrics(ticket) {
    const plots = new Map();
    while (ticket === this.ticket) {
      const found = await this.get("/api/metrics", {run: this.run.id});
      if (ticket !== this.ticket) return;
      const wanted = Object.entries(found.series).map(([name, points]) => [name, points, "step"]);
      found.usage.forEach(node => wanted.push(...usageSeries(node, found.usage.length > 1 ? `${node.host}: ` : "")));
      const notes = found.usage.filter(node => !node.gpus.length).map(node => element("p", "dim", `${found.usage.length > 1 ? `${node.host}: ` : ""}GPU: no data${node.gpu_problem ? ` (${node.gpu_problem})` : ""}`));
      if (!wanted.length) notes.unshift(element("p", "dim", "no metrics.jsonl, W&B or TensorBoard file in its output folder, and no samples yet"));
      if (found.metrics > Object.keys(found.series).length && found.metrics > 40) notes.unshift(element("p", "dim", `${Object.keys(found.series).length} of ${found.metrics} metrics; Curves shows the others`));
      if (!plots.size || wanted.some(([name]) => !plots.has(name))) {
        const grid = element("div", "plots");
        wanted.forEach(([name]) => { if (!plots.has(name)) plots.set(name, new Plot(name)); grid.append(plots.get(name).figure); });
        this.pane.replaceChildren(grid, ...notes);
      }
      wanted.forEach(([name, points, axis]) => {
        const values = points.map(point => point[1]).filter(value => value !== null), plot = plots.get(name);
        plot.text = values.length ? `last ${number(values[values.length - 1])} · least ${number(Math.min(...values))} · most ${number(Math.max(...values))}` : "";
        plot.show([{id: this.run.id, name: "this run", colour: 0, x: points.map(point => point[0]), y: points.map(point => point[1])}], {axis});
      });
      if (this.run.state !== "running" || this.isCopy) return;
      await new Promise(resolve => setTimeout(resolve, 3 * LOOK_MS));
    }
  }

  async script(ticket) {
    const found = await this.get("/api/run", {run: this.run.id});
    if (ticket !== this.ticket) return;
    const box = element("div", "log"); box.append(element("pre", "", found.script || "no script"));
    const facts = element("dl", "facts");
    const spec = found.spec || {};
    const rows = {command: (spec.command || []).concat(spec.args || []).join(" "), seed: spec.seed, ...(spec.params || {}), ...(spec.env || {})};
    Object.entries(rows).forEach(([key, value]) => { if (value !== null && value !== undefined && value !== "") facts.append(element("dt", "", key), element("dd", "", String(value))); });
    this.pane.replaceChildren(facts, element("p", "", ""), box);
  }

  async attempts(ticket) {
    const found = await this.get("/api/run", {run: this.run.id});
    if (ticket !== this.ticket) return;
    const rows = found.attempts.map(one => [one.attempt, time(one.started), one.started && one.ended ? span(one.ended - one.started) : one.started ? "running" : "-", one.node || "-", one.job_id || "-",
      one.problem || (one.success === null || one.success === undefined ? "-" : one.success ? "completed" : [one.cause, one.exit_code === null ? "" : `exit code ${one.exit_code}`].filter(Boolean).join(", ")), one.resume_from || "-"]);
    const list = element("dl", "facts");
    found.events.forEach(event => list.append(element("dt", "", time(event.t)), element("dd", "", event.what)));
    this.pane.replaceChildren(rows.length ? tableOf(["ATTEMPT", "STARTED", "TIME", "NODE", "JOB", "END", "RESUMED FROM"], rows) : element("p", "dim", "no attempt has started"), element("h3", "", "Events"), list);
  }

  async provenance(ticket) {
    const found = await this.get("/api/provenance", {run: this.run.id});
    if (ticket !== this.ticket) return;
    const facts = element("dl", "facts"), names = {commit: "commit", changed: "changed since", code: "code snapshot", user: "submitted by", cluster: "profile", shoal: "shoal", python: "Python", version: "version", problem: "problem"};
    Object.entries(names).forEach(([key, text]) => { const value = found[key]; if (value !== null && value !== undefined && value !== "") facts.append(element("dt", "", text), element("dd", "", value === true ? "yes, see the difference below" : value === false ? "no" : String(value))); });
    const parts = [facts];
    if (!found.commit) parts.push(element("p", "dim", "no commit was recorded: the project is not in git, or nothing was submitted yet"));
    if (found.diff) { const box = element("div", "log"); box.append(element("pre", "", found.diff)); parts.push(element("h3", "", "Difference to the commit"), box); }
    if (found.packages && found.packages.length) { const all = element("details"); all.append(element("summary", "", `${found.packages.length} packages`), element("pre", "", found.packages.join("\n"))); parts.push(all); }
    this.pane.replaceChildren(...parts);
  }

  async files(ticket) {
    const found = await this.get("/api/files", {run: this.run.id});
    if (ticket !== this.ticket) return;
    const more = found.left_out || found.is_cut ? `; the newest ${found.files.length} are listed` : "";
    this.pane.replaceChildren(element("code", "", found.folder || "no output directory yet"), element("p", "dim", `${found.files.length} files${more}`),
      tableOf(["FILE", "SIZE", "CHANGED"], found.files.map(([name, size, t]) => [name, bytes(size), time(t)])));
  }
}

const time = t => t ? new Date(t * 1000).toLocaleString() : "-";

export function tableOf(titles, rows) {
  const box = element("div", "scroll"), table = element("table", "list"), head = element("tr");
  head.append(...titles.map(text => { const cell = element("th", "", text); cell.scope = "col"; return cell; }));
  table.append(head, ...rows.map(row => { const line = element("tr"); line.append(...row.map(text => text instanceof Node ? text : element("td", "", text))); return line; }));
  box.append(table);
  return box;
}

function bytes(count) {
  const power = Math.min(3, Math.floor(Math.log2(Math.max(1, count)) / 10)), value = count / 1024 ** power;
  return `${value.toFixed(power && value < 10 ? 1 : 0)} ${["bytes", "KB", "MB", "GB"][power]}`;
}

// The ranks and replicas of a run, where it has several; their list grows while they start.
function offer(choice, names, now) {
  choice.hidden = names.length < 2;
  if (names.length !== choice.length) choice.replaceChildren(...names.map(name => new Option(name, name)));
  if (choice !== document.activeElement) choice.value = now;
}

function usageSeries(node, prefix) {
  return [["CPUs in use", 1], ["memory, MB", 2], ["GPU, %", 3], ["GPU memory, MB", 4]]
    .map(([name, at]) => [prefix + name, node.points.filter(point => point[at] !== null).map(point => [point[0], point[at]]), "seconds"]).filter(one => one[1].length);
}
