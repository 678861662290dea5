// Parameters against a metric: parallel coordinates, one parameter as a scatter plot, two as a heat map.
import {element, number} from "./table.js";
import {css, isDark, ticks} from "./plot.js";

// 0 is the worst value, 1 the best: from the colour of the paper to a strong one.
const SHADES = {bright: [[206, 216, 228], [70, 146, 196], [0, 62, 104]], dark: [[46, 58, 72], [52, 128, 184], [190, 232, 255]]};
export function shade(share) {
  const stops = SHADES[isDark() ? "dark" : "bright"], at = Math.min(1, Math.floor(share * 2)), part = share * 2 - at;
  return stops[at].map((value, band) => Math.round(value + (stops[at + 1][band] - value) * part));
}
const rgb = share => share === null ? css("--line") : `rgb(${shade(share).join(" ")})`;

// How the values of a parameter lie on an axis: numbers by size, by their logarithm where they span much, text in order.
function scaleOf(cells) {
  const known = cells.filter(Boolean), isNumber = known.length > 0 && known.every(cell => cell[1] === 0), values = known.map(cell => cell[2]);
  if (!isNumber) {
    const order = [...new Map(known.sort((a, b) => a[1] - b[1] || a[2] - b[2] || String(a[3]).localeCompare(b[3], undefined, {numeric: true})).map(cell => [cell[0], 0])).keys()];
    const place = cell => order.length > 1 ? order.indexOf(cell[0]) / (order.length - 1) : 0.5;
    return {place, marks: order.slice(0, 12).map((text, at) => [text, order.length > 1 ? at / (order.length - 1) : 0.5])};
  }
  const low = Math.min(...values), high = Math.max(...values), isLog = low > 0 && high / low >= 20;
  const at = value => low === high ? 0.5 : isLog ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  const few = [...new Set(values)].sort((a, b) => a - b), marks = few.length <= 8 ? few : ticks(low, high, 5, isLog);
  return {place: cell => at(cell[2]), marks: marks.map(value => [number(value), at(value)])};
}

export class Params {
  constructor(root, get, onOpen, onChange) {
    this.root = root; this.get = get; this.onOpen = onOpen; this.onChange = onChange; this.options = {metric: "", x: "", y: ""}; this.brush = new Map(); this.lit = null;
    this.tools = element("div", "tools"); this.message = element("p", "dim say"); this.message.setAttribute("aria-live", "polite");
    this.metric = this.choice("metric", "metric"); this.x = this.choice("parameter", "x"); this.y = this.choice("against", "y");
    this.parallel = this.canvas("parallel"); this.scatter = this.canvas("scatter"); this.heat = element("div", "heat");
    const pair = element("div", "pair"); pair.append(this.scatter.figure, this.heat);
    root.append(this.tools, this.message, this.parallel.figure, pair);
    this.pair = pair;
  }

  choice(text, name) {
    const label = element("label", "", text + " "), select = element("select");
    select.setAttribute("aria-label", text);
    select.addEventListener("change", () => { this.options[name] = select.value; this.onChange(); this.load(); });
    label.append(select); this.tools.append(label);
    return select;
  }

  canvas(name) {
    const figure = element("figure", `plot ${name}`), caption = element("figcaption"), box = element("div", "canvas"), canvas = element("canvas"), tip = element("div", "tip");
    canvas.tabIndex = 0; canvas.setAttribute("role", "img"); tip.hidden = true;
    box.append(canvas, tip); figure.append(caption, box);
    const found = {figure, caption, box, canvas, tip, points: []};
    new ResizeObserver(() => this.draw()).observe(box);
    const near = event => {
      const frame = canvas.getBoundingClientRect(), px = event.clientX - frame.left, py = event.clientY - frame.top;
      return found.near ? found.near(px, py) : null;
    };
    canvas.addEventListener("pointermove", event => { if (event.buttons && found.drag) { found.drag(event); return; } this.light(near(event)); });
    canvas.addEventListener("pointerleave", () => this.light(null));
    canvas.addEventListener("click", event => { const run = near(event); if (run && !found.dragged) this.onOpen(run.id); found.dragged = false; });
    canvas.addEventListener("keydown", event => this.key(event));
    return found;
  }

  get address() { const {metric, x, y} = this.options; return metric || x || y ? JSON.stringify([metric, x, y]) : ""; }
  set address(text) { let found = []; try { found = JSON.parse(text || "[]"); } catch { /* somebody's own address */ } const [metric, x, y] = Array.isArray(found) ? found.map(String) : []; this.options = {metric: metric || "", x: x || "", y: y || ""}; }

  async show(runs, table, info, experiment) {
    this.runs = runs; this.table = table; this.info = info; this.experiment = experiment;
    await this.load();
  }

  async load() {
    if (!this.info) return;
    const fill = (select, names, value) => { if (document.activeElement !== select) { select.replaceChildren(...names.map(([name, text]) => new Option(text, name))); select.value = value; } };
    const metrics = this.info.metrics.map(([name]) => [name, name]), params = this.table ? this.table.params : [];
    const wanted = this.info.metrics.some(([name]) => name === this.options.metric) ? this.options.metric : (this.info.metric || {}).name || "";
    const known = name => params.some(one => one[0] === name);
    const x = known(this.options.x) ? this.options.x : (params[0] || [""])[0], y = known(this.options.y) && this.options.y !== x ? this.options.y : (params.find(one => one[0] !== x) || [""])[0];
    this.now = {metric: wanted, x, y};
    fill(this.metric, metrics, wanted); fill(this.x, params, x); fill(this.y, params.filter(one => one[0] !== x), y);
    this.y.parentElement.hidden = params.length < 2; this.x.parentElement.hidden = !params.length;
    const isPossible = params.length > 0 && wanted;
    this.parallel.figure.hidden = !isPossible || params.length < 2; this.pair.hidden = !isPossible; this.heat.hidden = params.length < 2;
    if (!isPossible) { this.message.textContent = wanted ? "no parameter differs between these runs" : "no run has written a metric yet"; return; }
    let found;
    try { found = await this.get("/api/values", {experiment: this.experiment, metric: wanted}); } catch (error) { this.message.textContent = error.message; return; }
    if (this.now.metric !== wanted) return;
    const mode = (this.info.metric && this.info.metric.name === wanted ? this.info.metric.mode : found.mode) || "";
    this.points = this.runs.filter(run => typeof found.values[run.id] === "number" && run.params).map(run => ({id: run.id, name: run.name, params: run.params, value: found.values[run.id]}));
    const values = this.points.map(one => one.value), low = Math.min(...values), high = Math.max(...values);
    this.points.forEach(one => { const share = high > low ? (one.value - low) / (high - low) : 0.5; one.share = mode === "max" ? share : 1 - share; });
    this.points.sort((a, b) => a.share - b.share); // the best is drawn last
    const missing = this.runs.length - this.points.length;
    this.message.textContent = [`${this.points.length} runs, ${mode === "max" ? "larger" : mode === "min" ? "smaller" : "the darker the smaller:"} ${wanted}${mode ? " is better" : ""}`,
      missing ? `${missing} without a value` : ""].filter(Boolean).join(" · ");
    this.draw();
  }

  draw() {
    if (!this.points || !this.now) return;
    this.drawParallel(); this.drawScatter(); this.drawHeat();
  }

  begin(part) {
    const wide = part.box.clientWidth, high = part.box.clientHeight, scale = devicePixelRatio || 1, pen = part.canvas.getContext("2d");
    part.canvas.width = wide * scale; part.canvas.height = high * scale; pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.font = "11px system-ui"; pen.lineJoin = "round";
    return {pen, wide, high};
  }

  passes(run) { return [...this.brush].every(([name, [low, high]]) => { const at = this.at(name, run); return at !== null && at >= low && at <= high; }); }
  at(name, run) { const scale = this.scales.get(name), cell = name === "\n" ? [0, 0, run.value] : run.params[name]; return cell && cell[1] !== 2 ? scale.place(cell) : null; }

  drawParallel() {
    if (this.parallel.figure.hidden) return;
    const {pen, wide, high} = this.begin(this.parallel), names = [...this.table.params.slice(0, wide < 500 ? 4 : 10), ["\n", this.now.metric]], top = 24, bottom = high - 14;
    this.scales = new Map(names.map(([name]) => [name, scaleOf(this.points.map(one => name === "\n" ? [number(one.value), 0, one.value] : one.params[name]))]));
    const left = 34, x = at => left + at * (wide - left - 62) / Math.max(1, names.length - 1), y = share => bottom - share * (bottom - top);
    const line = (run, width, alpha) => {
      pen.strokeStyle = rgb(run.share); pen.globalAlpha = alpha; pen.lineWidth = width; pen.beginPath();
      let before = false;
      names.forEach(([name], at) => { const place = this.at(name, run); if (place !== null) pen[before ? "lineTo" : "moveTo"](x(at), y(place)); before = place !== null; });
      pen.stroke(); pen.globalAlpha = 1;
    };
    this.points.forEach(run => line(run, 1.5, this.passes(run) ? 0.85 : 0.08));
    if (this.lit) line(this.lit, 4, 1);
    names.forEach(([name, text], at) => {
      pen.strokeStyle = css("--soft"); pen.lineWidth = 1; pen.beginPath(); pen.moveTo(x(at), top); pen.lineTo(x(at), bottom); pen.stroke();
      const range = this.brush.get(name);
      if (range) { pen.fillStyle = css("--accent"); pen.globalAlpha = 0.25; pen.fillRect(x(at) - 6, y(range[1]), 12, y(range[0]) - y(range[1])); pen.globalAlpha = 1; }
      pen.fillStyle = css("--ink"); pen.textAlign = at === 0 ? "left" : at === names.length - 1 ? "right" : "center";
      pen.fillText(text, at === 0 ? 2 : at === names.length - 1 ? wide - 2 : x(at), 12);
      pen.fillStyle = css("--soft"); pen.textAlign = "left";
      this.scales.get(name).marks.forEach(([mark, place]) => pen.fillText(mark.length > 12 ? mark.slice(0, 11) + "…" : mark, x(at) + 5, y(place) + 4));
    });
    this.parallel.caption.replaceChildren(element("b", "", "all parameters"), element("span", "dim", this.brush.size ? `${this.points.filter(run => this.passes(run)).length} runs pass; click an axis to release it` : "drag along an axis to select"));
    const axisAt = px => names.reduce((best, _, at) => Math.abs(x(at) - px) < Math.abs(x(best) - px) ? at : best, 0);
    this.parallel.near = (px, py) => {
      const at = Math.max(0, Math.min(names.length - 2, Math.floor((px - left) / ((x(1) - x(0)) || 1)))), share = (px - x(at)) / ((x(at + 1) - x(at)) || 1);
      let best = null, least = 12;
      this.points.forEach(run => { const a = this.at(names[at][0], run), b = this.at(names[at + 1][0], run); if (a === null || b === null || !this.passes(run)) return; const away = Math.abs(y(a + (b - a) * share) - py); if (away <= least) { best = run; least = away; } });
      return best;
    };
    this.parallel.canvas.onpointerdown = event => {
      const frame = this.parallel.canvas.getBoundingClientRect(), px = event.clientX - frame.left, at = axisAt(px), begin = event.clientY - frame.top;
      if (Math.abs(x(at) - px) > 14) { this.parallel.drag = null; return; }
      const name = names[at][0], share = py => Math.max(0, Math.min(1, (bottom - py) / (bottom - top)));
      if (this.brush.delete(name)) this.parallel.dragged = true;
      this.parallel.drag = move => { const now = move.clientY - frame.top; this.parallel.dragged = true; this.brush.set(name, [share(Math.max(begin, now)) - 0.01, share(Math.min(begin, now)) + 0.01]); this.draw(); };
      this.draw();
    };
    const best = this.points[this.points.length - 1];
    this.parallel.canvas.setAttribute("aria-label", `parallel coordinates of ${this.points.length} runs; best: ${best ? this.words(best) : "none"}`);
  }

  drawScatter() {
    const {pen, wide, high} = this.begin(this.scatter), name = this.now.x, short = (this.table.params.find(one => one[0] === name) || ["", ""])[1];
    const scale = scaleOf(this.points.map(one => one.params[name])), values = scaleOf(this.points.map(one => [number(one.value), 0, one.value]));
    const x = place => 54 + place * (wide - 80), y = place => high - 26 - place * (high - 44);
    pen.strokeStyle = css("--line"); pen.fillStyle = css("--soft");
    values.marks.forEach(([mark, place]) => { pen.beginPath(); pen.moveTo(48, y(place)); pen.lineTo(wide - 10, y(place)); pen.stroke(); });
    pen.textAlign = "right";
    let above = -99;
    [...values.marks].reverse().forEach(([mark, place]) => { if (y(place) - above >= 14) { pen.fillText(mark, 44, y(place) + 4); above = y(place); } });
    pen.textAlign = "center";
    let before = -99;
    scale.marks.forEach(([mark, place]) => { const half = pen.measureText(mark).width / 2; if (x(place) - half > before + 4) { pen.fillText(mark, x(place), high - 8); before = x(place) + half; } });
    const drawn = this.points.filter(run => run.params[name] && run.params[name][1] !== 2).map(run => ({run, px: x(scale.place(run.params[name])), py: y(values.place([0, 0, run.value]))}));
    drawn.forEach(({run, px, py}) => { pen.fillStyle = rgb(run.share); pen.globalAlpha = this.scales && !this.parallel.figure.hidden && !this.passes(run) ? 0.12 : 1; pen.beginPath(); pen.arc(px, py, run === this.lit ? 7 : 4.5, 0, 7); pen.fill(); pen.globalAlpha = 1; pen.strokeStyle = run === this.lit ? css("--ink") : css("--soft"); pen.lineWidth = run === this.lit ? 2 : 0.6; pen.stroke(); });
    this.scatter.near = (px, py) => { let best = null, least = 15; drawn.forEach(one => { const away = Math.hypot(one.px - px, one.py - py); if (away < least) { best = one.run; least = away; } }); return best; };
    this.scatter.caption.replaceChildren(element("b", "", `${this.now.metric} by ${short}`), element("span", "dim", "click opens the run"));
    this.scatter.canvas.setAttribute("aria-label", `${this.now.metric} against ${short}, ${drawn.length} runs`);
  }

  // A real table, so that it can be read aloud: the mean of each pair of values.
  drawHeat() {
    if (this.heat.hidden) return;
    const {x, y, metric} = this.now, name = key => this.table.params.find(one => one[0] === key)[1], cells = new Map(), columns = new Map(), rows = new Map();
    this.points.forEach(run => {
      const a = run.params[x], b = run.params[y];
      if (!a || !b) return;
      columns.set(a[0], a); rows.set(b[0], b);
      const key = `${a[0]}\n${b[0]}`;
      if (!cells.has(key)) cells.set(key, []);
      cells.get(key).push(run);
    });
    const order = map => [...map.values()].sort((a, b) => a[1] - b[1] || a[2] - b[2] || String(a[3]).localeCompare(b[3], undefined, {numeric: true})).map(cell => cell[0]);
    const mean = runs => runs.reduce((sum, run) => sum + run.value, 0) / runs.length, all = [...cells.values()].map(mean), low = Math.min(...all), high = Math.max(...all);
    const down = this.points.some(run => run.share === 1 && run.value === Math.min(...this.points.map(one => one.value)));
    const table = element("table"), caption = element("caption", "", `mean ${metric}: ${name(y)} (rows) by ${name(x)}`), head = element("tr");
    head.append(element("th", "", ""), ...order(columns).slice(0, 20).map(text => element("th", "", text)));
    table.append(caption, head, ...order(rows).slice(0, 30).map(row => {
      const line = element("tr");
      line.append(element("th", "", row), ...order(columns).slice(0, 20).map(column => {
        const runs = cells.get(`${column}\n${row}`), cell = element("td", "", runs ? number(Number(mean(runs).toPrecision(3))) : "");
        if (runs) {
          const share = high > low ? (mean(runs) - low) / (high - low) : 0.5, good = down ? 1 - share : share, tone = shade(good);
          cell.style.background = `rgb(${tone.join(" ")})`; cell.style.color = tone[0] * 0.3 + tone[1] * 0.59 + tone[2] * 0.11 > 140 ? "#111" : "#fff";
          cell.title = `${name(x)} ${column}, ${name(y)} ${row}: mean of ${runs.length}`;
          if (good === 1 && all.length > 1) cell.classList.add("best");
        }
        return cell;
      }));
      return line;
    }));
    this.heat.replaceChildren(table);
  }

  words(run) { return `${run.name}, ${this.now.metric} ${number(run.value)}, ${this.table.params.map(([name, short]) => `${short} ${(run.params[name] || ["-"])[0]}`).join(", ")}`; }

  light(run) {
    if (run === this.lit) return;
    this.lit = run;
    this.drawParallel(); this.drawScatter();
    for (const part of [this.parallel, this.scatter]) {
      part.tip.hidden = !run || part.figure.hidden;
      if (run) part.tip.replaceChildren(element("b", "", number(run.value)), element("div", "", run.name), ...this.table.params.slice(0, 10).map(([name, short]) => element("div", "dim", `${short} = ${(run.params[name] || ["-"])[0]}`)));
      part.tip.style.left = "60px";
    }
  }

  // Arrows go from the best run to the next; Enter opens it.
  key(event) {
    if (!["ArrowLeft", "ArrowRight", "Enter"].includes(event.key) || !this.points) return;
    event.preventDefault(); event.stopPropagation();
    if (event.key === "Enter") { if (this.lit) this.onOpen(this.lit.id); return; }
    const at = this.lit ? this.points.indexOf(this.lit) : this.points.length;
    this.light(this.points[Math.max(0, Math.min(this.points.length - 1, at + (event.key === "ArrowRight" ? -1 : event.key === "ArrowLeft" && this.lit ? 1 : -1)))]);
  }
}
