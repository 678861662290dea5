// Curves of several runs, one plot for each metric: runs or means over seeds, live, all plots with the same zoom.
import {element} from "./table.js";
import {AXIS, Plot} from "./plot.js";

const MAX_PLOTS = 12, LIVE_MS = 5000, MAX_AUTOMATIC = 24;
export const MAX_DRAWN = 200;

export class Curves {
  constructor(root, get, onChange, onOpen) {
    this.root = root; this.get = get; this.onChange = onChange; this.onOpen = onOpen;
    this.options = {x: "step", log: false, smooth: 0, words: ""};
    this.rows = []; this.known = new Map(); this.plots = new Map(); this.version = 0; this.range = null; this.ticket = 0; this.asked = "";
    this.tools = element("div", "tools"); this.grid = element("div", "plots"); this.message = element("p", "dim say");
    this.message.setAttribute("aria-live", "polite");
    root.append(this.tools, this.message, this.grid);
    this.controls();
  }

  controls() {
    const label = (text, control) => { const box = element("label", "", text + " "); box.append(control); return box; };
    this.words = element("input"); this.words.type = "search"; this.words.placeholder = "metrics: words, or all"; this.words.setAttribute("aria-label", "which metrics"); this.words.spellcheck = false;
    this.axis = element("select"); this.axis.setAttribute("aria-label", "x axis");
    Object.entries(AXIS).filter(([name]) => name !== "seconds").forEach(([name, one]) => this.axis.append(new Option(one.title, name)));
    this.log = element("button", "", "log"); this.log.title = "logarithmic scale";
    this.smooth = element("input"); this.smooth.type = "range"; this.smooth.min = 0; this.smooth.max = 0.98; this.smooth.step = 0.02; this.smooth.setAttribute("aria-label", "smoothing");
    this.reset = element("button", "", "show all"); this.reset.hidden = true; this.reset.title = "end the zoom (0, or a double click on a plot)";
    this.words.addEventListener("input", () => this.set({words: this.words.value}));
    this.axis.addEventListener("change", () => { this.range = null; this.set({x: this.axis.value}); });
    this.log.addEventListener("click", () => this.set({log: !this.options.log}));
    this.smooth.addEventListener("input", () => this.set({smooth: +this.smooth.value}));
    this.reset.addEventListener("click", () => this.zoom(null));
    this.tools.append(this.words, label("x", this.axis), this.log, label("smooth", this.smooth), this.reset);
  }

  set(changes) {
    const asks = "x" in changes || "words" in changes;
    Object.assign(this.options, changes);
    this.onChange();
    if (asks) this.ask(); else this.draw();
  }

  // The address: "x,log,smooth,words" with what differs from the usual.
  get address() { const {x, log, smooth, words} = this.options; return x === "step" && !log && !smooth && !words ? "" : [x, log ? 1 : "", smooth || "", words].join(","); }
  set address(text) {
    const [x, log, smooth, ...words] = (text || "").split(",");
    this.options = {x: AXIS[x] ? x : "step", log: Boolean(log), smooth: Math.min(0.98, +smooth || 0), words: words.join(",")};
  }

  // `rows` are the runs or groups to draw, each with id, name, colour and, of a group, its runs.
  show(rows, info, isChosen) {
    this.rows = rows.slice(0, isChosen ? MAX_DRAWN : MAX_AUTOMATIC); this.all = rows.length; this.isChosen = isChosen; this.info = info;
    this.ask();
  }

  hide() { this.ticket++; this.asked = ""; }

  metrics() {
    const words = this.options.words.toLowerCase().split(/[\s,]+/).filter(Boolean), names = this.info.metrics.map(([name]) => name);
    const fits = name => words.some(word => word === "all" || name.toLowerCase() === word || name.toLowerCase().includes(word));
    return words.length ? names.filter(fits) : names.slice(0, 4);
  }

  async ask() {
    if (!this.info) return;
    const metrics = this.metrics().slice(0, MAX_PLOTS), groups = this.rows.filter(row => row.runs);
    const query = {metrics, x: this.options.x, points: Math.round(Math.max(150, Math.min(1000, 60000 / Math.max(1, this.rows.length)))),
      runs: this.rows.filter(row => !row.runs).map(row => row.id), groups: Object.fromEntries(groups.map(row => [row.id, row.runs]))};
    const asked = JSON.stringify(query);
    if (asked === this.asked) { this.draw(); return; }
    this.asked = asked; this.known.clear(); this.withoutX = new Set(); this.version = 0;
    const ticket = ++this.ticket;
    this.draw("reading …");
    while (ticket === this.ticket) {
      let found;
      try { found = await this.get("/api/curves", {q: JSON.stringify({...query, since: this.version})}); } catch (error) {
        if (ticket === this.ticket) this.message.textContent = error.message;
        found = null;
      }
      if (ticket !== this.ticket) return;
      if (found) {
        if (found.curves.length || found.unread || !this.version) {
          found.curves.forEach(one => this.known.set(`${one.metric}\n${one.id}`, one));
          found.without_x.forEach(id => this.withoutX.add(id));
          this.draw(found.unread ? `reading: ${found.unread} more runs …` : "");
        }
        this.version = found.version; // runs that are read later have a higher one
        if (found.isCopy) return;
      }
      await new Promise(resolve => setTimeout(resolve, found && found.unread ? 30 : LIVE_MS));
    }
  }

  zoom(range) {
    this.range = range;
    this.reset.hidden = !range;
    this.draw();
  }

  draw(words = "") {
    const {x, log, smooth} = this.options, all = this.metrics(), metrics = all.slice(0, MAX_PLOTS);
    if (document.activeElement !== this.words) this.words.value = this.options.words;
    this.axis.value = x; this.smooth.value = smooth; this.log.setAttribute("aria-pressed", log);
    const notes = [words];
    if (!this.info.metrics.length) notes.push("no run has written a metric yet: metrics.jsonl, Lightning's metrics.csv, TensorBoard and W&B's offline files are read");
    else if (!all.length) notes.push("no metric has such a name");
    else if (all.length > metrics.length) notes.push(`${metrics.length} of ${all.length} metrics; words in the field choose others`);
    else if (all.length < this.info.metrics.length && !this.options.words) notes.push(`${metrics.length} of ${this.info.metrics.length} metrics`);
    if (this.rows.length < this.all) notes.push(this.isChosen ? `the first ${this.rows.length} of ${this.all} are drawn` : `the first ${this.rows.length} rows of ${this.all}; select rows to choose`);
    const without = this.withoutX ? this.rows.filter(row => this.withoutX.has(row.id)).length : 0;
    if (without) notes.push(`${without} of them do not tell ${x === "epoch" ? "an epoch" : "the time"} with their metrics`);
    this.message.textContent = notes.filter(Boolean).join(" · ");
    for (const [name, plot] of this.plots) if (!metrics.includes(name)) { plot.figure.remove(); this.plots.delete(name); }
    metrics.forEach((name, at) => {
      const plot = this.plots.get(name) || this.add(name);
      if (this.grid.children[at] !== plot.figure) this.grid.insertBefore(plot.figure, this.grid.children[at] || null);
      const series = this.rows.map(row => ({row, curve: this.known.get(`${name}\n${row.id}`)})).filter(one => one.curve)
        .map(({row, curve}) => ({...curve, name: row.label || row.name, colour: row.colour}));
      plot.text = series.length < this.rows.length && !words ? `${this.rows.length - series.length} without it` : "";
      plot.show(series, {axis: x, log, smooth}, this.range);
    });
    this.grid.classList.toggle("single", metrics.length === 1);
  }

  add(name) {
    const plot = new Plot(name, {zoom: range => this.zoom(range), pick: id => this.onOpen(id),
      hover: x => { for (const other of this.plots.values()) if (other !== plot) other.point(x); }});
    this.plots.set(name, plot);
    return plot;
  }
}
