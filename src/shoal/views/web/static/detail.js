// One run: its log as it grows, its errors, curves, reasons, script and events.
import {element, elapsed, span} from "./table.js";

export const TABS = ["log", "errors", "metrics", "why", "script", "events"];
const LOOK_MS = 2000;

export class Detail {
  constructor(root, get, act, isCopy) {
    this.isCopy = isCopy; this.root = root; this.get = get; this.act = act; this.tab = "log"; this.run = null; this.ticket = 0; this.stream = "out";
    this.pane = root.querySelector("#pane"); this.tabs = root.querySelector("#tabs");
    TABS.forEach(name => {
      const button = element("button", "", name);
      button.setAttribute("role", "tab");
      button.addEventListener("click", () => this.show(name));
      this.tabs.append(button);
    });
    root.querySelector("#close").addEventListener("click", () => this.close());
  }

  open(run, head) {
    const same = this.run && this.run.id === run.id;
    this.run = run; this.root.hidden = false;
    this.title(run, head);
    if (!same) { this.attempt = null; this.part = ""; this.show(this.tab); }
  }

  title(run, head) {
    this.run = run;
    this.root.querySelector("#run-name").textContent = run.name;
    const line = this.root.querySelector("#run-line");
    const time = run.started ? ` · ${span(elapsed(run))}` : "";
    line.replaceChildren(element("b", run.state, run.state), element("span", "", `${run.cause ? " · " + run.cause : ""}${run.progress ? " · " + run.progress : ""}${time}`));
    const wanted = head.actions.filter(name => head.states[name === "cancel" ? "active" : "retryable"].includes(run.state));
    this.root.querySelector("#acts").replaceChildren(...wanted.map(name => {
      const button = element("button", name === "cancel" ? "danger" : "", name);
      button.addEventListener("click", () => this.act(name, run));
      return button;
    }));
  }

  close() { this.root.hidden = true; this.run = null; this.ticket++; }

  async show(name) {
    this.tab = name;
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
      info.attempts.forEach(number => choice.append(new Option(`attempt ${number}`, number)));
      choice.value = this.attempt || info.attempts[info.attempts.length - 1];
      choice.addEventListener("change", () => { this.attempt = +choice.value; this.part = ""; this.show("log"); });
      choice.setAttribute("aria-label", "attempt");
      tools.append(choice);
    }
    const whose = element("select"), earlier = element("button", "", "earlier");
    whose.setAttribute("aria-label", "rank or replica"); whose.hidden = earlier.hidden = true;
    whose.addEventListener("change", () => { this.part = whose.value; this.show("log"); });
    tools.append(whose, earlier, size); box.append(text);
    this.pane.replaceChildren(tools, box);
    let next = null, first = 0, tries = null, part = this.stream === "slurm" ? "" : this.part;
    const query = more => ({run: run.id, stream: this.stream, ...(this.attempt ? {attempt: this.attempt} : {}), ...(part ? {part} : {}), ...more});
    earlier.addEventListener("click", async () => {
      const from = Math.max(0, first - 262144), found = await this.get("/api/log", query({offset: from, most: first - from}));
      first = found.offset; text.prepend(found.text); earlier.hidden = first === 0;
    });
    while (ticket === this.ticket) {
      if (next !== null && this.isCopy) { earlier.hidden = true; return; }
      const found = await this.get("/api/log", query({offset: next === null ? -65536 : next}));
      if (ticket !== this.ticket) return;
      // What was started again has a new file; one that became shorter was begun anew.
      if (tries !== null && (found.tries !== tries || found.size < next)) { this.show("log"); return; }
      tries = found.tries;
      if (found.size) part = found.part;
      if (!this.isCopy) offer(whose, found.parts, found.part);
      const low = box.scrollHeight - box.scrollTop - box.clientHeight < 40 || next === null;
      if (next === null) { first = found.offset; earlier.hidden = first === 0; }
      if (found.text) {
        text.append(found.text);
        while (text.childNodes.length > 400) text.firstChild.remove();
      }
      if (next === null && !found.size) text.textContent = run.ended ? "nothing was printed" : "nothing was printed yet";
      else if (found.text && next === 0) text.textContent = found.text;
      next = found.next;
      size.textContent = bytes(found.size);
      if (low) box.scrollTop = box.scrollHeight;
      await new Promise(resolve => setTimeout(resolve, found.next < found.size ? 50 : LOOK_MS));
    }
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
    while (ticket === this.ticket) {
      const found = await this.get("/api/metrics", {run: this.run.id});
      if (ticket !== this.ticket) return;
      const plots = Object.entries(found.series).map(([name, points]) => plot(name, points, step => `step ${step.toLocaleString()}`));
      found.usage.forEach(node => plots.push(...usagePlots(node, found.usage.length > 1 ? `${node.host}: ` : "")));
      if (!plots.length) plots.push(element("p", "dim", "no metrics.jsonl, W&B or TensorBoard file in its output folder, and no samples yet"));
      this.pane.replaceChildren(...plots);
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

  async events(ticket) {
    const found = await this.get("/api/run", {run: this.run.id});
    if (ticket !== this.ticket) return;
    const list = element("dl", "facts");
    found.events.forEach(event => list.append(element("dt", "", new Date(event.t * 1000).toLocaleString()), element("dd", "", event.what)));
    this.pane.replaceChildren(list);
  }
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

function usagePlots(node, prefix) {
  const plots = [["CPUs in use", 1], ["memory, MB", 2], ["GPU, %", 3], ["GPU memory, MB", 4]].map(([name, at]) => {
    const points = node.points.filter(point => point[at] !== null).map(point => [point[0], point[at]]);
    return points.length ? plot(prefix + name, points, span) : null;
  });
  if (!node.gpus.length) plots.push(element("p", "dim", `${prefix}GPU: no data${node.gpu_problem ? ` (${node.gpu_problem})` : ""}`));
  return plots.filter(Boolean);
}

function plot(name, points, at) {
  const figure = element("figure"), caption = element("figcaption");
  const xs = points.map(point => point[0]), ys = points.map(point => point[1]);
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const number = value => Number(value.toPrecision(4)).toLocaleString();
  caption.append(element("b", "", name), element("span", "", `last ${number(ys[ys.length - 1])} · least ${number(y0)} · most ${number(y1)}`));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "plot"); svg.setAttribute("viewBox", "0 0 600 150"); svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img"); svg.setAttribute("aria-label", `${name} from ${number(ys[0])} to ${number(ys[ys.length - 1])}`);
  const place = ([x, y]) => `${(8 + 584 * (x - x0) / (x1 - x0 || 1)).toFixed(1)},${(y1 > y0 ? 140 - 128 * (y - y0) / (y1 - y0) : 75).toFixed(1)}`;
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", points.length > 1 ? `M${points.map(place).join("L")}` : `M8,75L592,75`);
  svg.append(path);
  const under = element("figcaption");
  under.append(element("span", "", at(x0)), element("span", "", at(x1)));
  figure.append(caption, svg, under);
  return figure;
}
